"""What the baseline at half and at twice its steps tells: the slope between them, in nats per doubling of
training, and with it what a margin that is declared in training is in nats.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnlab.report.schema import ExchangeFound, ExchangeRow, Slope
from attnlab.store import answers, fingerprint
from attnlab.store.declarations import Experiment
from attnlab.store.schema import RunRecord, RunSpec
from attnlab.store.source import sources

LEVEL = 0.95
Lookup = Callable[[str], RunRecord | None]  # a run's id to its record, None where there is none


@dataclass(frozen=True)
class Exchange:
    """The runs, seed by seed at half and at twice the `steps`."""

    baseline: str
    metric: str
    steps: int
    runs: list[RunSpec]

    def but(self, runs: list[RunSpec]) -> "Exchange":
        """The same of other specs of these runs."""
        return replace(self, runs=runs)

    def told(self, lookup: Lookup) -> ExchangeFound:
        """As the report shows it: a row per seed (None: not finished), the slope of each in nats per doubling
        and their mean with its interval; what a doubling is `worth` in words, or `why` nobody can say.
        """
        few = half(self.steps)
        many = 2 * self.steps
        rows = []
        slopes = list[float]()
        for short, long in zip(self.runs[::2], self.runs[1::2], strict=True):
            early, late = (_value(lookup(run.id), self.metric) for run in (short, long))
            rows.append(ExchangeRow(seed=short.seed, half=early, twice=late, ids=[short.id, long.id]))
            if early is not None and late is not None:
                slopes.append((early - late) / math.log2(many / few))
        slope: Slope | None = None
        why: str | None
        if len(slopes) < len(rows):
            why = f"{len(slopes)} of its {len(rows)} pairs of runs are finished"
        else:
            mean, low, high = _interval(self.runs[0].config, slopes)
            slope = Slope(mean=mean, low=low, high=high, level=LEVEL)
            why = _useless(mean, low, high)
        return ExchangeFound(
            metric=self.metric,
            seeds=[run.seed for run in self.runs[::2]],
            steps=[few, self.steps, many],
            tokens=sum(run.estimate.tokens or 0 for run in self.runs),
            rows=rows,
            slopes=slopes,
            slope=slope,
            worth=worth(slope.mean, slope.low, slope.high) if slope and not why else None,
            why=why,
        )


def _interval(config: Mapping[str, Any], slopes: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and t interval; kept, since scipy takes longer to import than all the rest of a plan."""
    key = fingerprint.digest([list(slopes), LEVEL, sources(["attnlab.stats.difference"])])
    match answers.kept(config, "seeds", key):
        case [float(mean), float() | None as low, float() | None as high]:
            return mean, low, high
    from attnlab.stats import paired

    found = paired(slopes, LEVEL)
    answers.keep(config, "seeds", key, [found.mean, found.low, found.high])
    return found.mean, found.low, found.high


def slope(exchange: Exchange | None, lookup: Lookup) -> float | None:
    """Nats per doubling of training; None where there is none to go by."""
    told = exchange.told(lookup) if exchange else None
    return told.slope.mean if told and told.slope and not told.why else None


def half(steps: int) -> int:
    """Half of the steps, rounded up."""
    return -(-steps // 2)


def worth(mean: float, low: float | None, high: float | None) -> str:
    """A slope with as many digits as its interval leaves."""
    assert low is not None, "a slope to go by has an interval"
    assert high is not None
    digits = max(0, 1 - math.floor(math.log10(high - low)))
    return f"{mean:.{digits}f} nats [{low:.{digits}f}, {high:.{digits}f}]"


def _useless(mean: float, low: float | None, high: float | None) -> str | None:
    """Why a slope converts nothing."""
    if low is None or high is None:
        return f"a doubling of training lowers the loss by {mean:.3g} nats with every seed alike: no spread"
    if low <= 0:
        return (
            f"a doubling of training lowers the loss by {worth(mean, low, high)}, which may be nothing: give "
            "exchange more seeds, or the margin in nats"
        )
    return None


def _value(record: RunRecord | None, metric: str) -> float | None:
    return record.metrics.get(metric) if record is not None and record.done else None


def lines(experiment: Experiment, exchange: Exchange | None, lookup: Lookup) -> list[str]:
    """What training is worth and what that makes of the margin, or why nobody can say; in words."""
    if exchange is None:
        return []
    told = exchange.told(lookup)
    asked = experiment.in_training
    if told.why or told.slope is None:
        waits = (
            f"; nothing is compared before that is known, for the sake of {'; '.join(asked)}" if asked else ""
        )
        return [f"{experiment.name}: what training is worth is not known: {told.why}{waits}"]
    size = f" at size {experiment.size}" if experiment.size else ""
    return [
        f"{experiment.name}: a doubling of training is worth {told.worth}{size}",
        *(f"{words}: {experiment.nats(amount, told.slope.mean):g} nats" for words, amount in asked.items()),
    ]
