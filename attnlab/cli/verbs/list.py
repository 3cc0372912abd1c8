"""`python -m attnlab list [NAME ...]`: the experiments and the options of every axis, read from the yaml
files alone; with names, what each of them is.

`--help` prints the same groups, so this imports neither Hydra nor OmegaConf nor torch.
"""

import argparse
import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.cli.flags import KINDS
from attnlab.config import CONF
from attnlab.errors import Refused, nearest, printable

_NO_PROSE = ("@package", "yaml-language-server:")  # comments that speak to programs
EXPERIMENTS = "experiments"


def main(options: argparse.Namespace) -> int:
    """Prints the names of all there is; or of a group, of all experiments or of one, what they are.
    `--config-dir DIR` adds a user's own.
    """
    folders = [*_own(options.config_dir), CONF]
    files = experiments(folders)
    axes = groups(folders)
    for name in options.names:
        known = [EXPERIMENTS, *axes, *files]
        if name not in known:
            raise Refused(f"list {name}: no group and no experiment{nearest(name, known)}; see {_LIST}")
    asked = [name for name in files if {name, EXPERIMENTS} & {*options.names} or not options.names]
    wanted = [group for group in axes if group in options.names or not options.names]
    if options.json:
        told = {name: _experiment(files[name]) for name in asked}
        said = {group: {each: _option(folders, group, each) for each in axes[group]} for group in wanted}
        print(json.dumps({"experiments": told, "groups": said}, indent=1, ensure_ascii=False))
    elif options.names:
        _print_experiments({name: files[name] for name in asked})
        for group in wanted:
            _print_group(folders, group, axes[group])
    else:
        _print_names(files, axes)
    return 0


_LIST = "python -m attnlab list"


def experiments(folders: Sequence[Path] = (CONF,)) -> dict[str, Path]:
    """Name -> file; of two of a name the earlier folder's."""
    paths = (path for folder in reversed(folders) for path in (folder / "experiment").glob("*.yaml"))
    return dict(sorted({path.stem: path for path in paths}.items()))


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


def _print_names(experiments: Mapping[str, Path], axes: Mapping[str, Sequence[str]]) -> None:
    """All of it on a screen or two, whole names in each line."""
    width = shutil.get_terminal_size().columns - 1
    print("Experiments: python -m attnlab +experiment=NAME")
    _wrapped("", sorted(experiments), width, 2)
    print("Axes and other groups: python -m attnlab GROUP=OPTION")
    column = max(map(len, axes)) + 4
    for group, options in axes.items():
        _wrapped(group, options, width, column)
    print(f"What each is: {_LIST} heads, {_LIST} gqa_vs_mha, {_LIST} {EXPERIMENTS}")
    print(f"One of your own: python -m attnlab new KIND NAME ({', '.join(KINDS)})")


def _wrapped(head: str, names: Sequence[str], width: int, column: int) -> None:
    lines = textwrap.wrap(
        printable("  ".join(names)), max(width - column, 20), break_long_words=False, break_on_hyphens=False
    )
    for line, begin in zip(lines, [f"  {head}", *[""] * len(lines)], strict=False):
        print(f"{printable(begin):{column}}{line}")


def _print_experiments(experiments: Mapping[str, Path]) -> None:
    width = max(map(len, experiments), default=0)
    for name, path in experiments.items():
        told = _experiment(path)
        fault = f"({told['fault']}) " if told["fault"] else ""
        print(printable(f"  {name:{width}}  {fault}{told['question']}".rstrip()))
        if told["cost"]:
            print(f"  {'':{width}}  {printable(told['cost'])}")


def _print_group(folders: Sequence[Path], group: str, options: Sequence[str]) -> None:
    print(printable(f"  {group}"))
    width = max(map(len, options))
    for name in options:
        print(printable(f"    {name:{width}}  {_option(folders, group, name)}".rstrip()))


def _option(folders: Sequence[Path], group: str, name: str) -> str:
    """The sentence that its file begins with."""
    path = next(path for folder in folders if (path := folder / group / f"{name}.yaml").exists())
    return _sentence([*_prose(path)])


def _sentence(lines: Sequence[str]) -> str:
    """From its first word to its full stop, over as many lines as it has."""
    told = ""
    for line in lines:
        told = f"{told} {line}".strip()
        if line.endswith((".", "?", ":", ";")) or ". " in line:
            break
    return told


def _experiment(path: Path) -> dict[str, Any]:
    """Its question, its cost, and what is wrong with its file: that hides no other."""
    from attnlab.store.experiment_files import Fault, Written, check

    question = ""
    fault = ""
    try:
        question = " ".join((Written(file=path).text(("question",)) or "").split())
        check(path)
    except Fault as error:
        fault = error.problem.partition(": ")[0] + (f": line {error.line}" if error.line else "")
    prose = [*_prose(path)]
    costs = [i for i, line in enumerate(prose) if line.startswith("Cost")]
    return {"question": question, "cost": _sentence(prose[costs[0] :]) if costs else "", "fault": fault}


def _prose(path: Path) -> Iterator[str]:
    """The lines of prose at the head of a file."""
    for line in _text(path).splitlines():
        if not line.startswith("#"):
            return
        text = line.removeprefix("#").strip()
        if text and not text.startswith(_NO_PROSE):
            yield text


def _text(path: Path) -> str:
    """What is in a file; nothing where it cannot be read: a broken file hides no other."""
    try:  # a pipe would be waited for
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""
