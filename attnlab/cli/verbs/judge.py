"""`python -m attnlab judge A B`: test whether B is better than A by more than the margin.

A and B are configs, which are trained, or files of runs that were trained elsewhere. The last line on stdout
and the exit status have the verdict, and `--json` prints it for programs. Progress goes to stderr.
"""

import argparse
from pathlib import Path

from attnlab.errors import InvalidConfig

FILE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


def main(options: argparse.Namespace) -> int:
    """Print the verdict, or the noise of runs that were trained elsewhere; return the exit status."""
    if any(flag is not None for flag in (options.champion, options.log, options.confirm)):
        from attnlab.cli.verbs import judge_candidates  # late, as each loads what it needs

        return judge_candidates.main(options)
    if options.noise is not None or _has_files(options):
        from attnlab.cli.verbs import judge_files

        return judge_files.main(options)
    from attnlab.cli.verbs import judge_configs

    return judge_configs.main(options)


def _has_files(options: argparse.Namespace) -> bool:
    """Whether A and B are files or folders of runs, rather than overrides.

    Raises:
        InvalidConfig: one is and the other is not, or a path does not exist.
    """
    words = options.words[: 1 if options.arm_column is not None else 2]
    kinds = {word: _is_result_path(word) for word in words}
    if len({*kinds.values()}) > 1:
        override = next(word for word, is_path in kinds.items() if not is_path)
        raise InvalidConfig(
            f"{override}: the other side is a file of runs that were trained elsewhere: give two files, or "
            "two configs"
        )
    return bool(words) and all(kinds.values())


def _is_result_path(word: str) -> bool:
    """Whether a word is a path of runs: an existing one, or one with a suffix that is no config's."""
    path = Path(word)
    if path.suffix in (".yaml", ".yml") or ("=" in word and not path.exists()):
        return False
    return path.exists() or path.suffix.lower() in FILE_SUFFIXES or "/" in word
