"""The runs of one sweep, finished, failed or missing, and access to their figures."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import InvalidConfig
from attnlab.report.schema import CalibrationResult, ReplicationContext, SeedPair, TimingResult, TuningResult
from attnlab.store import file_names
from attnlab.store import run_directories as store
from attnlab.store.atomic_files import parse_json, read_user_text
from attnlab.store.experiment_schema import Experiment, SweptGrid
from attnlab.store.guards import digests
from attnlab.store.guards.preregistered_terms import Preregistration
from attnlab.store.run_schema import Metric, RunResult, require_current_version

if TYPE_CHECKING:  # `judge` on files reads no curves
    import pyarrow as pa


@dataclass(frozen=True)
class Run:
    """One planned run.

    - `result`: its run.json; None if the run never ended (it counts as planned all the same)
    - `broken_files`: file -> fault, of files that differ from those the run wrote
    - `axes`: the option chosen of each config group
    - `ancestor_tokens`: tokens its parent, and the parent's ancestors, were trained on; None if one is
      missing
    """

    arm: str
    seed: int
    id: str
    result: RunResult | None = None
    curves: "pa.Table | None" = None
    maps: dict[str, NDArray[Any]] | None = None
    broken_files: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    ancestor_tokens: int | None = 0

    @property
    def status(self) -> str:
        return "missing" if self.result is None else self.result.status

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def is_lost(self) -> bool:
        """Whether its infrastructure failed: the run is missing and is no outcome of its arm."""
        return self.result is not None and self.result.is_lost

    @property
    def head_scores(self) -> dict[str, list[list[float | None]]]:
        """Scores of a finished run, each [layer][head]."""
        scores = self.result.head_scores if self.result and self.is_done else {}
        return {name: table for name, table in scores.items() if isinstance(table, list)}

    @property
    def chance_scores(self) -> dict[str, float]:
        """Scores of uniform attention on this run's text."""
        return (self.result.head_scores.get("chance") if self.result else None) or {}


def read_run(folder: Path, arm: str, seed: int, axes: Mapping[str, str] | None = None) -> Run:
    """Read the run in `folder`; absent and unreadable files are None.

    Unreadable files are listed in `broken_files`.

    Raises:
        ValueError: its run.json is broken.
    """
    result = _load_result(folder / "run.json")
    broken_files = (
        digests.find_broken_files(folder, result, max_bytes=digests.LARGE_FILE_BYTES) if result else {}
    )

    def read_table(path: Path) -> Any:
        from pyarrow import parquet  # late, as above

        return parquet.read_table(path)

    def read_file(name: str, reader: Callable[[Path], Any]) -> Any:
        if name in broken_files or not (folder / name).exists():
            return None
        try:
            return reader(folder / name)
        except Exception:  # parquet, zip, zlib and numpy raise their own
            broken_files[name] = "cannot be read"
            return None

    curves = read_file(file_names.CURVES_FILE, read_table)
    maps = read_file(file_names.MAPS_FILE, read_arrays)
    return Run(
        arm,
        seed,
        folder.name,
        result,
        curves,
        maps,
        broken_files,
        axes or {},
        _count_ancestor_tokens(folder, result),
    )


def read_arrays(path: Path) -> dict[str, Any]:
    """Read the arrays of an npz file.

    Raises:
        ValueError: the file contains pickles, which are never loaded.
    """
    with np.load(path, allow_pickle=False) as loaded:
        return dict(loaded)


def _count_ancestor_tokens(folder: Path, result: RunResult | None) -> int | None:
    """Count the training tokens of a run's ancestors in the same run directory; None if one is missing."""
    tokens = 0
    visited = {folder.name}
    while result is not None and (parent := result.config.get("parent")) and parent not in visited:
        visited.add(parent)
        result = store.load_run_result(folder.with_name(str(parent)))  # None if it is not trusted
        if result is None:
            return None
        tokens += result.estimate.tokens or 0
    return tokens


def _load_result(path: Path) -> RunResult | None:
    if not path.exists():
        return None
    try:
        document = parse_json(read_user_text(path))
        require_current_version(document, path)
        if edited_fields := digests.find_edited_fields(document):
            raise InvalidConfig(
                f"{path}: {', '.join(edited_fields)} edited after the run: run the command again"
            )
        return RunResult.model_validate(document)
    except InvalidConfig:
        raise
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: truncated or invalid: delete it and run the command again") from error


