"""The completion scripts of bash, zsh and fish.

They pass the words up to the cursor in LUTHIER_WORDS, each followed by a line break; `luthier
completion words` answers with one candidate per line, and its description after a tab.
"""

from __future__ import annotations

from collections.abc import Mapping

# By the environment and not as arguments: a word may be empty, or begin with a dash, and the parser
# of luthier must not see an incomplete command line. A candidate that ends in `=`, `.`, `:`, `/` or
# `[` is not complete, so no space is added after it. bash splits words at `=` and `:`, which are
# part of overrides, so its script reads the line itself and takes away from the candidates what
# readline has already.

BASH = r"""# Completion of luthier for bash.
_luthier() {
    local -a words
    local line=${COMP_LINE:0:COMP_POINT} typed candidate before
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    typed=${words[-1]}
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        COMPREPLY+=("$candidate")
    done < <(
        IFS=$'\n'
        LUTHIER_WORDS="${words[*]:1}$IFS" "${words[0]}" completion words 2>/dev/null
    )
    # Readline completes only what follows the last of these.
    before=${typed%"${typed##*[=:]}"}
    if [[ -n $before && $COMP_WORDBREAKS == *[=:]* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"$before"}")
    fi
    if [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *[=.:/[] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _luthier luthier
"""

ZSH = r"""#compdef luthier
# Completion of luthier for zsh.
_luthier() {
    local -a ended open shown_ended shown_open
    local line word
    while IFS= read -r line; do
        word=${line%%$'\t'*}
        line=${line/$'\t'/  -- }
        if [[ $word == *[=.:/\[] ]]; then
            open+=("$word"); shown_open+=("$line")
        else
            ended+=("$word"); shown_ended+=("$line")
        fi
    done < <(LUTHIER_WORDS=${(F)words[2,CURRENT]}$'\n' "${words[1]}" completion words 2>/dev/null)
    (( ${#open} )) && compadd -Q -S '' -l -d shown_open -- "${open[@]}"
    (( ${#ended} )) && compadd -Q -l -d shown_ended -- "${ended[@]}"
    return 0
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _luthier luthier
"""

FISH = r"""# Completion of luthier for fish.
function __luthier_words
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -a words (commandline --cut-at-cursor --current-token)
    set -lx LUTHIER_WORDS (string join \n -- $words[2..-1] | string collect --no-trim-newlines)
    $words[1] completion words 2>/dev/null
end
complete --command luthier --no-files --arguments '(__luthier_words)'
"""

SCRIPTS: Mapping[str, str] = {"bash": BASH, "zsh": ZSH, "fish": FISH}
