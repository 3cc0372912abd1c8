"""Results of learning-rate tuning per arm: summarized for the report, written to tuned.yaml and read back."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from pydantic import FiniteFloat, ValidationError

from attnlab.errors import InvalidConfig
from attnlab.report.schema import ArmTuningResult, LearningRateResult, TuningResult
from attnlab.store.atomic_files import replace_atomically
from attnlab.store.experiment_schema import Experiment, TuningConfig
from attnlab.store.run_schema import FrozenModel, convert_validation_error
from attnlab.sweep.plan.tuning.lr_search import LossLookup, RateGrid, SearchState, run_search

RETUNE_HINT = "tuned=none tunes it again"
LossValue = FiniteFloat | Literal["diverged"] | None


class RateRow(FrozenModel):
    """The losses at one rate, seed by seed; null if not tried."""

    lr: float
    values: list[LossValue]


class TunedArm(FrozenModel):
    """The search of one arm, with the digest of its settings and the tokens it took."""

    settings: str
    tokens: int
    rows: list[RateRow]


class TunedRates(TuningConfig):
    """The content of tuned.yaml for one size: the declared tuning and its results."""

    metric: str
    arms: dict[str, TunedArm]


@dataclass(frozen=True)
class ArmSearch:
    """The search of one arm.

    `settings` is a digest of the arm's config without learning rate and seeds: as tuned, and as compared.
    The token counts are those of the search so far, its maximum, and the arm's part of the comparison.
    """

    search: SearchState
    settings: str
    compared_settings: str
    search_tokens: int
    max_tokens: int
    comparison_tokens: int


@dataclass
class TuningState:
    """The searches of all arms, in a metric with one direction."""

    grid: RateGrid
    metric: str
    direction: str
    size: str
    committed: bool = False
    arms: dict[str, ArmSearch] = field(default_factory=dict)

    def search_rates(self, look_up_metric: LossLookup) -> SearchState:
        """Search the rate of an arm; `look_up_metric` maps (rate, seed) to the metric."""

        def look_up_loss(rate: float, seed: int) -> float | None:
            value = look_up_metric(rate, seed)
            return value if value is None or math.isinf(value) else self._orient_value(value)

        return run_search(self.grid, look_up_loss)

    def _orient_value(self, value: float) -> float:
        return value if self.direction == "lower" else -value

    def get_picked_rate(self, arm: str) -> float | None:
        """Return the arm's rate, or None if it is unknown or its median run diverged."""
        search = self.arms[arm].search
        return (
            search.best_rate
            if self._compute_median(search, search.best_rate) not in (None, "diverged")
            else None
        )

    def explain_missing_rate(self, arm: str) -> str:
        """Return the reason why an arm has no rate."""
        search = self.arms[arm].search
        if search.best_rate is not None:
            return f"at least half of its runs diverged even at its best learning rate, {search.best_rate:g}"
        missing = [
            f"{rate:g} with seed {seed}"
            for (rate, seed), loss in search.requested_losses.items()
            if loss is None
        ]
        more = f" and {len(missing) - 2} more" if len(missing) > 2 else ""
        return f"its learning rate is unknown: no result at {', '.join(missing[:2])}{more}"

    def describe_stale_rates(self) -> list[str]:
        """Return a line for each arm whose rate was tuned with other settings than the compared ones."""
        arms = [arm for arm, entry in self.arms.items() if entry.settings != entry.compared_settings]
        return [f"{arm}: its learning rate was tuned for other settings; {RETUNE_HINT}" for arm in arms]

    def _compute_median(self, search: SearchState, rate: float | None) -> LossValue:
        return None if rate is None else self._make_loss_value(search.compute_median(rate, self.grid.seeds))

    def _make_loss_value(self, loss: float | None) -> LossValue:
        return None if loss is None else "diverged" if math.isinf(loss) else self._orient_value(loss)

    def _build_rate_rows(self, search: SearchState) -> list[RateRow]:
        return [
            RateRow(
                lr=rate,
                values=[self._make_loss_value(loss) for loss in search.list_losses(rate, self.grid.seeds)],
            )
            for rate in search.rates
        ]

    def dump_settings(self) -> dict[str, Any]:
        """Return the declared settings: the keys of `tune`, and the metric."""
        grid = self.grid
        return {
            "lr": list(grid.rates), "seeds": list(grid.seeds), "extend": grid.extend, "share": grid.share,
            "metric": self.metric, "robust": grid.robust,
        }  # fmt: skip

    def summarize(self) -> TuningResult:
        """Return the result as the report stores it."""
        arms = {arm: self._summarize_arm(arm) for arm in self.arms}
        return TuningResult(**self.dump_settings(), committed=self.committed, arms=arms)

    def _summarize_arm(self, arm: str) -> ArmTuningResult:
        entry = self.arms[arm]
        picked = self.get_picked_rate(arm)
        search = entry.search
        return ArmTuningResult(
            picked=picked,
            failure_reason=self.explain_missing_rate(arm) if picked is None else None,
            at_grid_edge=search.at_grid_edge,
            same_settings=entry.settings == entry.compared_settings,
            tokens=entry.search_tokens,
            comparison_tokens=entry.comparison_tokens,
            rows=[
                LearningRateResult(
                    **row.to_dict(),
                    median=self._compute_median(search, row.lr),
                    seeds_tried=sum((row.lr, seed) in search.requested_losses for seed in self.grid.seeds),
                )
                for row in self._build_rate_rows(search)
            ],
        )

    def write_yaml(self, path: Path, name: str) -> None:
        """Write tuned.yaml, in the form of conf/tuned/NAME.yaml."""
        arms = {
            arm: TunedArm(
                settings=entry.settings, tokens=entry.search_tokens, rows=self._build_rate_rows(entry.search)
            )
            for arm, entry in self.arms.items()
        }
        settings = {key: value for key, value in self.dump_settings().items() if value is not None}
        tuned = TunedRates(**settings, arms=arms)
        head = f"# @package _global_\n# Learning rates tuned for {name}: every tried rate, by seed.\n"
        with replace_atomically(path) as temporary:
            text = OmegaConf.to_yaml(OmegaConf.create({"tuned": {self.size: tuned.to_dict()}}))
            temporary.write_text(head + text, "utf-8")


def load_committed_rates(experiment: Experiment, wanted: TuningState) -> TunedRates | None:
    """Return the committed rates of this size, or None if there are none.

    Raises:
        InvalidConfig: They are invalid, or belong to other tuning settings or another metric.
    """
    content = (experiment.tuned or {}).get(wanted.size)
    if content is None:
        return None
    what = f"tuned of {experiment.name} at size {wanted.size}"
    try:
        tuned = TunedRates.model_validate(content)
    except ValidationError as error:
        raise InvalidConfig(
            f"{convert_validation_error(error, f'{what} has an outdated format')}; {RETUNE_HINT}"
        ) from error
    if any(getattr(tuned, key) != value for key, value in wanted.dump_settings().items()):
        raise InvalidConfig(f"{what} was tuned with other settings of tune or another metric; {RETUNE_HINT}")
    return tuned
