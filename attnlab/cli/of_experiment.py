"""The finished run of an experiment's arm and seed, found in the store without planning the experiment anew.

Surprising: a run is known to the experiment that it was first trained for, and to every report that shows it,
so a baseline that several experiments share is found for each of them. Code may have been edited since.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.cli.parser import PROGRAM
from attnlab.errors import Refused, format_seeds, nearest, printable
from attnlab.report.schema import load
from attnlab.store import runs
from attnlab.store.guards import users
from attnlab.store.schema import RunRecord, RunSpec

KEYS = ("experiment", "arm", "seed")


@dataclass(frozen=True)
class _Found:
    """A run of the store, under the seed that it has in the experiment."""

    spec: RunSpec
    seed: int
    record: RunRecord | None

    @property
    def is_done(self) -> bool:
        return self.record is not None and self.record.done


def find(given: Mapping[str, Any], words: Sequence[str]) -> Path:
    """The folder of the run, of several the one that was trained last; `words` (size=S, data=code) are what
    was chosen of its axes. Prints which it is.

    Raises:
        Refused: one line, where there is none.
    """
    store = Path(given["runs"])
    name = given["experiment"]
    used = list(dict.fromkeys(_used(store, name)))
    arms = sorted({of for _, of, _ in used})
    arm = given.get("arm")
    if arm is None:
        raise Refused(f"experiment={name} of which arm? Add arm={'|'.join(arms) or 'NAME'}")
    ids = [(id_, seed) for id_, of, seed in used if of == arm]
    finished = [found for found in _chosen(store, ids, words) if found.is_done]
    seed = given.get("seed", min((found.seed for found in finished), default=0))
    done = [found for found in finished if found.seed == seed]
    if not done:
        raise _missing(given, words, arms, [found.seed for found in finished])
    *others, last = sorted(done, key=_trained)
    print(printable(f"run {last.spec.id}: {arm}, seed {seed}, {_told(last.spec.use.axes)}"))
    for other in others:
        print(printable(f"there is run={other.spec.id} too: {_told(other.spec.use.axes)}"))
    return store / last.spec.id


def _trained(found: _Found) -> tuple[str, str]:
    """When it was trained, to sort by."""
    return (found.record and found.record.started) or "", found.spec.id


def _chosen(store: Path, ids: Iterable[tuple[str, int]], words: Sequence[str]) -> Iterator[_Found]:
    """Those of the runs that were begun and composed with these options."""
    for id_, seed in ids:
        if id_ and (store / id_ / "spec.json").is_file():
            spec = runs.spec(store / id_)
            if all(_chose(spec, word) for word in words):
                yield _Found(spec, seed, runs.record(store / spec.id))


def _missing(
    given: Mapping[str, Any], words: Sequence[str], arms: Sequence[str], seeds: Sequence[int]
) -> Refused:
    """What to say where no run is found: the finished `seeds` of the arm, and how to train it."""
    arm = given["arm"]
    name = given["experiment"]
    near = nearest(arm, arms) if arms and arm not in arms else ""
    typed = [f"seed={given['seed']}"] if "seed" in given else []
    again = " ".join([PROGRAM, f"+experiment={name}", *typed, *words])
    asked = "".join(f", {word}" for word in (*typed, *words))
    there = f"; finished seeds: {format_seeds(seeds)}" if seeds else ""
    said = f"no finished run of {name}, arm {arm}{asked} in {given['runs']}{near}{there}"
    return Refused(f"{said}; train its runs with: {again}")


def _used(store: Path, name: str) -> Iterator[tuple[str, str, int]]:
    """(id, arm, seed) of the runs that were trained for an experiment, or stand in its reports."""
    for path in sorted(store.glob("*/spec.json")):
        spec = runs.spec(path.parent)
        if spec.use.experiment == name:
            yield spec.id, spec.arm, spec.seed
    for user in users.all_of(store)[0].values():
        if user.experiment != name or user.report is None:
            continue
        with suppress(ValueError):
            for run in load(Path(user.report) / "report.json").runs:
                yield run.id, run.arm, run.seed


def _chose(spec: RunSpec, word: str) -> bool:
    """Whether a run was composed with this option. Refused for a word that is no axis of it."""
    key, _, value = word.partition("=")
    if key not in spec.use.axes:
        raise Refused(f"{word}: no axis of the run, and no key{nearest(key, [*spec.use.axes, *KEYS])}")
    return spec.use.axes[key] == value


def _told(axes: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={axes[key]}" for key in ("size", "data") if key in axes)
