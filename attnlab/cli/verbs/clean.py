"""`python -m attnlab clean`: how large the store is, and away with the runs that nothing refers to.

A run is referred to by a report that lists it, by a child that started from it, by an experiment that would
still use it (its source is today's), or by a process that trains it.
"""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.config import CONF
from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.store.files import read_json
from attnlab.sweep.status.states import locked

USAGE = "clean takes paths.runs=FOLDER, paths.reports=FOLDER and --yes"


def main(arguments: Sequence[str] = (), ask: Callable[[str], str] = input) -> int:
    """Shows, asks, removes."""
    given = {"paths.runs": "runs", "paths.reports": "reports", "--yes": ""}
    for word in arguments:
        key, _, value = word.partition("=")
        if key not in given or (key == "--yes") != (value == ""):
            raise Refused(f"{word}: {USAGE}")
        given[key] = value or "yes"
    root = Path(given["paths.runs"])
    runs = {path.parent.name: path.parent for path in sorted(root.glob("*/spec.json"))}
    kept = referred(runs, Path(given["paths.reports"]), experiments())
    sizes = {name: size(folder) for name, folder in runs.items()}
    gone = [name for name in runs if name not in kept]
    print(f"{root}: {len(runs)} runs, {_megabytes(sum(sizes.values()))}")
    if not gone:
        print("reports or experiments refer to all of them: nothing to remove")
        return 0
    told = f"{len(gone)} that nothing refers to, {_megabytes(sum(sizes[name] for name in gone))}"
    if not given["--yes"]:
        try:
            answer = ask(f"remove {told}? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing removed")
            return 0
    for name in gone:
        shutil.rmtree(runs[name])
    print(f"removed {told}")
    return 0


def referred(runs: Mapping[str, Path], reports: Path, names: set[str]) -> set[str]:
    """The ids that must stay. `names`: the experiments that there are."""
    kept: set[str] = set()
    for path in reports.glob("*/report.json"):
        found = read_json(path)
        if isinstance(found, dict):
            kept |= {str(run.get("id")) for run in found.get("runs") or []}
    specs: dict[str, Any] = {name: read_json(folder / "spec.json") or {} for name, folder in runs.items()}
    for name, spec in specs.items():
        wanted = (spec.get("use") or {}).get("experiment") in names and _is_todays(spec)
        if wanted or locked(runs[name]):
            kept.add(name)
    parents = {name: (spec.get("config") or {}).get("parent") for name, spec in specs.items()}
    queue = list(kept)
    while queue:
        parent = parents.get(queue.pop())
        if parent and parent not in kept:
            kept.add(parent)
            queue.append(parent)
    return kept


def _is_todays(spec: Mapping[str, Any]) -> bool:
    """Whether the same command would find this run again: its source is as it was."""
    was = (spec.get("semantic") or {}).get("source") or {}
    return bool(was) and all(fingerprint.sources([module]).get(module) == was[module] for module in was)


def experiments() -> set[str]:
    return {path.stem for path in (CONF / "experiment").glob("*.yaml")}


def size(folder: Path) -> int:
    """Bytes on disk."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f} MB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
