"""Learning-rate tuning of every arm alike, on seeds of its own: the declared grid and its runs.

An experiment declares `tune: {lr: [...], seeds: [...]}`. Tuning runs are stored like any run, and the results
are written next to the report as tuned.yaml. Committed as conf/tuned/NAME.yaml, that file is read back for
the size that it was tuned at, and nothing is tuned again.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint
from attnlab.store.experiment_files import ConfigFinder
from attnlab.store.experiment_schema import Experiment
from attnlab.store.run_schema import RunConfig, RunLookup, RunResult
from attnlab.sweep.plan.arms import Arm
from attnlab.sweep.plan.checker import Checker
from attnlab.sweep.plan.overrides import STEPS_KEY, get_leaf, index_by_key, parse_overrides
from attnlab.sweep.plan.tuning.lr_search import RateGrid, SearchState
from attnlab.sweep.plan.tuning.tuning_results import (
    RETUNE_HINT,
    ArmSearch,
    TunedArm,
    TuningState,
    load_committed_rates,
)

COSINE = {"_target_": "attnlab.training.optim.schedules.Cosine"}
LR_KEY = "optim.lr"
LR_FIGURE = "lr"
MIN_SEEDS = 3  # with two, a single bad seed selects the rate
MIN_SPACING = 0.01  # relative; closer rates would coincide once the rates beyond them are rounded


def plan_tuning(
    experiment: Experiment,
    arms: Mapping[str, Arm],
    size: Any,
    point: Sequence[str],
    checker: Checker,
    lookup: RunLookup,
    find: ConfigFinder,
) -> tuple[TuningState | None, list[RunConfig]]:
    """Return the tuning of all arms, and the runs that it needs.

    There are no runs if the rates are committed, and no tuning (None) if the experiment declares none.
    """
    _reject_missing_tuned_file(point, find)
    grid = parse_rate_grid(experiment)
    if grid is None:
        return None, []
    _reject_untunable_arms(experiment, arms, point)
    tuning = TuningState(grid, experiment.metric, experiment.direction, str(size))
    committed = load_committed_rates(experiment, tuning)
    tuning.committed = committed is not None
    runs = list[RunConfig]()
    for name, arm in arms.items():
        settings = digest_settings(arm.config(grid.seeds[0]))
        comparison_tokens = (arm.estimate.tokens or 0) * len(experiment.seeds)
        if committed is None:
            short_arm = _shorten_training(arm, grid, checker)
            search, arm_runs = _search_stored_runs(short_arm, tuning, lookup)
            tokens = short_arm.estimate.tokens or 0
            search_tokens = tokens * len(arm_runs)
            max_tokens = tokens * grid.max_runs
            tuning.arms[name] = ArmSearch(
                search, settings, settings, search_tokens, max_tokens, comparison_tokens
            )
            runs += arm_runs
        elif (tuned_arm := committed.arms.get(name)) is None or (
            search := _replay_search(tuned_arm, tuning)
        ).best_rate is None:
            raise InvalidConfig(
                f"tuned of {experiment.name} at size {size} has no learning rate for arm {name}; "
                f"{RETUNE_HINT}"
            )
        else:
            tuning.arms[name] = ArmSearch(
                search, tuned_arm.settings, settings, tuned_arm.tokens, tuned_arm.tokens, comparison_tokens
            )
    return tuning, runs


def parse_rate_grid(experiment: Experiment) -> RateGrid | None:
    """Return the declared rates and seeds, validated; None if the experiment tunes nothing."""
    declared = experiment.tune
    name = experiment.name
    if declared is None:
        return None
    rates = declared.lr
    seeds = declared.seeds
    is_spaced = all(b > (1 + MIN_SPACING) * a > 0 for a, b in pairwise(sorted(rates)))
    if len(rates) < 2 or not is_spaced:
        raise InvalidConfig(
            f"tune.lr={rates} of {name}: give two or more increasing rates above 0, each at least "
            f"{MIN_SPACING:.0%} above the previous one",
            ("tune", "lr"),
        )
    if not len(set(seeds)) == len(seeds) >= MIN_SEEDS:
        raise InvalidConfig(
            f"tune.seeds={seeds} of {name}: give {MIN_SEEDS} or more different seeds, so that no "
            "single seed decides the rate",
            ("tune", "seeds"),
        )
    if shared := set(seeds) & set(experiment.seeds):
        raise InvalidConfig(
            f"tune.seeds of {name} shares seed {min(shared)} with the comparison: use other seeds, "
            "because tuning on the compared runs biases the comparison",
            ("tune", "seeds"),
        )
    return RateGrid(
        tuple(float(rate) for rate in sorted(rates)),
        tuple(seeds),
        declared.extend,
        declared.share,
        declared.robust,
    )


def _reject_missing_tuned_file(point: Sequence[str], find: ConfigFinder) -> None:
    """Check the file that `tuned=NAME` names: `optional /tuned` in the defaults ignores a missing one."""
    for override in parse_overrides(point):
        name = override.value() if override.key_or_group == "tuned" else None
        if isinstance(name, str) and find(f"tuned/{name}") is None:
            raise InvalidConfig(f"{override.input_line}: tuned/{name}.yaml not found; {RETUNE_HINT}")


def _reject_untunable_arms(experiment: Experiment, arms: Mapping[str, Arm], point: Sequence[str]) -> None:
    """Check that every arm can be tuned.

    Raises:
        InvalidConfig: An override sets the learning rate, or an arm continues from another or trains nothing.
    """
    lines = [*point, *(line for name in arms for line in experiment.arm_overrides[name])]
    if (line := index_by_key(lines).get(LR_KEY)) is not None:
        raise InvalidConfig(
            f"{line} conflicts with tune, which sets the learning rate of every arm: remove it, or set "
            "tune=null"
        )
    for name, arm in arms.items():
        config = arm.config(experiment.seeds[0])
        if (parent := config.get("parent")) in arms:
            raise InvalidConfig(
                f"arm {name} continues from {parent}, but tuning runs train no parents: set tune=null"
            )
        if config.get("measurement"):
            raise InvalidConfig(
                f"arm {name} does not train, so it has no learning rate to tune: set tune=null"
            )


def digest_settings(config: Mapping[str, Any]) -> str:
    """Return a label of an arm's config without its seeds, learning rate and measurements.

    A cosine is left out: the label of a rate tuned before the schedule was a part of the config stays valid.
    """
    optim = {
        key: value
        for key, value in config.get("optim", {}).items()
        if key not in ("lr", "min_lr") and value != COSINE
    }
    relevant_config = fingerprint.strip_seeds({**config, "optim": optim, "measure": None})
    # with a prefix, since YAML reads some digests as numbers (1e5)
    return f"config-{fingerprint.compute_digest(relevant_config, 8)}"


def _shorten_training(arm: Arm, grid: RateGrid, checker: Checker) -> Arm:
    """Return the arm as tuned: its whole schedule over fewer steps, checked at the lowest rate."""
    steps = get_leaf(arm.config(grid.seeds[0]), STEPS_KEY)
    if type(steps) is not int:
        raise InvalidConfig(
            f"tune of arm {arm.name} needs an integer {STEPS_KEY}, not {steps!r}: set it, or set tune=null"
        )
    short_steps = max(1, math.floor(grid.share * steps + 1e-6))  # rounded down, so that `max_tokens` holds
    changes = {STEPS_KEY: short_steps, LR_KEY: grid.rates[0]}
    try:
        return arm.recheck_with_changes(changes, [f"{STEPS_KEY}={short_steps}"], grid.seeds[0], checker)
    except ValueError as error:
        raise InvalidConfig(f"tuning run of arm {arm.name}, {STEPS_KEY}={short_steps}: {error}") from error


def _search_stored_runs(
    arm: Arm, tuning: TuningState, lookup: RunLookup
) -> tuple[SearchState, list[RunConfig]]:
    """Search an arm's rate as far as stored runs allow; return the search and all runs that it requested."""
    runs = list[RunConfig]()
    arm_by_rate = dict[float, Arm]()

    def look_up_metric(rate: float, seed: int) -> float | None:
        if rate not in arm_by_rate:
            arm_by_rate[rate] = arm.with_value(LR_KEY, rate, LR_FIGURE)
        runs.extend(arm_by_rate[rate].make_run_configs((seed,), f"{arm.name} lr={rate:g}"))
        return _get_metric_or_inf(lookup(runs[-1].id), tuning.metric)

    return tuning.search_rates(look_up_metric), runs


def _get_metric_or_inf(record: RunResult | None, metric: str) -> float | None:
    """Return the metric; infinity if the run diverged, None if it is missing or failed otherwise."""
    if record is not None and record.status == "diverged":
        return math.inf
    return record.metrics.get(metric) if record is not None and record.is_done else None


def _replay_search(tuned_arm: TunedArm, tuning: TuningState) -> SearchState:
    """Run the search over committed losses."""
    values = {
        (row.lr, seed): math.inf if value == "diverged" else value
        for row in tuned_arm.rows
        for seed, value in zip(tuning.grid.seeds, row.values, strict=False)
    }
    return tuning.search_rates(lambda rate, seed: values.get((rate, seed)))
