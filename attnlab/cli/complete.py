"""`attnlab complete bash|zsh|fish`: what a shell loads to complete attnlab's words. It then asks with the
line so far, which imports nothing heavy.
"""

import argparse
from collections.abc import Iterable, Sequence

from attnlab.cli.commands import SUBJECTS, VERBS, parsers
from attnlab.cli.flags import KINDS, SCHEMAS
from attnlab.cli.verbs.list import EXPERIMENTS, experiments, groups

SCRIPTS = {
    "bash": """\
_attnlab() {
    local line=${COMP_LINE:0:COMP_POINT} word cut
    word=${line##* }
    mapfile -t COMPREPLY < <(attnlab complete --line "$line" 2>/dev/null)
    case $word in
        *=*) cut=${word%"${word##*=}"}; COMPREPLY=("${COMPREPLY[@]#"$cut"}") ;;  # bash breaks words at =
    esac
}
complete -o nospace -F _attnlab attnlab
""",
    "zsh": """\
#compdef attnlab
_attnlab() {
    local -a found
    found=(${(f)"$(attnlab complete --line "${LBUFFER}" 2>/dev/null)"})
    compadd -Q -S '' -- $found  # as it is: a verb brings its blank
}
compdef _attnlab attnlab
""",
    "fish": """\
complete -c attnlab -f -a '(attnlab complete --line (commandline -cp) 2>/dev/null | string trim)'
""",
}
_NAMES = {"schema": SCHEMAS, "new": KINDS, "bench": SUBJECTS, "complete": tuple(SCRIPTS)}
_OF_EXPERIMENTS = ("plan", "status", "ladder")


def main(options: argparse.Namespace) -> int:
    """Prints a shell's script, or the words that a line may go on with."""
    if options.line is None:
        print(SCRIPTS[options.shell], end="")
        return 0
    words = options.line.split()[1:]
    if options.line[-1:].isspace() or not words:
        words.append("")
    print("\n".join(candidates(words)))
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of these words may become; those before it are whole. A blank ends a word that nothing
    follows.
    """
    *before, last = words
    key, equals, value = last.partition("=")
    if equals:
        known = list(experiments()) if key.lstrip("+") == "experiment" else groups().get(key.lstrip("+"), [])
        chosen, comma, part = value.rpartition(",")
        return [f"{key}={chosen}{comma}{option}" for option in sorted(known) if option.startswith(part)]
    found = _all(before)
    return sorted(word for word in found if word.startswith(last))


def _all(before: Sequence[str]) -> Iterable[str]:
    overrides = [f"{group}=" for group in groups()] + ["+experiment=", "seed=", "size="]
    if not before:
        return [*(f"{verb} " for verb in VERBS), *overrides]
    if before[0] not in VERBS:
        return overrides
    verb = before[0]
    options = parsers()[1][verb].flags()
    own = [*options, *(f"{key.name}=" for key in VERBS[verb].keys)]
    if verb in _NAMES:
        return [*own, *(f"{name} " for name in _NAMES[verb])]
    if verb == "list":
        return [*own, EXPERIMENTS, *groups(), *experiments()]
    if verb in _OF_EXPERIMENTS:
        return [*own, *overrides, *(f"{name} " for name in experiments())]
    return [*own, *overrides]
