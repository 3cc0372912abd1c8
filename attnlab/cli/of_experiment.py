"""The finished run of an experiment's arm and seed, found in the store without planning the experiment anew.

Surprising: a run is known to the experiment that it was first trained for, and to every report that shows it,
so a baseline that several experiments share is found for each of them. Code may have been edited since.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnlab.cli.parser import PROGRAM
from attnlab.errors import Refused, format_seeds, nearest, printable
from attnlab.report.schema import load
from attnlab.store import runs
from attnlab.store.guards import users
from attnlab.store.schema import RunSpec

KEYS = ("experiment", "arm", "seed")


def find(given: Mapping[str, Any], words: Sequence[str]) -> Path:
    """The folder of the run, of several the one that was trained last; `words` (size=S, data=code) are what
    was chosen of its axes. Says which it is. Refused, one line, where there is none.
    """
    store = Path(given["runs"])
    name = given["experiment"]
    arm = given.get("arm")
    used = list(dict.fromkeys(_used(store, name)))
    arms = sorted({of for _, of, _ in used})
    if arm is None:
        raise Refused(f"experiment={name} of which arm? Add arm={'|'.join(arms) or 'NAME'}")
    begun = [(id_, of, seed) for id_, of, seed in used if id_ and (store / id_ / "spec.json").is_file()]
    specs = [(runs.spec(store / id_), of, seed) for id_, of, seed in begun]
    of_arm = [(spec, seed) for spec, of, seed in specs if of == arm]
    named = [(spec, seed) for spec, seed in of_arm if all(_chose(spec, word) for word in words)]
    records = [(record, seed) for spec, seed in named if (record := runs.record(store / spec.id))]
    finished = [(record, seed) for record, seed in records if record.done]
    seed = given.get("seed", min((seed for _, seed in finished), default=0))
    done = [record for record, of_seed in finished if of_seed == seed]
    if not done:
        near = nearest(arm, arms) if arms and arm not in arms else ""
        typed = [f"seed={seed}"] if "seed" in given else []
        again = " ".join([PROGRAM, f"+experiment={name}", *typed, *words])
        asked = "".join(f", {word}" for word in (*typed, *words))
        seeds = f"; finished seeds: {format_seeds(seed for _, seed in finished)}" if finished else ""
        said = f"no finished run of {name}, arm {arm}{asked} in {store}{near}{seeds}"
        raise Refused(f"{said}; train its runs with: {again}")
    *others, last = sorted(done, key=lambda record: (record.started or "", record.id))
    axes = {spec.id: spec.use.axes for spec, _ in named}
    print(printable(f"run {last.id}: {arm}, seed {seed}, {_told(axes[last.id])}"))
    for other in others:
        print(printable(f"there is run={other.id} too: {_told(axes[other.id])}"))
    return store / last.id


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
