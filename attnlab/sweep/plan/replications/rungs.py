"""A ladder as a command names it: checked, and what of an experiment is another at its rungs."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from attnlab.errors import Refused, nearest
from attnlab.store.declarations import Ladder
from attnlab.store.schema import RunSpec, reading
from attnlab.sweep.plan.arms import Arm

APART = 1000  # between the seeds of a rung and the next one: what they share would look like a trend
OWN = ("size", "model.dim", "model.n_layers", "model.n_heads")  # what makes a rung one


def read(written: Any, given: Mapping[str, str]) -> Ladder:
    """The ladder that a command names. Refused, one line, where it does not stand."""
    try:
        ladder = Ladder.model_validate(written)
    except ValidationError as error:
        raise Refused(str(reading(error, "ladder")), ("ladder",)) from error
    for key in OWN:
        if key in given:
            raise Refused(f"{given[key]}: a ladder sets it, rung by rung; drop one of the two")
    if odd := sorted({*ladder.rungs} ^ {*ladder.seeds}):
        raise Refused(
            f"ladder.seeds of {ladder.name}: give each rung a number of seeds, and {odd[0]} has not both"
        )
    if few := [name for name, count in ladder.seeds.items() if count < 1]:
        raise Refused(f"ladder.seeds.{few[0]}={ladder.seeds[few[0]]}: give at least 1, better 3 or more")
    if ladder.rates and ladder.rates.rung not in ladder.rungs:
        rung = ladder.rates.rung
        raise Refused(f"ladder.rates.rung={rung}: no rung of {ladder.name}{nearest(rung, ladder.rungs)}")
    return ladder


def keys(base: Mapping[str, Any], ladder: Ladder, rung: str) -> dict[str, Any]:
    """What an experiment declares at a rung: so many seeds of its own, its looks as far as these go, and
    the ladder's margin, which is a number: what training is worth is another thing at each size.
    """
    seeds = base.get("seeds")
    looks = base.get("looks")
    if not seeds and isinstance(looks, list) and looks:
        seeds = list(range(looks[-1]))
    if isinstance(seeds, list):
        place = list(ladder.rungs).index(rung)
        seeds = [seed + APART * place for seed in seeds[: ladder.seeds[rung]]]
        if isinstance(looks, list):
            looks = [*(look for look in looks if look < len(seeds)), len(seeds)]
            looks = looks if len(looks) > 1 else None
    change = {"size": rung, "seeds": seeds, "looks": looks, "texts": None, "exchange": None}
    change |= {"margin": ladder.margin, "margin_reason": ladder.margin_reason}
    if base.get("ladder_arms"):
        change["arms"] = base["ladder_arms"]
    if ladder.rates and ladder.rates.rung != rung:
        change["tune"] = None
    return change


def carried(
    ladder: Ladder, rung: Mapping[str, RunSpec], arms: Mapping[str, Arm], baseline: str
) -> dict[str, float]:
    """Every arm's learning rate, from a run of its own at the rung where rates are tuned; to three digits."""
    assert ladder.rates is not None
    here = arms[baseline].estimate.training_flops
    there = rung[baseline].estimate.training_flops
    factor = (here / there) ** ladder.rates.power if here and there else 1.0
    rates = {name: run.estimate.lr for name, run in rung.items()}
    return {name: float(f"{rate * factor:.3g}") for name, rate in rates.items() if rate is not None}
