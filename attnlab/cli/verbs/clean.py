"""`python -m attnlab clean`: how large the store is, and away with the runs that nothing refers to.

A run is referred to by a report that lists it, by a child that started from it, by an experiment that would
still use it (its source is today's), or by a process that trains it.
"""

import argparse
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from attnlab.config import CONF
from attnlab.errors import Refused
from attnlab.store import runs as stored
from attnlab.store.files import read_json
from attnlab.store.schema import RunSpec
from attnlab.store.source import sources
from attnlab.sweep.status.states import locked


def main(options: argparse.Namespace, ask: Callable[[str], str] = input) -> int:
    """Shows, asks, removes."""
    root, reports = Path(options.given["paths.runs"]), Path(options.given["paths.reports"])
    runs = {path.parent.name: path.parent for path in sorted(root.glob("*/spec.json"))}
    kept = referred(runs, reports, experiments())
    sizes = {name: size(folder) for name, folder in runs.items()}
    unwanted = [name for name in runs if name not in kept]
    print(f"{root}: {len(runs)} runs, {_megabytes(sum(sizes.values()))}")
    if not unwanted:
        print("reports or experiments refer to all of them: nothing to remove")
        return 0
    what = f"{len(unwanted)} that nothing refers to, {_megabytes(sum(sizes[name] for name in unwanted))}"
    if not options.yes and not _agreed(f"remove {what}? [y/N] ", ask):
        print("nothing removed")
        return 0
    for name in unwanted:
        shutil.rmtree(runs[name])
    print(f"removed {what}")
    return 0


def _agreed(question: str, ask: Callable[[str], str]) -> bool:
    """Whether the answer is a yes; without a terminal it is a no."""
    try:
        return ask(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def referred(runs: Mapping[str, Path], reports: Path, names: set[str]) -> set[str]:
    """The ids that must stay. `names`: the experiments that there are."""
    specs = {name: spec for name, folder in runs.items() if (spec := _spec(folder)) is not None}
    kept = _reported(reports) | {name for name, folder in runs.items() if locked(folder)}
    kept |= {name for name, spec in specs.items() if spec.use.experiment in names and _is_todays(spec)}
    return kept | _ancestors(kept, specs)


def _reported(reports: Path) -> set[str]:
    """The ids of the runs that the reports in a folder list."""
    contents = [read_json(path) for path in reports.glob("*/report.json")]
    return {
        str(run.get("id"))
        for report in contents
        if isinstance(report, dict)
        for run in report.get("runs") or []
    }


def _spec(folder: Path) -> RunSpec | None:
    """What a run is; None where its spec cannot be read, or is of another version."""
    with suppress(Refused):
        return stored.spec(folder)
    return None


def _ancestors(ids: set[str], specs: Mapping[str, RunSpec]) -> set[str]:
    """The runs that these started from, and those that they started from, and so on."""
    parents = {name: spec.config.get("parent") for name, spec in specs.items()}
    ancestors: set[str] = set()
    queue = list(ids)
    while queue:
        parent = parents.get(queue.pop())
        if parent and parent not in ancestors:
            ancestors.add(parent)
            queue.append(parent)
    return ancestors


def _is_todays(spec: RunSpec) -> bool:
    """Whether the same command would find this run again: its source is as it was."""
    was = spec.identity.get("source") or {}
    return bool(was) and all(sources([module]).get(module) == was[module] for module in was)


def experiments() -> set[str]:
    return {path.stem for path in (CONF / "experiment").glob("*.yaml")}


def size(folder: Path) -> int:
    """Bytes on disk."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f} MB"