KV_CACHE_BYTES = "kv_bytes_per_token"
CACHE_SHARE = "cache/share"  # bytes of a run's own cache over those of its model's keys and values


@dataclass(frozen=True)
class IncomparabilityReason:
    """Reason two arms cannot be compared: a label for the difference, and a sentence."""

    label: str
    text: str


@dataclass(frozen=True)
class SweepContext:
    """An experiment as it was run, with the settings and findings of its sweep.

    - `overrides`: those of the command line
    - `waived_invariants`: invariants of attention that failed and that the command told the sweep to ignore
    - `tuning`: the learning-rate search: its settings, and the outcome per arm
    - `required_seeds`: seeds of an arm that its claims have needed so far, if not all
    - `outdated_counts`: per part of a run result, the runs in which older code measured it
    - `preregistration`: the entry in the log of the run directory; None if there is none
    - `compute_calibration`: loss of the baseline at half and at twice its steps
    - `replication`: the corpus or ladder size of this replication
    - `work_left`: counts of the runs to come, in words; empty if the report is final
    - `not_preregistered`: a command compared the runs of a sweep, without an experiment and so without a
      margin
    - `grid`: the axes that such a command sweeps, and their combinations
    """

    experiment: Experiment
    overrides: Sequence[str] = ()
    waived_invariants: Sequence[str] = ()
    tuning: TuningResult | None = None
    required_seeds: Mapping[str, int] = field(default_factory=dict)
    outdated_counts: Mapping[str, int] = field(default_factory=dict)
    preregistration: Preregistration | None = None
    compute_calibration: CalibrationResult | None = None
    replication: ReplicationContext | None = None
    work_left: str = ""
    not_preregistered: bool = False
    grid: SweptGrid | None = None


