"""Ladders that a command names: validation, and the experiment keys that change with the ladder size."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.store.experiment_schema import LadderConfig
from attnlab.store.run_schema import RunConfig, convert_validation_error
from attnlab.sweep.plan.arms import Arm

SEED_OFFSET = 1000  # between the seeds of two sizes: shared seed effects would look like a trend
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
    for key in SIZE_KEYS:
        if key in lines_by_key:
            raise InvalidConfig(
                f"{lines_by_key[key]}: a ladder sets this key at each of its sizes: remove one of the two"
            )
    if unpaired := sorted({*ladder.rungs} ^ {*ladder.seeds}):
        raise InvalidConfig(
            f"ladder.seeds of {ladder.name}: {unpaired[0]} is missing in rungs or in seeds: list it in both"
        )
    if seedless := [name for name, count in ladder.seeds.items() if count < 1]:
        raise InvalidConfig(
            f"ladder.seeds.{seedless[0]}={ladder.seeds[seedless[0]]}: must be at least 1, "
            "preferably 3 or more"
        )
    if ladder.rates and ladder.rates.rung not in ladder.rungs:
        rung = ladder.rates.rung
        raise InvalidConfig(
            f"ladder.rates.rung={rung}: not a size of the ladder {ladder.name}"
            f"{format_suggestions(rung, ladder.rungs)}"
        )
    return ladder


def make_size_keys(base: Mapping[str, Any], ladder: LadderConfig, size_name: str) -> dict[str, Any]:
    """Return the keys that an experiment declares at a ladder size.

    Each size has its own number of seeds, none of them used at another size; its interim analyses end with
    the last of them. The margin is the ladder's, which is a number, since the loss per doubling of compute
    differs between sizes.
    """
    seeds = base.get("seeds")
    looks = base.get("looks")
    if not seeds and isinstance(looks, list) and looks:
        seeds = list(range(looks[-1]))
    if isinstance(seeds, list):
        position = list(ladder.rungs).index(size_name)
        seeds = [seed + SEED_OFFSET * position for seed in seeds[: ladder.seeds[size_name]]]
        if isinstance(looks, list):
            looks = [*(look for look in looks if look < len(seeds)), len(seeds)]
            looks = looks if len(looks) > 1 else None
    keys = {"size": size_name, "seeds": seeds, "looks": looks, "corpora": None, "compute_calibration": None}
    keys |= {"margin": ladder.margin, "margin_reason": ladder.margin_reason}
    if base.get("ladder_arms"):
        keys["arms"] = base["ladder_arms"]
    if ladder.rates and ladder.rates.rung != size_name:
        keys["tune"] = None
    return keys


def transfer_learning_rates(
    ladder: LadderConfig, tuned_runs: Mapping[str, RunConfig], arms: Mapping[str, Arm], baseline: str
) -> dict[str, float]:
    """Return each arm's learning rate at this size, to three significant digits.

    The rate of the arm's run at the tuning size is scaled by a power of the ratio of training FLOPs.
    """
    assert ladder.rates is not None
    flops = arms[baseline].estimate.training_flops
    tuned_flops = tuned_runs[baseline].estimate.training_flops
    factor = (flops / tuned_flops) ** ladder.rates.power if flops and tuned_flops else 1.0
    rates = {name: run.estimate.lr for name, run in tuned_runs.items()}
    return {name: float(f"{rate * factor:.3g}") for name, rate in rates.items() if rate is not None}
