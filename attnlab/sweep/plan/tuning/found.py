"""What tuning has found, arm by arm: told to the report, written to tuned.yaml and read back from there."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from pydantic import FiniteFloat, ValidationError

from attnlab.errors import Refused
from attnlab.report.schema import ArmTuningFound, RateFound, TuningFound
from attnlab.store.declarations import Experiment, Tune
from attnlab.store.files import replacing
from attnlab.store.schema import Record, reading
from attnlab.sweep.plan.tuning.search import Found, Grid, Search, search

ANEW = "tuned=none trains it anew"
Value = FiniteFloat | Literal["diverged"] | None


class Row(Record):
    """What a rate gave, seed by seed; null where it was not tried."""

    lr: float
    values: list[Value]


class Kept(Record):
    """What was found for an arm, with which settings and for how many tokens."""

    settings: str
    tokens: int
    rows: list[Row]


class Tuned(Tune):
    """tuned.yaml of one size: what was declared, and what came of it."""

    metric: str
    arms: dict[str, Kept]


@dataclass(frozen=True)
class Entry:
    """What is known of an arm. `settings` tells one configuration of it from another, its rate and seeds
    aside: that of the tuning, and that which is `compared`. Tokens: spent on the search, the `most` that may
    be, and those of the `comparison`.
    """

    search: Search
    settings: str
    compared: str
    tokens: int
    most: int
    comparison: int


@dataclass
class Tuning:
    """What is known of every arm, in a metric of which values in one direction are better."""

    grid: Grid
    metric: str
    direction: str
    size: str
    committed: bool = False
    arms: dict[str, Entry] = field(default_factory=dict)

    def search(self, found: Found) -> Search:
        """The search of an arm whose values of the metric are found so."""

        def loss(rate: float, seed: int) -> float | None:
            value = found(rate, seed)
            return value if value is None or math.isinf(value) else self._turned(value)

        return search(self.grid, loss)

    def _turned(self, value: float) -> float:
        return value if self.direction == "lower" else -value

    def picked(self, arm: str) -> float | None:
        """The arm's rate; None where it is not known yet, or diverges itself."""
        found = self.arms[arm].search
        return found.best if self._median(found, found.best) not in (None, "diverged") else None

    def lack(self, arm: str) -> str:
        """Why an arm has no rate."""
        found = self.arms[arm].search
        if found.best is not None:
            return f"even at its best learning rate, {found.best:g}, half of the runs or more diverged"
        missing = [f"{rate:g} with seed {seed}" for (rate, seed), loss in found.asked.items() if loss is None]
        more = f" and {len(missing) - 2} more" if len(missing) > 2 else ""
        return f"its learning rate is not known: no result at {', '.join(missing[:2])}{more}"

    def stale(self) -> list[str]:
        """A line for each arm whose rate was found with other settings than the ones compared."""
        arms = [arm for arm, entry in self.arms.items() if entry.settings != entry.compared]
        return [f"{arm}: its learning rate was tuned for other settings; {ANEW}" for arm in arms]

    def _median(self, found: Search, rate: float | None) -> Value:
        return None if rate is None else self._value(found.median(rate, self.grid.seeds))

    def _value(self, loss: float | None) -> Value:
        return None if loss is None else "diverged" if math.isinf(loss) else self._turned(loss)

    def _rows(self, found: Search) -> list[Row]:
        return [
            Row(lr=rate, values=[self._value(loss) for loss in found.losses(rate, self.grid.seeds)])
            for rate in found.rates
        ]

    def declared(self) -> dict[str, Any]:
        """What was asked for: the keys of `tune`, and the metric."""
        grid = self.grid
        return {
            "lr": list(grid.rates), "seeds": list(grid.seeds), "widen": grid.widen, "share": grid.share,
            "metric": self.metric, "steady": grid.steady,
        }  # fmt: skip

    def told(self) -> TuningFound:
        """As the report shows it."""
        arms = {arm: self._told(arm) for arm in self.arms}
        return TuningFound(**self.declared(), committed=self.committed, arms=arms)

    def _told(self, arm: str) -> ArmTuningFound:
        entry = self.arms[arm]
        picked = self.picked(arm)
        found = entry.search
        return ArmTuningFound(
            picked=picked,
            lack=self.lack(arm) if picked is None else None,
            at_end=picked in (found.rates[0], found.rates[-1]),
            same_settings=entry.settings == entry.compared,
            tokens=entry.tokens,
            comparison=entry.comparison,
            rows=[
                RateFound(
                    **row.plain(),
                    median=self._median(found, row.lr),
                    tried=sum((row.lr, seed) in found.asked for seed in self.grid.seeds),
                )
                for row in self._rows(found)
            ],
        )

    def write(self, path: Path, name: str) -> None:
        """tuned.yaml, as conf/tuned/NAME.yaml would hold it."""
        arms = {
            arm: Kept(settings=entry.settings, tokens=entry.tokens, rows=self._rows(entry.search))
            for arm, entry in self.arms.items()
        }
        declared = {key: value for key, value in self.declared().items() if value is not None}
        tuned = Tuned(**declared, arms=arms)
        head = (
            f"# @package _global_\n# Learning rates tuned for {name}: every rate that was tried, by seed.\n"
        )
        with replacing(path) as temporary:
            text = OmegaConf.to_yaml(OmegaConf.create({"tuned": {self.size: tuned.plain()}}))
            temporary.write_text(head + text, "utf-8")


def kept(experiment: Experiment, wanted: Tuning) -> Tuned | None:
    """What `tuned` has for this size; Refused where that is not what is wanted, None where it has nothing."""
    found = (experiment.tuned or {}).get(wanted.size)
    if found is None:
        return None
    what = f"tuned of {experiment.name} at size {wanted.size}"
    try:
        tuned = Tuned.model_validate(found)
    except ValidationError as error:
        raise Refused(f"{reading(error, f'{what} has not the form of today')}; {ANEW}") from error
    if any(getattr(tuned, key) != value for key, value in wanted.declared().items()):
        raise Refused(f"{what} was found with another tune or metric than today's; {ANEW}")
    return tuned
