"""`python -m attnlab list [NAME ...]`: names of experiments and config groups, or descriptions of NAMEs.

Reads only the yaml files. `--help` prints the same groups, so this imports neither Hydra nor OmegaConf nor
torch.
"""

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.cli.new import TEMPLATE_KINDS
from attnlab.cli.own_options import format_own_options, resolve_config_dir
from attnlab.config import CONF
from attnlab.errors import InvalidConfig, escape_unprintable, format_suggestions
from attnlab.store.atomic_files import read_text_or_empty

_MACHINE_COMMENT_PREFIXES = ("@package", "yaml-language-server:")  # comments for programs
EXPERIMENTS = "experiments"


def main(options: argparse.Namespace) -> int:
    """Print all names, or the descriptions of the named groups and experiments.

    `--config-dir DIR` adds a user's own.
    """
    folders = [*resolve_config_dir(options.config_dir), CONF]
    experiment_files = list_experiments(folders)
    axes = list_groups(folders)
    if options.config_dir is None and (own_options := format_own_options()):
        print(escape_unprintable(own_options), file=sys.stderr)
    for name in options.names:
        known_names = [EXPERIMENTS, *axes, *experiment_files]
        if name not in known_names:
            suggestions = format_suggestions(name, known_names)
            raise InvalidConfig(f"list {name}: not a group or experiment{suggestions}: see {_LIST_COMMAND}")
    experiment_names = [
        name for name in experiment_files if {name, EXPERIMENTS} & {*options.names} or not options.names
    ]
    group_names = [group for group in axes if group in options.names or not options.names]
    if options.json:
        experiments = {name: _describe_experiment(experiment_files[name]) for name in experiment_names}
        groups = {
            group: {option: _describe_option(folders, group, option) for option in axes[group]}
            for group in group_names
        }
        print(json.dumps({"experiments": experiments, "groups": groups}, indent=1, ensure_ascii=False))
    elif options.names:
        _print_experiments({name: experiment_files[name] for name in experiment_names})
        for group in group_names:
            print(escape_unprintable(f"  {group}"))
            width = max(map(len, axes[group]))
            for name in axes[group]:
                line = f"    {name:{width}}  {_describe_option(folders, group, name)}"
                print(escape_unprintable(line.rstrip()))
    else:
        _print_names(experiment_files, axes)
    return 0


_LIST_COMMAND = "python -m attnlab list"


def list_experiments(folders: Sequence[Path] = (CONF,)) -> dict[str, Path]:
    """List experiment files by name; an earlier folder takes precedence."""
    paths = (path for folder in reversed(folders) for path in (folder / "experiment").glob("*.yaml"))
    return dict(sorted({path.stem: path for path in paths}.items()))


def list_groups(folders: Sequence[Path] = (CONF,)) -> dict[str, list[str]]:
    """List the options of each config group, except `experiment` and `tuned`."""
    names: dict[str, set[str]] = {}
    for folder in folders:
        for path in folder.glob("*/**/*.yaml"):
            group = str(path.parent.relative_to(folder))
            if group not in ("experiment", "tuned") and path.exists():  # skips broken links
                names.setdefault(group, set()).add(path.stem)
    return {group: sorted(options) for group, options in sorted(names.items())}


def _print_names(experiments: Mapping[str, Path], axes: Mapping[str, Sequence[str]]) -> None:
    """Print all names, wrapped to the terminal between names."""
    width = shutil.get_terminal_size().columns - 1
    print("Experiments: python -m attnlab +experiment=NAME")
    _print_wrapped("", sorted(experiments), width, 2)
    print("Axes and other groups: python -m attnlab GROUP=OPTION")
    column = max(map(len, axes)) + 4
    for group, options in axes.items():
        _print_wrapped(group, options, width, column)
    print(f"Descriptions: {_LIST_COMMAND} heads, {_LIST_COMMAND} gqa_vs_mha, {_LIST_COMMAND} {EXPERIMENTS}")
    print(f"Your own variant: python -m attnlab new KIND NAME ({', '.join(TEMPLATE_KINDS)})")


def _print_wrapped(head: str, names: Sequence[str], width: int, column: int) -> None:
    lines = textwrap.wrap(
        escape_unprintable("  ".join(names)),
        max(width - column, 20),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line, line_head in zip(lines, [f"  {head}", *[""] * len(lines)], strict=False):
        print(f"{escape_unprintable(line_head):{column}}{line}")


def _print_experiments(experiments: Mapping[str, Path]) -> None:
    width = max(map(len, experiments), default=0)
    for name, path in experiments.items():
        description = _describe_experiment(path)
        fault = f"({description['fault']}) " if description["fault"] else ""
        print(escape_unprintable(f"  {name:{width}}  {fault}{description['question']}".rstrip()))
        if description["cost"]:
            print(f"  {'':{width}}  {escape_unprintable(description['cost'])}")


def _describe_option(folders: Sequence[Path], group: str, option: str) -> str:
    """Return the first sentence of an option's yaml comment."""
    path = next(path for folder in folders if (path := folder / group / f"{option}.yaml").exists())
    return _extract_sentence([*_read_comment_lines(path)])


def _extract_sentence(lines: Sequence[str]) -> str:
    """Join lines until the end of the first sentence."""
    sentence = ""
    for line in lines:
        sentence = f"{sentence} {line}".strip()
        if line.endswith((".", "?", ":", ";")) or ". " in line:
            break
    return sentence


def _describe_experiment(path: Path) -> dict[str, Any]:
    """Describe an experiment by question, cost, and the error of an invalid file, which hides no other."""
    from attnlab.store.experiment_files import ExperimentFileError, ExperimentSource, validate_experiment_file

    question = ""
    fault = ""
    try:
        question = " ".join((ExperimentSource(file=path).get_spelling(("question",)) or "").split())
        validate_experiment_file(path)
    except ExperimentFileError as error:
        fault = error.problem.partition(": ")[0] + (f": line {error.line}" if error.line else "")
    prose = [*_read_comment_lines(path)]
    costs = [i for i, line in enumerate(prose) if line.startswith("Cost")]
    return {
        "question": question,
        "cost": _extract_sentence(prose[costs[0] :]) if costs else "",
        "fault": fault,
    }


def _read_comment_lines(path: Path) -> Iterator[str]:
    """Yield the comment lines at the head of a file, except those for programs."""
    for line in read_text_or_empty(path).splitlines():
        if not line.startswith("#"):
            return
        text = line.removeprefix("#").strip()
        if text and not text.startswith(_MACHINE_COMMENT_PREFIXES):
            yield text
