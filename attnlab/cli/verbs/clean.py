"""`python -m attnlab clean`: lists the runs of a store that nothing refers to, and removes them after a yes.

A run stays where a report lists it, where a command that uses it has not finished, where its report is not
known here, where it is new, where a process holds it, and where a run that stays started from it. All of
that is checked again after the answer: a command that began meanwhile keeps its runs.
"""

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from attnlab.errors import Refused, nearest
from attnlab.store import runs
from attnlab.store.guards import marks, users
from attnlab.store.schema import RunSpec
from attnlab.sweep.status.states import locked

_IDS = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")


def main(options: argparse.Namespace, ask: Callable[[str], str] = input) -> int:
    """Lists, asks, removes; 1 where something could not be removed."""
    root = Path(options.given["paths.runs"])
    reports = [Path(one) for one in options.given["paths.reports"]]
    marks.refuse_foreign(root)
    for folder in reports:
        if str(folder) != "reports" and not folder.is_dir():
            raise Refused(
                f"paths.reports={folder}: there is no such folder, and its reports are to keep their runs; "
                "name the one that holds them"
            )
    specs = {path.name: spec for path in sorted(root.iterdir()) if (spec := marks.own(path))}
    _refuse_unknown(options.forget, root, specs)
    rules = (reports, set(options.forget), options.given["days"])
    reasons = _reasons(root, specs, *rules)
    sizes = {id: _size(root / id) for id in specs}
    unwanted = [id for id in specs if id not in reasons]
    print(f"{root}: {len(specs)} runs, {_megabytes(sizes.values())}")
    for reason in dict.fromkeys(reasons.values()):
        kept = [sizes[id] for id, other in reasons.items() if other == reason]
        print(f"kept: {len(kept)} {reason}, {_megabytes(kept)}")
    if strangers := marks.strangers(root):
        print(f"left alone: {len(strangers)} that no run has written: {', '.join(strangers)}")
    for id in unwanted:
        use = specs[id].use
        print(f"to remove: {root / id}  {use.experiment or '-'} {specs[id].arm}  {_megabytes([sizes[id]])}")
    what = f"{len(unwanted)} that nothing refers to, {_megabytes(sizes[id] for id in unwanted)}"
    if not unwanted:
        print("nothing to remove")
    elif not options.yes and not _is_confirmed(f"remove {what}? [y/N] ", ask):
        print("nothing removed")
        return 0
    if not (unwanted or options.forget or marks.list_interrupted_removals(root)):
        return 0
    runs.refuse_unwritable(root)
    with marks.guarding(root):
        for rest in marks.list_interrupted_removals(root):
            _remove(rest)
        specs = {id: spec for id in specs if (spec := marks.own(root / id))}  # another `clean` may have ended
        unwanted = [id for id in unwanted if id in specs]
        reasons = _reasons(root, specs, *rules)
        for id in reasons.keys() & set(unwanted):
            print(f"{root / id} stays: kept {reasons[id]}")
        outcomes = {id: _remove(root / id) for id in unwanted if id not in reasons}
        _forget(root, set(options.forget))
    removed = [sizes[id] for id, outcome in outcomes.items() if outcome == "removed"]
    if unwanted:
        print(f"removed {len(removed)} that nothing refers to, {_megabytes(removed)}")
    return int("failed" in outcomes.values())


def _remove(folder: Path) -> str:
    """Removes a run: "removed", "held" by a process, or "failed"; says what stays."""
    try:
        left = marks.remove(folder)
    except Timeout:
        print(f"{folder} stays: a process holds it")
        return "held"
    except OSError as error:
        print(f"{folder} could not be removed: {error}")
        return "failed"
    if left:
        print(f"{folder} stays for what no run has written: {', '.join(left)}")
    return "removed"


def _forget(root: Path, names: set[str]) -> None:
    """Commands of these names keep no runs any more; those that keep none and have none are forgotten."""
    for path, user in users.all_of(root)[0].items():
        named = bool(user.names & names)
        if named:
            users.forget(path, user)
            print(f"forgotten: {user.title} keeps no runs any more")
        if (named or user.forgotten or user.published) and not any((root / id).exists() for id in user.runs):
            users.ended(path)


