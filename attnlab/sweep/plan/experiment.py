"""What an experiment file declares, completed and checked: arms, seeds, budget rule, margin and claims."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.errors import Refused, nearest
from attnlab.store import fingerprint
from attnlab.sweep.plan import matching
from attnlab.sweep.plan.overrides import keys as overridden

_NEEDED = ("name", "baseline", "metric", "margin", "margin_reason")


def keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in fingerprint.EXPERIMENT_KEYS if key in config}


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment's keys, completed and checked."""
    found = {
        "held": [],
        "match": "none",
        "match_by": None,
        "direction": "lower",
        "claims": [],
        "question": "",
    }
    found |= keys(config)
    name = found.get("name") or "the experiment"
    for key in _NEEDED:
        if found.get(key) in (None, ""):
            raise Refused(f"{name} has no {key}: every experiment states its {', '.join(_NEEDED)}")
    arms, declared = found["arms"], found.get("arm_overrides") or {}
    if not isinstance(arms, list) or not arms:
        raise Refused(f"arms={arms} of {name}: give a list of names, as in arms=[mha,gqa]")
    for arm in arms:
        if arm not in declared:
            raise Refused(f"{name} has no arm {arm}{nearest(str(arm), declared)}")
    if len(set(arms)) < len(arms):
        raise Refused(f"arms={arms} of {name} names an arm twice")
    if found["baseline"] not in arms:
        raise Refused(
            f"baseline={found['baseline']} of {name} is not among arms={arms}: add it, or set baseline="
        )
    for arm in arms:
        if "seed" in overridden(declared[arm] or []):
            raise Refused(f"arm {arm} of {name} sets seed: seeds belong to the experiment, not to an arm")
    seeds = found.get("seeds")
    if not isinstance(seeds, list) or not seeds:
        raise Refused(f"{name} has no seeds: set seeds=[0,1,2], or seed=0,1,2")
    found["seeds"] = list(no_repeat([integer(seed, "seeds") for seed in seeds]))
    found["arm_overrides"] = {arm: list(overrides or []) for arm, overrides in declared.items()}
    if found["match"] != "none":
        if found["match"] not in matching.FIGURES:
            raise Refused(
                f"match={found['match']} of {name}{nearest(str(found['match']), ['none', *matching.FIGURES])}"
            )
        if not found["match_by"]:
            raise Refused(
                f"{name} has match={found['match']} and no match_by: name the key that is solved for"
            )
    found["claims"] = [claim for claim in found["claims"] or [] if _claim_stands(claim, arms, declared, name)]
    return found


def _claim_stands(
    claim: Mapping[str, Any], arms: Sequence[str], declared: Mapping[str, Any], name: str
) -> bool:
    """A claim about an arm that was left out is dropped; one about an unknown arm is an error."""
    named = [claim[key] for key in ("arm", "against") if claim.get(key)]
    for arm in named:
        if arm not in declared:
            raise Refused(
                f"a claim of {name} is about arm {arm}, which it lacks{nearest(str(arm), declared)}"
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
