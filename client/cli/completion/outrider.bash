# Completion for bash, from what --help of the program says.
_outrider() {
  local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=()
  [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD - 2]}
  [[ $current == = ]] && current=
  [[ ${program##*/} == outrider && $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=("${COMP_WORDS[1]}")
  local help values
  help=$("$program" "${command[@]}" --help 2>/dev/null) || return
  # Of `  --rule TEXT:{token,block,coupled}` the values.
  values=$(sed -nE "s/^ +([^ ]*,)?$previous(,[^ ]*)? [^ ]*\{([^}]*)\}.*/\3/p" <<<"$help" | tr , ' ')
  if [[ $previous == --* && $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(grep -oE '^ +(-[a-z],)?--[a-z0-9,-]+' <<<"$help" | grep -oE -- '--[a-z0-9-]+')" -- "$current")
  elif [[ ${program##*/} == outrider && $COMP_CWORD -eq 1 ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(sed -nE '/^Subcommands:/,$ s/^  ([a-z]+) .*/\1/p' <<<"$help")" -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}
complete -o filenames -F _outrider outrider outrider-coordinator outrider-draft outrider-target outrider-pair
