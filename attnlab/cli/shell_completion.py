"""`attnlab complete bash|zsh|fish`: completion scripts for shells.

A script passes the line so far to the flag --line, which imports nothing heavy.
"""

import argparse
from collections.abc import Iterable, Sequence

from attnlab.cli.commands import BENCH_SUBJECTS, VERBS, build_parsers
from attnlab.cli.flags import SCHEMA_NAMES
from attnlab.cli.new import TEMPLATE_KINDS
from attnlab.cli.verbs.list import EXPERIMENTS, list_experiments, list_groups

SHELL_SCRIPTS = {
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
_NAMES_BY_VERB = {
    "schema": SCHEMA_NAMES,
    "new": TEMPLATE_KINDS,
    "bench": BENCH_SUBJECTS,
    "complete": tuple(SHELL_SCRIPTS),
}
_EXPERIMENT_VERBS = ("plan", "status", "ladder")


def main(options: argparse.Namespace) -> int:
    """Print a shell's script, or the completions of a line."""
    if options.line is None:
        print(SHELL_SCRIPTS[options.shell], end="")
        return 0
    words = options.line.split()[1:]
    if options.line[-1:].isspace() or not words:
        words.append("")
    print("\n".join(list_completions(words)))
    return 0


def list_completions(words: Sequence[str]) -> list[str]:
    """List the completions of the last word; earlier words are complete.

    A completion that needs no value ends with a blank.
    """
    *previous_words, last = words
    key, equals, value = last.partition("=")
    if equals:
        option_names = (
            list(list_experiments())
            if key.lstrip("+") == "experiment"
            else list_groups().get(key.lstrip("+"), [])
        )
        chosen, comma, prefix = value.rpartition(",")
        return [
            f"{key}={chosen}{comma}{option}" for option in sorted(option_names) if option.startswith(prefix)
        ]
    candidates = _list_next_words(previous_words)
    return sorted(word for word in candidates if word.startswith(last))


def _list_next_words(previous_words: Sequence[str]) -> Iterable[str]:
    overrides = [f"{group}=" for group in list_groups()] + ["+experiment=", "seed=", "size="]
    if not previous_words:
        return [*(f"{verb} " for verb in VERBS), *overrides]
    if previous_words[0] not in VERBS:
        return overrides
    verb = previous_words[0]
    flags = build_parsers()[1][verb].list_flags()
    verb_words = [*flags, *(f"{key.name}=" for key in VERBS[verb].keys)]
    if verb in _NAMES_BY_VERB:
        return [*verb_words, *(f"{name} " for name in _NAMES_BY_VERB[verb])]
    if verb == "list":
        return [*verb_words, EXPERIMENTS, *list_groups(), *list_experiments()]
    if verb in _EXPERIMENT_VERBS:
        return [*verb_words, *overrides, *(f"{name} " for name in list_experiments())]
    return [*verb_words, *overrides]
