"""What was declared is on record: `declarations.jsonl` in a store, which only ever grows.

A line holds what an experiment declares before its first run. It is judged once, by the lines before it:
where it decides otherwise than an earlier one of the same experiment and size, of which results were known by
then, it says so for good. The same again is no new declaration: the first one stands.

Surprising: the ids of the runs are in lines of their own. They change where more seeds, or another version of
attnlab, carry out what was declared, which is no change of it; and `clean` keeps a run whose id stands in a
report, where a declaration travels. These lines say too how many results were known: runs may be removed.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab.errors import Refused
from attnlab.store import fingerprint, runs
from attnlab.store.declarations import Experiment
from attnlab.store.files import append, no_file, read_json
from attnlab.store.guards import marks
from attnlab.store.guards.terms import Terms, changed, terms
from attnlab.store.schema import Record

Ids = Mapping[str, Mapping[int, str]]  # by arm and seed


class Earlier(Record):
    """A declaration of which `known` pairs of results were known when another was made; what that changed."""

    hash: str
    time: str
    known: int
    changed: tuple[str, ...]


class Declared(Record):
    """A declaration. `hash` is of experiment, size and content. Of its `pairs` (two arms, one seed) `known`
    were finished before: trained for something else, or by a version that kept no log.
    """

    hash: str
    time: str
    experiment: str
    size: str | None
    command: str
    content: Terms
    pairs: int
    known: int
    after: tuple[Earlier, ...]

    @property
    def departures(self) -> list[str]:
        """What was changed after results were known, in words: a line for each earlier declaration."""
        return [
            f"on {self.time} this was changed, after {_pairs(earlier.known)} known of what was declared on "
            f"{earlier.time}: {'; '.join(earlier.changed)}"
            for earlier in self.after
        ]


class Ran(Record):
    """Runs of a declaration that no line before has, and how many of its pairs were known with them."""

    declared: str
    time: str
    runs: dict[str, dict[int, str]]
    known: int


@dataclass
class Log:
    """A log as it was read; `broken` has the numbers of the lines that are cut short or no such record."""

    declared: dict[str, Declared] = field(default_factory=dict)
    ran: dict[str, list[Ran]] = field(default_factory=dict)
    broken: list[int] = field(default_factory=list)

    def ids(self, of: Declared) -> set[tuple[str, int, str]]:
        """The runs of a declaration: arm, seed, id."""
        return {run for line in self.ran.get(of.hash, []) for run in _runs(line.runs)}

    def told(self, of: Declared) -> int:
        """The most pairs of a declaration that a line knows of."""
        return max([of.known, *(line.known for line in self.ran.get(of.hash, []))])


def declare(
    root: Path,
    name: str,
    experiment: Experiment,
    recipes: Mapping[str, str | None],
    texts: Mapping[str, str | None],
    ids: Ids,
    command: str,
    slope: float | None = None,
) -> Declared:
    """Puts on record what an experiment declares, unless it is, and which runs are to carry it out; the
    declaration that stands. `name` tells one place where it is asked from another. `slope`: nats per doubling
    of training. Refused where that cannot be written.
    """
    size = experiment.size
    content = terms(experiment, recipes, texts, slope)
    key = _hash(name, size, content.plain())
    with _writing(root) as path:
        log = read(root)
        declared = log.declared.get(key)
        if declared is None:
            found = _runs(ids)
            declared = Declared(
                hash=key,
                time=_now(),
                experiment=name,
                size=size,
                command=command,
                content=content,
                pairs=len(content.compared) * len({seed for _, seed, _ in found}),
                known=_finished(root, content, found),
                after=tuple(_contradicted(root, log, name, size, content)),
            )
            append(path, _line(declared))
        _tell(root, log, declared, ids)
    return declared


def keep_known(root: Path, declared: Declared) -> None:
    """Has the log say how many pairs are known by now: they stay known, whatever becomes of their runs. Where
    it cannot be written, the runs still say so.
    """
    with suppress(Refused), _writing(root):
        _tell(root, read(root), declared, {})


def refuse_unwritable(root: Path) -> None:
    """Refused where it is certain, before anything is trained, that nothing can be put on record."""
    path = root / marks.LOG
    with _refusing(path):
        if path.exists():
            with path.open("ab"):
                pass


def entries(root: Path) -> list[Declared]:
    """The declarations of a store, the earliest first."""
    return list(read(root).declared.values())


def read(root: Path) -> Log:
    """The log of a store. OSError where it is there and cannot be read."""
    log = Log()
    path = root / marks.LOG
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                _add(log, json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):  # pydantic's own is a ValueError
            log.broken.append(number)
    return log


def _add(log: Log, line: dict[str, Any]) -> None:
    if "content" not in line:
        ran = Ran.model_validate(line)
        log.ran.setdefault(ran.declared, []).append(ran)
        return
    declared = Declared.model_validate(line)
    if declared.hash != _hash(line["experiment"], line["size"], line["content"]):
        raise ValueError("the content is not what was declared")
    log.declared.setdefault(declared.hash, declared)


def _contradicted(root: Path, log: Log, name: str, size: str | None, content: Terms) -> Iterator[Earlier]:
    """The declarations of an experiment that decide otherwise, and of which a result is known."""
    for one in log.declared.values():
        if (one.experiment, one.size) == (name, size) and (lines := changed(one.content, content)):
            known = max(log.told(one), _finished(root, one.content, log.ids(one)))
            if known:
                yield Earlier(hash=one.hash, time=one.time, known=known, changed=tuple(lines))


def _tell(root: Path, log: Log, declared: Declared, ids: Ids) -> None:
    """Appends what no line says yet of the runs of a declaration, if there is anything."""
    old = log.ids(declared)
    told = log.told(declared)
    new: dict[str, dict[int, str]] = {}
    for arm, seed, id in sorted(_runs(ids) - old):
        new.setdefault(arm, {})[seed] = id
    known = max(told, _finished(root, declared.content, old | _runs(ids)))
    if new or known > told:
        ran = Ran(declared=declared.hash, time=_now(), runs=new, known=known)
        append(root / marks.LOG, _line(ran))


def _runs(ids: Ids) -> set[tuple[str, int, str]]:
    return {(arm, seed, id) for arm, by_seed in ids.items() for seed, id in by_seed.items()}


def _finished(root: Path, content: Terms, ids: set[tuple[str, int, str]]) -> int:
    """How many pairs have both of their runs finished."""
    done = {(arm, seed) for arm, seed, id in ids if _is_finished(root / id)}
    seeds = {seed for _, seed in done}
    return sum(all((arm, seed) in done for arm in pair) for pair in content.compared for seed in seeds)


def _is_finished(folder: Path) -> bool:
    """Whether a run had a result: also one that is trained again, or whose record another version wrote."""
    for name in ("run.json", runs.BEFORE):
        with suppress(OSError):
            record = read_json(folder / name)
            if isinstance(record, dict) and record.get("status") == "done":
                return True
    return False


@contextmanager
def _writing(root: Path) -> Iterator[Path]:
    """Holds the store, and gives the path of its log."""
    path = root / marks.LOG
    with _refusing(path):
        marks.mark(root)
        with marks.guarding(root):
            yield path


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Refused, one line, where the log cannot be read or written."""
    if what := no_file(path):
        raise Refused(f"{path} is {what}, and what is declared is put on record there: move it away")
    try:
        yield
    except OSError as error:
        raise Refused(
            f"{path}: what is declared cannot be put on record ({error.strerror}), and nothing is compared "
            "before it is: make room, or the file writable, or name another store with paths.runs="
        ) from error


def _hash(experiment: str, size: str | None, content: Mapping[str, Any]) -> str:
    return fingerprint.digest({"experiment": experiment, "size": size, "content": content}, 64)


def _line(record: Record) -> str:
    return json.dumps(record.plain(), allow_nan=False)


def _pairs(number: int) -> str:
    return "1 pair of results was" if number == 1 else f"{number} pairs of results were"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
