"""Ladders that a command names: validation, and the experiment keys that change with the ladder size."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.store.experiment_schema import LadderConfig
from attnlab.store.run_schema import RunConfig, convert_validation_error
from attnlab.sweep.plan.arms import Arm
from attnlab.sweep.plan.overrides import STEPS_KEY, index_by_key

SEED_OFFSET = 1000  # between the seeds of two sizes: shared seed effects would look like a trend
BUDGET_SEED_OFFSET = 10_000  # of all budgets: seeds that the experiment itself has not used
SIZE_KEYS = ("size", "model.dim", "model.n_layers", "model.n_heads")  # keys that define a ladder size


def parse_ladder(raw_ladder: Any, lines_by_key: Mapping[str, str]) -> LadderConfig:
    """Parse the ladder that a command names.

    Raises:
        InvalidConfig: It is invalid, or the command line sets a key that the ladder sets.
    """
    try:
        ladder = LadderConfig.model_validate(raw_ladder)
    except ValidationError as error:
        raise InvalidConfig(str(convert_validation_error(error, "ladder")), ("ladder",)) from error
    for key in SIZE_KEYS if ladder.rungs else ():
        if key in lines_by_key:
            raise InvalidConfig(
                f"{lines_by_key[key]}: a ladder sets this key at each of its sizes: remove one of the two"
            )
    if unpaired := sorted({*ladder.names} ^ {*ladder.seeds}):
        kind = "rungs" if ladder.rungs else "budgets"
        raise InvalidConfig(
            f"ladder.seeds of {ladder.name}: {unpaired[0]} is missing in {kind} or in seeds: list it in both"
        )
    if seedless := [name for name, count in ladder.seeds.items() if count < 1]:
        raise InvalidConfig(
            f"ladder.seeds.{seedless[0]}={ladder.seeds[seedless[0]]}: must be at least 1, "
            "preferably 3 or more"
        )
    if ladder.rates and ladder.rates.rung not in ladder.names:
        rung = ladder.rates.rung
        raise InvalidConfig(
            f"ladder.rates.rung={rung}: not a size of the ladder {ladder.name}"
            f"{format_suggestions(rung, ladder.names)}"
        )
    return ladder


def multiply_steps(base: Mapping[str, Any], ladder: LadderConfig, name: str) -> list[str]:
    """Return the override that gives all arms a budget: a multiple of the experiment's own steps.

    Raises:
        InvalidConfig: An arm sets the steps itself, the ladder does, or a multiple is not one step.
    """
    multiple = ladder.budgets[name]
    own_lines = {"the ladder": ladder.overrides, **(base.get("arm_overrides") or {})}
    for arm, lines in own_lines.items():
        if STEPS_KEY in index_by_key(lines):
            raise InvalidConfig(
                f"ladder={ladder.name} multiplies the steps of the experiment, but {arm} sets {STEPS_KEY}: "
                "remove it there"
            )
    steps = round(multiple * base["trainer"]["max_steps"])
    if steps < 1:
        raise InvalidConfig(f"ladder.budgets.{name}={multiple:g}: less than one step; give a larger multiple")
    return [f"{STEPS_KEY}={steps}"]


def make_size_keys(base: Mapping[str, Any], ladder: LadderConfig, size_name: str) -> dict[str, Any]:
    """Return the keys that an experiment declares at a ladder size.

    Each size has its own number of seeds, none of them used at another size; its interim analyses end with
    the last of them. Budgets share their seeds, all of which are trained, so that each is followed from the
    smallest budget to the largest. The margin is a number, since the loss per doubling of compute differs
    between sizes.
    """
    seeds = base.get("seeds")
    looks = base.get("looks")
    if not seeds and isinstance(looks, list) and looks:
        seeds = list(range(looks[-1]))
    if isinstance(seeds, list) and ladder.budgets:
        seeds = [seed + BUDGET_SEED_OFFSET for seed in seeds[: ladder.seeds[size_name]]]
        looks = None
    elif isinstance(seeds, list):
        position = ladder.names.index(size_name)
        seeds = [seed + SEED_OFFSET * position for seed in seeds[: ladder.seeds[size_name]]]
        if isinstance(looks, list):
            looks = [*(look for look in looks if look < len(seeds)), len(seeds)]
            looks = looks if len(looks) > 1 else None
    keys = {"seeds": seeds, "looks": looks, "corpora": None, "compute_calibration": None}
    keys |= {"size": size_name} if ladder.rungs else {}
    if ladder.rungs or not isinstance(base.get("margin"), int | float):
        keys |= {"margin": ladder.margin, "margin_reason": ladder.margin_reason}
    if base.get("ladder_arms"):
        keys["arms"] = base["ladder_arms"]
    if ladder.rates and ladder.rates.rung != size_name:
        keys["tune"] = None
    return keys


def transfer_learning_rates(
    ladder: LadderConfig, tuned_runs: Mapping[str, RunConfig], arms: Mapping[str, Arm], baseline: str
) -> dict[str, float]:
    """Return each arm's learning rate at this size: scaled, to three significant digits, or the same.

    The rate of the arm's run at the tuning size is scaled by a power of the ratio of training FLOPs.
    """
    assert ladder.rates is not None
    flops = arms[baseline].estimate.training_flops
    tuned_flops = tuned_runs[baseline].estimate.training_flops
    factor = (flops / tuned_flops) ** ladder.rates.power if flops and tuned_flops else 1.0
    rates = {name: run.estimate.lr for name, run in tuned_runs.items()}
    return {
        name: rate if factor == 1 else float(f"{rate * factor:.3g}")
        for name, rate in rates.items()
        if rate is not None
    }
