"""`python -m attnlab list`: the experiments and the options of every axis, read from the yaml files alone.

`--help` prints the same groups, so this imports neither Hydra nor OmegaConf nor torch.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnlab.cli.flags import KINDS
from attnlab.config import CONF
from attnlab.errors import Refused, printable

_NO_PROSE = ("@package", "yaml-language-server:")  # comments that speak to programs


def main(options: argparse.Namespace) -> int:
    """Prints the experiments with their questions, the groups, and how to add to them. `--config-dir DIR`
    adds a user's own.
    """
    folders = [*_own(options.config_dir), CONF]
    _print_experiments(
        {path.stem: path for folder in reversed(folders) for path in (folder / "experiment").glob("*.yaml")}
    )
    print("Axes and other groups: python -m attnlab GROUP=OPTION")
    for group, names in groups(folders).items():
        print(printable(f"  {group}"))
        width = max(len(name) for name in names)
        for name in names:
            path = next(path for folder in folders if (path := folder / group / f"{name}.yaml").exists())
            print(printable(f"    {name:{width}}  {next(_prose(path), '')}".rstrip()))
    print(f"One of your own: python -m attnlab new KIND NAME ({', '.join(KINDS)})")
    return 0


def groups(folders: Sequence[Path] = (CONF,)) -> dict[str, list[str]]:
    """Config group -> its options; experiments, and what was tuned for them, apart."""
    names: dict[str, set[str]] = {}
    for folder in folders:
        for path in folder.glob("*/**/*.yaml"):
            group = str(path.parent.relative_to(folder))
            if group not in ("experiment", "tuned") and path.exists():  # a link may lead to nothing
                names.setdefault(group, set()).add(path.stem)
    return {group: sorted(options) for group, options in sorted(names.items())}


def _own(folder: str | None) -> list[Path]:
    if folder is None:
        return []
    if not Path(folder).is_dir():
        raise Refused(f"--config-dir {folder}: there is no such folder")
    return [Path(folder)]


def _print_experiments(experiments: dict[str, Path]) -> None:
    if not experiments:
        return
    print("Experiments: python -m attnlab +experiment=NAME")
    width = max(len(name) for name in experiments)
    for name, path in sorted(experiments.items()):
        print(printable(f"  {name:{width}}  {_question(path)}".rstrip()))
        for line in _prose(path):
            if line.startswith("Cost"):
                print(f"  {'':{width}}  {printable(line)}")
    print()


def _prose(path: Path) -> Iterator[str]:
    """The lines of prose at the head of a file."""
    for line in _text(path).splitlines():
        if not line.startswith("#"):
            return
        text = line.removeprefix("#").strip()
        if text and not text.startswith(_NO_PROSE):
            yield text


def _question(path: Path) -> str:
    """The question of an experiment, after what is wrong with its file, in brackets: it hides no other."""
    from attnlab.store.experiment_files import Fault, Written, check

    question, fault = "", ""
    try:
        question = " ".join((Written(file=path).text(("question",)) or "").split())
        check(path)
    except Fault as error:
        line = f": line {error.line}" if error.line else ""
        fault = f"({error.problem.partition(': ')[0]}{line})"
    return f"{fault} {question}".strip()


def _text(path: Path) -> str:
    """What is in a file; nothing where it cannot be read: a broken file hides no other."""
    try:  # a pipe would be waited for
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""