def _refuse_unknown(names: Sequence[str], root: Path, specs: Mapping[str, RunSpec]) -> None:
    known = {name for user in users.all_of(root)[0].values() for name in user.names}
    known |= {spec.use.experiment for spec in specs.values() if spec.use.experiment}
    for name in names:
        if name not in known:
            raise Refused(f"--forget {name}: nothing in {root} is of that name{nearest(name, known)}")
        for user in users.all_of(root)[0].values():
            if name in user.names and user.is_running:
                raise Refused(
                    f"--forget {name}: its command runs (process {user.pid}); stop it first or wait for it"
                )


def _reasons(
    root: Path, specs: Mapping[str, RunSpec], reports: Iterable[Path], forget: set[str], days: int
) -> dict[str, str]:
    """The first reason, as in "that a report lists", of each run that stays. `reports`: the folders to search
    beside those that the store's commands wrote to; `forget`: names whose commands keep none.
    """
    reasons: dict[str, str] = {}

    def keep(ids: Iterable[str], reason: str) -> None:
        for id in specs.keys() & set(ids):
            reasons.setdefault(id, reason)

    commands, broken = users.all_of(root)
    listed, unreadable = _read_reports([*reports, *(Path(user.reports) for user in commands.values())])
    keep((id for id in specs if locked(root / id)), "that a process holds")
    for ids in listed.values():
        keep(ids, "that a report lists")
    for path in (*broken, *unreadable):
        keep(specs, f"since {path} cannot be read")
    remembered = {id for user in commands.values() for id in user.runs}
    for user in commands.values():
        of = f"of {user.title}"
        again = f"(--forget {user.title})"
        if user.forgotten or user.names & forget:
            continue
        if not user.published:
            keep(user.runs, f"{of}, which has not finished {again}")
        elif user.report and not Path(user.reports).is_dir():
            keep(user.runs, f"{of}, whose reports in {user.reports} cannot be seen from here {again}")
        elif user.report and Path(user.report).exists():
            shown = listed.get(os.path.realpath(user.report))
            if shown is None or not shown.isdisjoint(user.runs):
                keep(user.runs, f"{of}, whose report is there")
    for id, spec in specs.items():
        of = spec.use.experiment or ""
        if of and of not in forget and id not in remembered:
            keep([id], f"of {of}, whose report is not known here (--forget {of})")
        if id not in reasons and time.time() - _last_change(root / id) < days * 86400:
            keep([id], f"newer than {days} days")
    started = list(reasons)
    for id in started:  # grows as it goes: parents have parents
        parent = str(specs[id].config.get("parent"))
        if parent in specs and parent not in reasons:
            keep([parent], "that others of them started from")
            started.append(parent)
    return reasons


def _read_reports(folders: Iterable[Path]) -> tuple[dict[str, set[str]], list[Path]]:
    """The ids in every report.json below some folders, links followed, by its real folder; and the files and
    folders that cannot be read.
    """
    listed = dict[str, set[str]]()
    unreadable = list[Path]()

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            unreadable.append(Path(error.filename))

    seen = set[str]()
    for root in folders:
        for at, inner, files in os.walk(root, onerror=failed, followlinks=True):
            real = os.path.realpath(at)
            if real in seen:
                inner.clear()
            elif "report.json" in files:
                path = Path(at) / "report.json"
                try:
                    text = path.read_text("utf-8")
                    json.loads(text)
                except (OSError, ValueError, RecursionError):
                    unreadable.append(path)
                else:
                    listed[real] = set(_IDS.findall(text))
            seen.add(real)
    return listed, unreadable


def _is_confirmed(question: str, ask: Callable[[str], str]) -> bool:
    """Whether the answer is a yes; without a terminal it is a no."""
    try:
        return ask(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _last_change(folder: Path) -> float:
    """When a run last wrote a file. Its lock is none: who only asks whether it is held changes that."""
    return max(path.lstat().st_mtime for path in marks.written(folder) if path.name != "lock")


def _size(folder: Path) -> int:
    """Bytes of what a run has written; it may be writing now."""
    size = 0
    for path in marks.written(folder):
        for file in (path, *(() if path.is_symlink() else path.rglob("*"))):
            with suppress(FileNotFoundError):
                size += 0 if file.is_dir() else file.lstat().st_size
    return size


def _megabytes(numbers: Iterable[int]) -> str:
    return f"{sum(numbers) / 1e6:,.1f} MB"
