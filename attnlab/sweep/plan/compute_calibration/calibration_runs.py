"""Calibration runs: the baseline at half and at twice its steps.

An experiment declares `compute_calibration: {seeds: [...]}`. The runs are trained before any comparison, once
the baseline's learning rate is known. They stay in the run directory like any run and are no part of the
comparison.
"""

from attnlab.errors import InvalidConfig
from attnlab.report.number_format import format_compute_amount
from attnlab.store.experiment_schema import Experiment, resolve_resource_alias
from attnlab.store.run_schema import RunConfig
from attnlab.sweep.plan.arms import Arm
from attnlab.sweep.plan.checker import Checker
from attnlab.sweep.plan.compute_calibration.compute_calibration import CalibrationRuns, halve_steps
from attnlab.sweep.plan.overrides import STEPS_KEY, get_leaf

MARGIN_HINT = "set compute_calibration=null and give the margin as a number"


def plan_calibration(experiment: Experiment, baseline: Arm, checker: Checker) -> CalibrationRuns | None:
    """Plan the calibration runs that an experiment declares; None if it declares none.

    Raises:
        InvalidConfig: A margin or threshold needs an undeclared calibration, or the baseline allows none.
    """
    name = experiment.name
    if experiment.compute_calibration is None:
        if text := next(iter(experiment.compute_amounts), None):
            amount = format_compute_amount(text)
            raise InvalidConfig(
                f"{name} uses {amount}, but has no compute calibration to convert it to nats: add "
                "compute_calibration: {seeds: [200, 201, 202]}, or give a number",
                ("margin",),
            )
        return None
    seeds = _validate_calibration_seeds(experiment)
    _validate_calibration_baseline(experiment, baseline)
    steps = get_leaf(baseline.config(seeds[0]), STEPS_KEY)
    if type(steps) is not int or steps < 2:
        raise InvalidConfig(
            f"compute_calibration of {name}: {STEPS_KEY}={steps} has no half: {MARGIN_HINT}",
            ("compute_calibration",),
        )
    short, long = (
        _make_calibration_runs(baseline, count, words, seeds, checker)
        for count, words in ((halve_steps(steps), "half"), (2 * steps, "twice"))
    )
    runs = [run for pair in zip(short, long, strict=True) for run in pair]
    return CalibrationRuns(baseline.name, resolve_resource_alias(experiment.metric), steps, runs)


def _make_calibration_runs(
    baseline: Arm, steps: int, label: str, seeds: list[int], checker: Checker
) -> list[RunConfig]:
    """Make the baseline's runs with its whole schedule stretched or compressed to `steps`."""
    arm_name = f"{baseline.name} {label} training"
    try:
        arm = baseline.recheck_with_changes({STEPS_KEY: steps}, [f"{STEPS_KEY}={steps}"], seeds[0], checker)
        return arm.make_run_configs(seeds, arm_name)
    except ValueError as error:
        raise InvalidConfig(
            f"compute_calibration, {arm_name} ({STEPS_KEY}={steps}): {error}; {MARGIN_HINT}",
            ("compute_calibration",),
        ) from error


def _validate_calibration_seeds(experiment: Experiment) -> list[int]:
    """Return the calibration seeds.

    Raises:
        InvalidConfig: There are fewer than two, one is repeated, or the comparison or tuning uses one too.
    """
    assert experiment.compute_calibration is not None
    name = experiment.name
    seeds = experiment.compute_calibration.seeds
    key_path = ("compute_calibration", "seeds")
    if len(set(seeds)) < max(2, len(seeds)):
        raise InvalidConfig(
            f"compute_calibration.seeds={seeds} of {name}: give two or more different seeds, "
            "preferably three",
            key_path,
        )
    others = {"the comparison": experiment.seeds, "tune": experiment.tune.seeds if experiment.tune else []}
    for purpose, seeds_in_use in others.items():
        if shared := set(seeds) & set(seeds_in_use):
            raise InvalidConfig(
                f"compute_calibration.seeds of {name} shares seed {min(shared)} with {purpose}: "
                "use other seeds",
                key_path,
            )
    return seeds


def _validate_calibration_baseline(experiment: Experiment, baseline: Arm) -> None:
    """Check the baseline and the metric.

    Raises:
        InvalidConfig: The baseline trains nothing or continues a run, or the metric is no loss in nats.
    """
    name = experiment.name
    metric = resolve_resource_alias(experiment.metric)
    definition = baseline.estimate.metric_definitions.get(metric)
    config = baseline.config(experiment.seeds[0])
    if config.get("measurement"):
        reason = f"the baseline {baseline.name} only measures and does not train"
    elif config.get("parent"):
        reason = f"the baseline {baseline.name} continues from another run, whose training would count too"
    elif (
        definition is None
        or definition.unit != "nats"
        or experiment.direction == "higher"
        or definition.direction == "higher"
    ):
        unit = f"{definition.unit}" if definition and definition.unit else "none"
        reason = f"{metric} is not a loss in nats (unit: {unit}; {experiment.direction} is better)"
    else:
        return
    raise InvalidConfig(
        f"compute_calibration of {name}: {reason}, so a difference cannot be converted to training "
        f"compute: {MARGIN_HINT}",
        ("compute_calibration",),
    )
