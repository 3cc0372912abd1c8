"""`python -m attnlab list`: the experiments and the options of every axis, read from the yaml files alone.

`--help` prints the same groups, so this imports neither Hydra nor torch.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.config import CONF
from attnlab.errors import Refused


def main(arguments: Sequence[str] = ()) -> int:
    """Prints the experiments with their questions, then the groups. `--config-dir DIR` adds a user's own."""
    folders = [*_own(arguments), CONF]
    experiments = {
        name: path for folder in reversed(folders) for name, path in _options(folder, "experiment")
    }
    if experiments:
        print("Experiments: python -m attnlab +experiment=NAME")
        width = max(len(name) for name in experiments)
        for name, path in sorted(experiments.items()):
            print(f"  {name:{width}}  {_question(path)}".rstrip())
            for line in _comments(path):
                if line.startswith("Cost"):
                    print(f"  {'':{width}}  {line}")
        print()
    print("Axes and other groups: python -m attnlab GROUP=OPTION")
    for group, options in groups(folders).items():
        print(f"  {group}")
        width = max(len(option) for option in options)
        for option in options:
            path = next(p for folder in folders if (p := folder / group / f"{option}.yaml").is_file())
            print(f"    {option:{width}}  {next(_comments(path), '')}".rstrip())
    return 0


def groups(folders: Sequence[Path] = (CONF,)) -> dict[str, list[str]]:
    """Config group -> its options; experiments, and what was tuned for them, apart."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for path in folder.glob("*/**/*.yaml"):
            group = str(path.parent.relative_to(folder))
            if group not in ("experiment", "tuned"):
                found.setdefault(group, set()).add(path.stem)
    return {group: sorted(options) for group, options in sorted(found.items())}


def _own(arguments: Sequence[str]) -> list[Path]:
    given = list(arguments)
    if not given:
        return []
    if len(given) == 1 and given[0].startswith("--config-dir="):
        given = ["--config-dir", given[0].partition("=")[2]]
    if len(given) != 2 or given[0] not in ("--config-dir", "-cd"):
        raise Refused(f"list takes nothing, or --config-dir DIR; got {' '.join(arguments)}")
    if not Path(given[1]).is_dir():
        raise Refused(f"--config-dir {given[1]}: there is no such folder")
    return [Path(given[1])]


def _options(folder: Path, group: str) -> list[tuple[str, Path]]:
    return [(path.stem, path) for path in sorted((folder / group).glob("*.yaml"))]


def _comments(path: Path) -> Iterator[str]:
    """The lines of prose at the head of a file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return
        if text := line.removeprefix("#").strip().removeprefix("@package _global_"):
            yield text


def _question(path: Path) -> str:
    try:
        question = OmegaConf.to_container(OmegaConf.load(path)).get("question")  # type: ignore[union-attr]
    except (OmegaConfBaseException, OSError, AttributeError):
        return ""
    return " ".join(str(question).split()) if question else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