@dataclass(frozen=True)
class SweepResults:
    """All planned runs of an experiment, indexed by arm and seed."""

    context: SweepContext
    runs: list[Run]
    timing: TimingResult | None = None
    run_by_arm_seed: dict[tuple[str, int], Run] = field(init=False)

    def __post_init__(self) -> None:
        run_by_arm_seed: dict[tuple[str, int], Run] = {
            (arm, seed): Run(arm, seed, "") for arm in self.arms for seed in self.seeds
        }
        run_by_arm_seed.update({(run.arm, run.seed): run for run in self.runs})
        object.__setattr__(self, "run_by_arm_seed", run_by_arm_seed)

    @property
    def experiment(self) -> Experiment:
        return self.context.experiment

    @property
    def nats_per_doubling(self) -> float | None:
        """Nats per doubling of training compute; None without a usable compute calibration."""
        calibration = self.context.compute_calibration
        return calibration.nats_per_doubling if calibration else None

    @property
    def margin(self) -> float | None:
        """Margin in the metric's unit; None without one, or if it needs a compute calibration that is
        missing.
        """
        return (
            None
            if self.context.not_preregistered
            else self.experiment.amount_to_nats(self.experiment.margin, self.nats_per_doubling)
        )

    def is_overridden(self, key: str) -> bool:
        """Whether the command line sets a key of the experiment file, or a part of it."""
        return any(re.match(rf"[+~]*{key}[.=]", override) for override in self.context.overrides)

    @property
    def arms(self) -> list[str]:
        return self.experiment.arms

    @property
    def seeds(self) -> list[int]:
        return self.experiment.seeds

    @property
    def baseline(self) -> str:
        return self.experiment.baseline

    @property
    def treatment_arms(self) -> list[str]:
        return [arm for arm in self.arms if arm != self.baseline]

    @property
    def planned_runs(self) -> list[Run]:
        """Every arm and seed in the order of the experiment file, including missing runs."""
        return [run for arm in self.arms for run in self.get_runs(arm)]

    def get_runs(self, arm: str) -> list[Run]:
        """Return the runs of an arm that the interim analyses have reached."""
        return [
            self.run_by_arm_seed[arm, seed] for seed in self.seeds[: self.context.required_seeds.get(arm)]
        ]

    def get_finished_runs(self, arm: str) -> list[Run]:
        return [run for run in self.get_runs(arm) if run.is_done]

    def get_finished_results(self, arm: str) -> list[RunResult]:
        return [run.result for run in self.get_finished_runs(arm) if run.result]

    @cached_property
    def run_results(self) -> list[RunResult]:
        """Results of every run that left one, finished or failed."""
        return [run.result for run in self.planned_runs if run.result]

    @cached_property
    def timed_metrics(self) -> dict[str, Metric]:
        """Metrics timed after training, in a process that had the machine to itself."""
        return self.timing.metric_definitions if self.timing else {}

    @cached_property
    def _metric_definitions(self) -> dict[str, Metric]:
        metrics: dict[str, Metric] = {}
        tables = [
            {**record.estimate.metric_definitions, **record.metric_definitions} for record in self.run_results
        ]
        for name, metric in (item for table in [*tables, self.timed_metrics] for item in table.items()):
            has_no_words = name in metrics and not (
                metrics[name].label or metrics[name].unit or metrics[name].direction
            )
            if name not in metrics or has_no_words:
                metrics[name] = metric
        return metrics

    def get_metric(self, name: str) -> Metric:
        """Return a metric's definition: the first with a label, unit or direction, else its name alone."""
        return self._metric_definitions.get(name) or Metric(name)

    def find_results_with(self, metric: str, arms: Iterable[str]) -> list[RunResult]:
        """Find the finished runs of these arms that have a figure."""
        results = [result for arm in arms for result in self.get_finished_results(arm)]
        return [result for result in results if result.get_value(metric) is not None]

    def is_counted(self, metric: str, arms: Sequence[str]) -> bool:
        """Whether a metric was counted in every run of these arms, or of all arms if these have none."""
        results = self.find_results_with(metric, arms) or self.find_results_with(metric, self.arms)
        return bool(results) and all(get_figure_kind(result, metric) == "count" for result in results)

    @cached_property
    def censoring_budgets(self) -> dict[str, float]:
        """Budget of every censored metric; it is the same in all runs of a sweep."""
        return {
            metric: float(steps.budget)
            for result in self.run_results
            for metric, steps in result.censored.items()
        }

    def get_steps_to_threshold(self, arm: str, seed: int, metric: str) -> float | None:
        """Return the steps at which a run reached a censored metric's threshold; None if it did not."""
        run = self.run_by_arm_seed[arm, seed]
        steps = run.result.censored.get(metric) if run.result and run.is_done else None
        return None if steps is None else steps.value

    def get_value(self, arm: str, seed: int, metric: str) -> float | None:
        """Return a figure of a finished run; None if it has none.

        A censored metric is min(steps, budget); a diverged run gets the budget.
        """
        run = self.run_by_arm_seed[arm, seed]
        budget = self.censoring_budgets.get(metric)
        if budget is not None:
            measured = run.is_done and run.result and metric in run.result.censored
            steps = self.get_steps_to_threshold(arm, seed, metric)
            has_outcome = measured or run.status == "diverged"
            return min(budget, budget if steps is None else steps) if has_outcome else None
        if not (run.is_done and run.result):
            return None
        if self.excluded_targets and metric in run.result.by_position and run.result.targets_by_position:
            return _compute_mean_beyond(run.result, metric, self.excluded_targets)
        return get_resource(run.result, metric) if metric == KV_CACHE_BYTES else run.result.get_value(metric)

    def get_prefix_length(self, arm: str) -> int:
        """Return the number of leading tokens an arm sees bidirectionally; 0 for a causal arm."""
        results = self.get_finished_results(arm)
        return max((int(result.leakage.get("prefix") or 0) for result in results), default=0)

    @cached_property
    def excluded_targets(self) -> int:
        """Number of leading targets excluded in every arm: they lie in the longest prefix of any arm."""
        return max(0, *(self.get_prefix_length(arm) - 1 for arm in self.arms))

    def get_values(self, arm: str, metric: str) -> list[float]:
        """Return a metric's values over the seeds that the interim analyses have reached.

        Runs of other seeds may exist for another experiment.
        """
        return [v for run in self.get_runs(arm) if (v := self.get_value(arm, run.seed, metric)) is not None]

    def has_metric(self, arm: str, metric: str) -> bool:
        """Whether the arm's runs measure it: true if no run has finished, or a finished one has a value."""
        return bool(self.get_values(arm, metric)) or not self.get_finished_runs(arm)

    def has_all_outcomes(self, arms: Iterable[str], seeds: Sequence[int]) -> bool:
        """Whether all of these runs have an outcome, success or failure.

        A lost run has none: it is trained again, and a decision without it could rest on a biased subset.
        """
        return all(
            (run := self.run_by_arm_seed[arm, seed]).result and not run.is_lost
            for arm in arms
            for seed in seeds
        )

    def has_diverged(self, arms: Iterable[str], seeds: Sequence[int]) -> bool:
        """Whether any of these runs diverged, so that ranks decide instead of means."""
        return any(self.run_by_arm_seed[arm, seed].status == "diverged" for arm in arms for seed in seeds)

    def compute_outcomes(
        self, weights: Mapping[str, float], metric: str, seeds: Sequence[int], direction: str | None
    ) -> list[float]:
        """Compute weighted sums of arms, seed by seed, in which a diverged arm has the worst possible value.

        With a positive weight that is infinity in the worse direction, with a negative one in the better
        direction. It is NaN if arms of both signs diverged, or if the direction is unknown.
        """
        outcomes = []
        for seed in seeds:
            values = {arm: self.get_value(arm, seed, metric) for arm in weights}
            diverged = [arm for arm in weights if self.run_by_arm_seed[arm, seed].status == "diverged"]
            signs = {math.copysign(1.0, weights[arm]) for arm in diverged if values[arm] is None}
            if not signs and None not in values.values():
                ours, theirs = _add_sides(weights, values)
                outcomes.append(ours - theirs)
            elif all(value is not None or arm in diverged for arm, value in values.items()):
                worse = {"lower": math.inf, "higher": -math.inf}.get(direction or "", math.nan)
                outcomes.append(math.nan if len(signs) > 1 else signs.pop() * worse)
        return outcomes

    def build_pairs(
        self, weights: Mapping[str, float], metric: str, seeds: Sequence[int] | None = None
    ) -> list[SeedPair]:
        """Pair the sums over arms with positive and with negative weights, over seeds that all finished."""
        pairs = []
        for seed in self.seeds if seeds is None else seeds:
            values = {arm: self.get_value(arm, seed, metric) for arm in weights}
            if None not in values.values():
                value, against = _add_sides(weights, values)
                pairs.append(SeedPair(seed=seed, value=value, against=against, difference=value - against))
        return pairs


