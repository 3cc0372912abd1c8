"""Why `clean` keeps a run: who refers to it, as far as can be known, and where it cannot, everything stays.

A run is referred to by a report in which its id stands, wherever that lies below a folder of reports; by the
commands that the store remembers (`store/guards/users.py`); by a declared experiment that would still find
it, its source being today's; by a process that trains it; and by a run that stays and started from it.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attnlab.config import CONF
from attnlab.store.guards import users
from attnlab.store.guards.users import User
from attnlab.store.schema import RunSpec
from attnlab.store.source import sources
from attnlab.sweep.status.states import locked

_IDS = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")


@dataclass
class Kept:
    """`why`: a run's id -> the first reason found, as in "3 that a report lists". `over`: users that keep
    nothing any more; `forgotten`: those that a person has named.
    """

    why: dict[str, str] = field(default_factory=dict)
    over: dict[Path, User] = field(default_factory=dict)
    forgotten: dict[Path, User] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def keep(self, ids: Iterable[str], reason: str) -> None:
        for name in ids:
            self.why.setdefault(name, reason)

    def told(self) -> list[str]:
        """A line per reason, with the number of its runs."""
        reasons = list(self.why.values())
        return [
            *self.notes,
            *(f"kept: {reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons)),
        ]


@dataclass(frozen=True)
class Listed:
    """A report.json: the ids in its text, and whether it could be read."""

    path: Path
    ids: frozenset[str]
    readable: bool


def decide(
    root: Path, specs: Mapping[str, RunSpec], reports: Iterable[Path], forget: Collection[str]
) -> Kept:
    """Which runs of a store stay. `reports`: folders of reports, beside those that the store's users have
    written to; `forget`: names of experiments that keep nothing by themselves.
    """
    kept = Kept()
    found, broken = users.all_of(root)
    kept.keep((name for name in specs if locked(root / name)), "that a process holds")
    listed, closed = _reports([*reports, *(Path(user.reports) for user in found.values())], found.values())
    for report in listed.values():
        kept.keep(report.ids & specs.keys(), "that a report lists")
    for report in listed.values():
        if not report.readable:
            _keep_unreadable(kept, report.path, specs, found.values())
    for path in (*closed, *broken):
        kept.keep(specs, f"since {path} cannot be read")
    for path, user in found.items():
        _keep_users(kept, path, user, specs, listed, forget)
    remembered = {name for user in found.values() for name in user.runs}
    declared = experiments()
    for name, spec in specs.items():
        of = spec.use.experiment
        asked = of is not None and of not in forget and (of in declared or name not in remembered)
        if name not in kept.why and asked and _is_todays(spec):
            kept.keep([name], f"of {of}, which the same command would find again")
    kept.keep(_ancestors(kept.why, specs), "that others of them started from")
    return kept


def _keep_users(
    kept: Kept,
    path: Path,
    user: User,
    specs: Mapping[str, RunSpec],
    listed: Mapping[str, Listed],
    forget: Collection[str],
) -> None:
    """What a command said that it uses."""
    named = bool(user.names & set(forget))
    if user.alive and not user.published:
        kept.keep(specs.keys() & set(user.runs), f"of {user.title}, which runs now")
        if named:
            kept.notes.append(f"{user.title} runs now (process {user.pid}): it is not forgotten")
    elif user.forgotten:
        kept.over[path] = user
    elif named:
        kept.forgotten[path] = user
    elif reason := _reason(user, listed):
        kept.keep(specs.keys() & set(user.runs), f"of {user.title}, {reason}")
    else:
        kept.over[path] = user


def _reason(user: User, listed: Mapping[str, Listed]) -> str:
    """Why a command that no longer runs keeps its runs; nothing where its report is gone, or another's."""
    if user.report is None or not user.published:
        return f"which was not finished (--forget {user.title})"
    if not Path(user.reports).parent.exists():
        return f"whose {user.reports} cannot be seen from here (--forget {user.title})"
    report = listed.get(os.path.realpath(user.report))
    if report is None:
        return "whose report's folder is there" if Path(user.report).exists() else ""
    return "whose report is there" if not report.readable or report.ids & set(user.runs) else ""


def _keep_unreadable(kept: Kept, path: Path, specs: Mapping[str, RunSpec], known: Iterable[User]) -> None:
    """All that a report could list that cannot be read: the runs of who wrote it; where nobody says that he
    did, all runs.
    """
    folder = os.path.realpath(path.parent)
    writers = [
        user for user in known if user.published and user.report and os.path.realpath(user.report) == folder
    ]
    if not writers:
        kept.keep(specs, f"since {path} cannot be read as a report")
        return
    names = {user.experiment for user in writers}
    ids = {name for user in writers for name in user.runs}
    ids |= {name for name, spec in specs.items() if spec.use.experiment in names}
    kept.keep(specs.keys() & ids, f"of {writers[0].title}: {path} cannot be read")


def _reports(folders: Iterable[Path], known: Iterable[User]) -> tuple[dict[str, Listed], list[Path]]:
    """Every report.json below some folders, links followed, by its real folder; and what cannot be listed."""
    ours = {os.path.realpath(user.report) for user in known if user.report}
    listed, closed, seen = dict[str, Listed](), list[Path](), set[str]()

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            closed.append(Path(error.filename))

    for root in folders:
        for at, inner, files in os.walk(root, onerror=failed, followlinks=True):
            real = os.path.realpath(at)
            if real in seen:
                inner.clear()
                continue
            seen.add(real)
            if "report.json" in files:
                listed[real] = _listed(Path(at) / "report.json", real in ours)
    return listed, closed


def _listed(path: Path, ours: bool) -> Listed:
    """A file of this name that is whole JSON, but nothing like a report, is somebody else's: no run is kept
    for it, unless a report of ours was written there.
    """
    try:
        raw = path.read_bytes()
    except OSError:
        return Listed(path, frozenset(), readable=False)
    ids = frozenset(_IDS.findall(raw.decode("utf-8", errors="replace")))
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return Listed(path, ids, readable=False)
    whole = isinstance(content, dict) and isinstance(content.get("runs"), list)
    like = isinstance(content, dict) and bool(content.keys() & {"schema", "verdict", "runs"})
    return Listed(path, ids, readable=whole or not (like or ours))


def _ancestors(ids: Iterable[str], specs: Mapping[str, RunSpec]) -> set[str]:
    """The runs that these started from, and those that they started from, and so on."""
    parents = {name: spec.config.get("parent") for name, spec in specs.items()}
    ancestors: set[str] = set()
    queue = list(ids)
    while queue:
        parent = parents.get(queue.pop())
        if parent and parent not in ancestors:
            ancestors.add(parent)
            queue.append(parent)
    return ancestors & specs.keys()


def _is_todays(spec: RunSpec) -> bool:
    """Whether the same command would find this run again: its source is as it was, or cannot be seen here."""
    was = spec.identity.get("source") or {}
    return bool(was) and all(_is_same(module, was[module]) for module in was)


def _is_same(module: str, digest: str) -> bool:
    today = sources([module]).get(module)
    return today == digest or (today is None and not module.startswith("attnlab."))


def experiments() -> set[str]:
    return {path.stem for path in (CONF / "experiment").glob("*.yaml")}
