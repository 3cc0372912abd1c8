"""`python -m attnlab clean`: how large the store is, and away with the runs that nothing refers to.

Only what carries the marks of a store and of a run is ever removed (`store/guards/marks.py`), file by file,
under the run's lock. Why a run stays is told by `attnlab/cli/referred.py`, and asked again once the answer
is there: a command that began meanwhile keeps what it uses.
"""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import Timeout

from attnlab.cli.referred import Kept, decide
from attnlab.errors import Refused, nearest
from attnlab.store import runs
from attnlab.store.guards import marks, users
from attnlab.store.schema import RunSpec

AT_A_TIME = 32  # a heartbeat that a lost host left behind is watched for half a minute and more


def main(options: argparse.Namespace, ask: Callable[[str], str] = input) -> int:
    """Shows, asks, removes; 1 where something could not be removed."""
    root, reports = Path(options.given["paths.runs"]), [Path(one) for one in options.given["paths.reports"]]
    marks.refuse_foreign(root)
    _refuse_missing(reports)
    specs, others = _runs(root)
    forget = _known(options.forget, root, specs)
    kept = decide(root, specs, reports, forget)
    sizes = {name: size(root / name) for name in specs}
    unwanted = [name for name in specs if name not in kept.why]
    print(f"{root}: {len(specs)} runs, {_megabytes(sum(sizes.values()))}")
    for line in [*kept.told(), *_left_alone(others)]:
        print(line)
    if not unwanted:
        print("reports or experiments refer to all of them: nothing to remove")
        if kept.forgotten:
            runs.refuse_unwritable(root)
            with marks.guarding(root):
                _forget(root, decide(root, specs, reports, forget))
        return 0
    what = f"{len(unwanted)} that nothing refers to, {_megabytes(sum(sizes[name] for name in unwanted))}"
    if not options.yes and not _agreed(f"remove {what}? [y/N] ", ask):
        print("nothing removed")
        return 0
    runs.refuse_unwritable(root)
    with marks.guarding(root):
        kept = decide(root, specs, reports, forget)
        status, removed = _remove(root, unwanted, kept.why)
        _forget(root, kept)
    freed = sum(sizes[name] for name in removed)
    print(f"removed {len(removed)} that nothing refers to, {_megabytes(freed)}")
    return status


def _remove(root: Path, names: Sequence[str], why: Mapping[str, str]) -> tuple[int, list[str]]:
    """Removes those that nothing has come to keep: 1 where the system refused one, and which are gone."""
    status, removed = 0, []
    for name in names:
        if name in why:
            print(f"{root / name} stays: it is one {why[name]}")
    going = [name for name in names if name not in why]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        outcomes = list(pool.map(lambda name: _removed(root / name), going))
    for name, outcome in zip(going, outcomes, strict=True):
        if isinstance(outcome, Timeout):
            print(f"{root / name} stays: a process holds it")
        elif isinstance(outcome, OSError):
            print(f"{root / name} could not be removed: {outcome}")
            status = 1
        else:
            removed.append(name)
            if outcome:
                print(f"{root / name} stays for what no run has written: {', '.join(outcome)}")
    return status, removed


def _removed(folder: Path) -> list[str] | OSError:
    """What is left of a run's folder, or why it could not be removed (Timeout is an OSError)."""
    try:
        return marks.remove(folder)
    except OSError as error:
        return error


def _forget(root: Path, kept: Kept) -> None:
    """What was to be forgotten is, and who used none but runs that are gone."""
    for path, user in kept.forgotten.items():
        users.forget(path, user)
    for path, user in (kept.over | kept.forgotten).items():
        if not any((root / name).exists() for name in user.runs):
            users.ended(path)


def _refuse_missing(reports: Sequence[Path]) -> None:
    for folder in reports:
        if str(folder) != "reports" and not folder.is_dir():
            raise Refused(
                f"paths.reports={folder}: there is no such folder, and its reports are to keep their runs; "
                "name the one that holds them"
            )


def _runs(root: Path) -> tuple[dict[str, RunSpec], list[str]]:
    """The runs that carry their marks, and the names of what only looks like a run."""
    specs, others = dict[str, RunSpec](), []
    for folder in sorted(root.iterdir()):
        spec = marks.own(folder)
        if spec is not None:
            specs[folder.name] = spec
        elif folder.is_dir() and ((folder / "spec.json").exists() or marks.ID.fullmatch(folder.name)):
            others.append(folder.name)
    return specs, others


def _left_alone(names: Collection[str], show: int = 5) -> list[str]:
    if not names:
        return []
    shown = ", ".join([*sorted(names)[:show], *(["..."] if len(names) > show else [])])
    return [
        f"left alone: {len(names)} that are links or no runs of this version, "
        f"whose spec.json makes their name: {shown}"
    ]


def _known(names: Sequence[str], root: Path, specs: Mapping[str, RunSpec]) -> set[str]:
    """The experiments that are to be forgotten; Refused where there is no such one."""
    remembered = {name for user in users.all_of(root)[0].values() for name in user.names}
    known = remembered | {spec.use.experiment for spec in specs.values() if spec.use.experiment}
    for name in names:
        if name not in known:
            raise Refused(f"--forget {name}: nothing in {root} is of that name{nearest(name, known)}")
    return set(names)


def _agreed(question: str, ask: Callable[[str], str]) -> bool:
    """Whether the answer is a yes; without a terminal it is a no."""
    try:
        return ask(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def size(folder: Path) -> int:
    """Bytes on disk."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f} MB"
