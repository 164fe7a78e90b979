# Completion for fish, from what --help of the program says.
function __outrider_help
    set -l words (commandline -opc)
    if test (count $words) -gt 1; and string match -qr '^[a-z]' -- $words[2]
        $words[1] $words[2] --help 2>/dev/null
    else
        $words[1] --help 2>/dev/null
    end
end
function __outrider_flags
    __outrider_help | string match -rg '^ +(?:-[a-z],)?(--[a-z0-9-]+)'
end
function __outrider_commands
    __outrider_help | sed -nE '/^Subcommands:/,$ s/^  ([a-z]+) +(.*)/\1\t\2/p'
end
for program in outrider outrider-coordinator outrider-draft outrider-target outrider-pair
    complete -c $program -n 'string match -q -- "-*" (commandline -ct)' -a '(__outrider_flags)'
end
complete -c outrider -n 'test (count (commandline -opc)) -eq 1' -f -a '(__outrider_commands)'
