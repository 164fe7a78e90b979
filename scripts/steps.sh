#!/usr/bin/env bash
# Sourced by the scripts that install: runs and reports their steps, with the output in the file $LOG.

readonly STEPS_OF=${0##*/}

fail() {
  printf '%s: %s\n' "$STEPS_OF" "$1" >&2
  exit 1
}

# step WHAT COMMAND... runs the command with its output in the log, and reports what it does and how long it took.
step() {
  local what=$1 start=$SECONDS status=0 ticker=
  shift
  if [[ -t 1 ]]; then
    while kill -0 $$ 2>/dev/null; do
      printf '\r%s: %s ... %d s ' "$STEPS_OF" "$what" $((SECONDS - start))
      sleep 1
    done &
    ticker=$!
  else
    printf '%s: %s ...\n' "$STEPS_OF" "$what"
  fi
  printf '\n== %s\n' "$what" >>"$LOG"
  "$@" </dev/null >>"$LOG" 2>&1 || status=$?
  if [[ $ticker ]]; then
    kill "$ticker"
    wait "$ticker" 2>/dev/null || true
    printf '\r\033[K'
  fi
  if ((status == 0)); then
    printf '%s: %s: done in %d s\n' "$STEPS_OF" "$what" $((SECONDS - start))
  fi
  return "$status"
}

# The reason that the last step gave for its failure, on one line.
reason() {
  local line
  line=$(tac "$LOG" | grep -m1 -E '^(E: |ERROR: |Error: )' || tail -n 1 "$LOG")
  printf '%s' "${line#*: }"
}
