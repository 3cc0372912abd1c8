"""What an experiment file declares, completed and checked: arms, seeds, budget rule, margin and claims."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from attnlab.errors import Refused, nearest
from attnlab.store.declarations import Experiment
from attnlab.store.inputs import is_name
from attnlab.store.schema import reading
from attnlab.sweep.plan import matching
from attnlab.sweep.plan.overrides import keys as overridden

_NEEDED = tuple(  # arms and seeds have words of their own
    key
    for key, field in Experiment.model_fields.items()
    if field.is_required() and key not in ("arms", "seeds")
)


def keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config belongs to the experiment."""
    return {key: config[key] for key in Experiment.key_names() if key in config}


def complete(config: Mapping[str, Any]) -> Experiment:
    """The experiment that a config declares. Refused, one line, where it does not stand."""
    declared = {key: value for key, value in keys(config).items() if value is not None}
    name = declared.get("name") or "the experiment"
    if not is_name(str(name)):
        raise Refused(f"name={name}: an experiment's name is a folder in the reports, and no path")
    for key in _NEEDED:
        if declared.get(key) in (None, ""):
            raise Refused(f"{name} has no {key}: every experiment states its {', '.join(_NEEDED)}")
    overrides = declared.get("arm_overrides") or {}
    arms = _arms(declared, overrides, name)
    seeds = declared.get("seeds")
    if not isinstance(seeds, list) or not seeds:
        raise Refused(f"{name} has no seeds: set seeds=[0,1,2], or seed=0,1,2")
    _refuse_unmatched(declared, name)
    claims = [claim for claim in declared.get("claims") or [] if _claim_stands(claim, arms, overrides, name)]
    completed = {
        **declared,
        "seeds": list(no_repeat([integer(seed, "seeds") for seed in seeds])),
        "arm_overrides": {arm: list(lines or []) for arm, lines in overrides.items()},
        "claims": claims,
    }
    try:
        return Experiment.model_validate(completed)
    except ValidationError as error:
        raise reading(error, str(name)) from error


def _arms(declared: Mapping[str, Any], overrides: Mapping[str, Any], name: str) -> list[str]:
    """The arms to compare, each declared, once, the baseline among them, none with a seed of its own."""
    arms = declared.get("arms")
    if not isinstance(arms, list) or not arms:
        raise Refused(f"arms={arms} of {name}: give a list of names, as in arms=[mha,gqa]")
    for arm in arms:
        if arm not in overrides:
            raise Refused(f"{name} has no arm {arm}{nearest(str(arm), overrides)}")
    if len(set(arms)) < len(arms):
        raise Refused(f"arms={arms} of {name} names an arm twice")
    if declared["baseline"] not in arms:
        raise Refused(
            f"baseline={declared['baseline']} of {name} is not among arms={arms}: add it, or set baseline="
        )
    for arm in arms:
        if "seed" in overridden(overrides[arm] or []):
            raise Refused(f"arm {arm} of {name} sets seed: seeds belong to the experiment, not to an arm")
    return arms


def _refuse_unmatched(declared: Mapping[str, Any], name: str) -> None:
    match = declared.get("match", "none")
    if match == "none":
        return
    if match not in matching.FIGURES:
        raise Refused(f"match={match} of {name}{nearest(str(match), ['none', *matching.FIGURES])}")
    if not declared.get("match_by"):
        raise Refused(f"{name} has match={match} and no match_by: name the key that is solved for")


def _claim_stands(claim: Any, arms: Sequence[str], overrides: Mapping[str, Any], name: str) -> bool:
    """A claim about an arm that was left out is dropped; one about an unknown arm is an error."""
    if not isinstance(claim, Mapping):
        raise Refused(
            f"a claim of {name} is {claim!r}: give {{says: ..., arm: ..., is: ..., threshold: ...}}"
        )
    named = [claim[key] for key in ("arm", "against") if claim.get(key)]
    for arm in named:
        if arm not in overrides:
            raise Refused(
                f"a claim of {name} is about arm {arm}, which it lacks{nearest(str(arm), overrides)}"
            )
    return all(arm in arms for arm in named)


def integer(value: Any, key: str) -> int:
    """`value`, where it is an integer and no boolean."""
    if type(value) is not int:
        raise Refused(f"{key}: {value!r} is no integer")
    return value


def no_repeat(seeds: Sequence[int]) -> tuple[int, ...]:
    """The seeds as they are; each is one observation, so none may come twice."""
    if len(set(seeds)) < len(seeds):
        raise Refused(f"seeds {list(seeds)} name a seed twice: a seed is one observation, name each once")
    return tuple(seeds)