def _add_sides(weights: Mapping[str, float], values: Mapping[str, Any]) -> tuple[float, float]:
    """Return the sums of weighted values with positive and, without their sign, with negative weights."""
    ours, theirs = (
        math.fsum(abs(weight) * values[arm] for arm, weight in weights.items() if sign * weight > 0)
        for sign in (1, -1)
    )
    return ours, theirs


def _compute_mean_beyond(result: RunResult, metric: str, excluded_targets: int) -> float | None:
    """Average over validation targets, leaving out each window's first ones; None if none remain."""
    counts = result.targets_by_position[excluded_targets:]
    losses = result.by_position[metric][excluded_targets:]
    scored = [(loss, count) for loss, count in zip(losses, counts, strict=True) if loss is not None and count]
    total = sum(count for _, count in scored)
    return sum(loss * count for loss, count in scored) / total if total else None


def get_resource(result: RunResult, key: str) -> Any:
    """Return a resource of a run; None if unknown.

    A run that measures a cache of its own, compressed or with dropped tokens, holds a share of the bytes of
    its model's keys and values.
    """
    value = result.estimate.get(key)
    share = result.metrics.get(CACHE_SHARE) if key == KV_CACHE_BYTES else None
    if value is None or share is None:
        return value
    held = value * share
    return int(held) if held.is_integer() else held


def get_figure_kind(result: RunResult, name: str) -> str:
    """Return the kind of a run's figure; a figure known before the run started counts as `count`."""
    metric = result.get_metric(name)
    is_known_before_run = result.estimate.get(name) is not None and name not in result.metrics
    return metric.kind if metric else "count" if is_known_before_run else "seeds"


def get_common_value(values: Iterable[Any]) -> Any:
    """Return the value that all share; None if there is none or they differ."""
    items = list(values)
    return items[0] if items and all(value == items[0] for value in items) else None
