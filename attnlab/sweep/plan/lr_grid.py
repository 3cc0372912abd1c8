"""The learning rate, tuned for every arm alike: a grid on seeds of its own, and per arm the best of it.

An experiment declares `tune: {lr: [...], seeds: [...]}`. The grid is trained like any run and stays in the
store; what it found is written beside the report as tuned.yaml. Committed as conf/tuned/NAME.yaml it is read
back for the size that it was trained at, and nothing is trained for it again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from omegaconf import OmegaConf

from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.store.declarations import Experiment
from attnlab.store.files import replacing
from attnlab.store.schema import RunRecord

KEY, FIGURE = "optim.lr", "lr"
Lookup = Callable[[str], RunRecord | None]  # a run's id to its record, None where there is none


@dataclass(frozen=True)
class Grid:
    """Every arm is trained at every rate with every seed; the seeds are none of the comparison's."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...]


@dataclass
class Tuning:
    """What a grid has found: for each arm its `rows`, a row {lr, values by seed (None: not finished)}.

    `settings` tells one configuration of an arm from another, its rate and seeds aside; `compared` has those
    that the comparison trains.
    """

    grid: Grid
    metric: str
    direction: str
    size: str
    committed: bool = False
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    compared: dict[str, str] = field(default_factory=dict)

    def picked(self, arm: str) -> float | None:
        """The arm's best rate by the mean over the seeds; a rate with an unfinished run is out."""
        means = {
            row["lr"]: mean(row["values"]) for row in self.arms[arm]["rows"] if None not in row["values"]
        }
        better = min if self.direction == "lower" else max
        return better(means, key=lambda rate: means[rate]) if means else None

    def told(self) -> dict[str, Any]:
        """As the report shows it."""
        arms = {
            arm: {
                **entry,
                "picked": self.picked(arm),
                "same_settings": entry["settings"] == self.compared.get(arm),
            }
            for arm, entry in self.arms.items()
        }
        return {
            "rates": list(self.grid.rates), "seeds": list(self.grid.seeds), "metric": self.metric,
            "committed": self.committed, "arms": arms,
        }  # fmt: skip

    def write(self, path: Path, name: str) -> None:
        """tuned.yaml, as conf/tuned/NAME.yaml would hold it."""
        kept = {self.size: {"seeds": list(self.grid.seeds), "metric": self.metric, "arms": self.arms}}
        head = f"# @package _global_\n# Learning rates tuned for {name}: every rate of the grid, by seed.\n"
        with replacing(path) as temporary:
            temporary.write_text(head + OmegaConf.to_yaml(OmegaConf.create({"tuned": kept})), "utf-8")


def grid(experiment: Experiment) -> Grid | None:
    """The declared grid, checked; None where the experiment tunes nothing."""
    declared, name = experiment.tune, experiment.name
    if declared is None:
        return None
    rates, seeds = declared.lr, declared.seeds
    if not (len(set(rates)) == len(rates) > 1 and all(rate > 0 for rate in rates)):
        raise Refused(f"tune.lr={rates} of {name}: give two or more different rates above 0", ("tune", "lr"))
    if not seeds:
        raise Refused(f"tune.seeds of {name} is empty: give a list of integers", ("tune", "seeds"))
    if twice := set(seeds) & set(experiment.seeds):
        raise Refused(
            f"tune.seeds of {name} has seed {min(twice)} of the comparison: give tuning seeds of its own, "
            "or rates are picked on the runs that they are judged by",
            ("tune", "seeds"),
        )
    return Grid(tuple(float(rate) for rate in sorted(rates)), tuple(dict.fromkeys(seeds)))


def committed(experiment: Experiment, size: str, wanted: Grid) -> Tuning | None:
    """What was tuned before at this size, where it lies in `tuned`; Refused where it is not the same grid."""
    kept = (experiment.tuned or {}).get(size)
    if kept is None:
        return None
    name = experiment.name
    tuning = Tuning(wanted, kept["metric"], experiment.direction, size, committed=True, arms=kept["arms"])
    for arm in experiment.arms:
        rows = (kept["arms"].get(arm) or {}).get("rows") or []
        if [row["lr"] for row in rows] != list(wanted.rates) or kept["seeds"] != list(wanted.seeds):
            raise Refused(
                f"tuned of {name} has not the grid of tune for arm {arm}: tuned=none trains it anew"
            )
        if tuning.picked(arm) is None:
            raise Refused(f"tuned of {name} has no finished rate for arm {arm}: tuned=none trains it")
    return tuning


def settings(config: Mapping[str, Any]) -> str:
    """A word for an arm's configuration, its seeds and its learning rate aside."""
    optim = {key: value for key, value in config.get("optim", {}).items() if key not in ("lr", "min_lr")}
    # the prefix: a digest alone may read as a number, 1e5 for one
    return "config-" + fingerprint.digest(fingerprint.unseeded({**config, "optim": optim}), 8)


def rows(runs: Mapping[float, Sequence[str]], metric: str, lookup: Lookup) -> list[dict[str, Any]]:
    """A row per rate from its runs' ids. A run that diverged or failed has no value."""
    return [
        {"lr": rate, "values": [_value(lookup(run_id), metric) for run_id in ids]}
        for rate, ids in runs.items()
    ]


def _value(record: RunRecord | None, metric: str) -> float | None:
    return record.metrics.get(metric) if record is not None and record.done else None
