"""What an experiment file declares, completed and checked: arms, seeds, budget rule, margin and claims."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from hydra.errors import OverrideParseException
from pydantic import ValidationError

from attnlab.errors import Refused, nearest
from attnlab.store import fingerprint
from attnlab.store.declarations import AMOUNTS, FORMS, Claim, Experiment
from attnlab.store.experiment_files import Key
from attnlab.store.schema import Record, reading
from attnlab.sweep.plan import matching
from attnlab.sweep.plan.answerable import about
from attnlab.sweep.plan.exchange import declared as amounts
from attnlab.sweep.plan.overrides import HOW
from attnlab.sweep.plan.overrides import keys as overridden

_NEEDED = tuple(  # arms and seeds have words of their own
    key
    for key, field in Experiment.model_fields.items()
    if field.is_required() and key not in ("arms", "seeds")
)

_WORD = re.compile(r"\w[\w.-]{0,199}")  # a folder's name, on any disk
_LONG = 100  # characters of a name that is made of what a command sweeps
_CLAIM = "{says: ..., arm: ..., is: ..., threshold: ...}"
_R = TypeVar("_R", bound=Record)


def keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config belongs to the experiment."""
    return {key: config[key] for key in Experiment.key_names() if key in config}


def complete(config: Mapping[str, Any]) -> Experiment:
    """The experiment that a config declares. Refused, one line, where it does not stand."""
    declared = {key: value for key, value in keys(config).items() if value is not None}
    name = declared.get("name") or "the experiment"
    for key in _NEEDED:
        if declared.get(key) in (None, ""):
            raise Refused(f"{name} has no {key}: every experiment states its {', '.join(_NEEDED)}", (key,))
    declared["name"] = name = plain_word(name)
    overrides = _arm_overrides(declared, name)
    arms = _arms(declared, overrides, name)
    seeds = _seeds(declared, name)
    _refuse_unmatched(declared, name)
    _refuse_leakage(declared, overrides, name)
    completed = {
        **declared,
        "seeds": seeds,
        "arm_overrides": overrides,
        "claims": _claims(declared, arms, overrides, name),
    }
    experiment = _read(Experiment, completed, name, ())
    amounts.refuse_margin(experiment)
    return experiment


def undeclared(
    config: Mapping[str, Any], arms: Mapping[str, list[str]], seeds: Sequence[int] | None
) -> Experiment:
    """What a command asks that sweeps keys and names no experiment: how its combinations differ, by the loss.
    It declares no margin; the 0 in its place is never read.
    """
    baseline = next(iter(arms))
    lines = [line for own in arms.values() for line in own]
    values = dict[str, list[str]]()
    for line in dict.fromkeys(lines):
        key, _, value = line.lstrip("+").partition("=")
        values.setdefault(key, []).append(value)
    differs = "-".join("_".join([key.rpartition(".")[2], *of_it]) for key, of_it in values.items())
    name = "sweep_" + re.sub(r"[^\w.-]+", "_", differs)
    if name != f"sweep_{differs}" or len(name) > _LONG:
        name = f"{name[:_LONG]}-{fingerprint.digest(values, 8)}"
    chosen = seeds if seeds is not None else [integer(config.get("seed", 0), "seed")]
    return Experiment(
        name=name,
        question=f"What changes with {' and '.join(values)}? The baseline is what stands first, {baseline}.",
        size=config.get("size"),
        arms=list(arms),
        arm_overrides=dict(arms),
        baseline=baseline,
        seeds=list(no_repeat(chosen)),
        metric="val/loss",
        margin=0.0,
        margin_reason="",
    )


def refuse_declared(base: Mapping[str, Any]) -> None:
    """Refused where a key is set that only an experiment has."""
    for key in ("seeds", "looks", "exchange", "tune", "texts", "ladder", "leakage"):
        if base.get(key) is not None:
            instead = "name one, or set seed=0,1" if key == "seeds" else "name one"
            value = "..." if key == "ladder" else base[key]
            raise Refused(f"{key}={value}: without an experiment nothing is declared; {instead}")


def _seeds(declared: Mapping[str, Any], name: str) -> list[int]:
    """The seeds, each once; of declared looks as many as the last one has."""
    seeds = declared.get("seeds")
    looks = declared.get("looks")
    last = _last(looks, name) if isinstance(looks, list) else None
    if seeds is None and last is not None:
        return list(range(last))
    if not isinstance(seeds, list) or not seeds:
        raise Refused(f"{name} has no seeds: set seeds=[0,1,2], or seed=0,1,2", ("seeds",))
    whole = list(no_repeat([integer(seed, "seeds") for seed in seeds]))
    if last is not None and len(whole) < last:
        raise Refused(
            f"looks={looks} of {name}: the last look has {last} seeds, and there are {len(whole)}: drop "
            "seeds, or give as many",
            ("looks",),
        )
    return whole[:last]


def _last(looks: Sequence[Any], name: str) -> int:
    """The seeds of the last look; Refused where they do not grow from look to look."""
    counts = [integer(look, "looks") for look in looks]
    if not counts or counts[0] < 2 or any(b <= a for a, b in pairwise(counts)):
        raise Refused(
            f"looks={looks} of {name}: give numbers of seeds that grow, from 2 on, as in [4,8,12,16]",
            ("looks",),
        )
    return counts[-1]


def plain_word(name: Any) -> str:
    """The name of an experiment: its report's folder is called so. A number is taken as text."""
    text = str(name) if isinstance(name, int | float) and not isinstance(name, bool) else name
    if not isinstance(text, str) or not _WORD.fullmatch(text):
        raise Refused(
            f"name={name!r} is no plain word, and the report's folder is called so: give letters, digits, "
            "_ - and . alone",
            ("name",),
        )
    return text


def _read(record: type[_R], content: Any, what: str, at: Key) -> _R:
    """What was written as a type; Refused with the key at fault, which is sought below `at`."""
    try:
        return record.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        loc = fault["loc"]  # less what pydantic calls the form of an amount
        loc = tuple(part for i, part in enumerate(loc) if part not in FORMS or loc[i - 1] not in AMOUNTS)
        place = (*at, *loc)
        where = ".".join(map(str, loc))
        fields = record.model_fields
        known = [field.alias or key for key, field in fields.items()]
        if fault["type"] == "missing" and len(fault["loc"]) == 1:
            text = f"{what} has no {where}"
        elif fault["type"] == "extra_forbidden":
            text = f"{what}: {where} is no key of it{nearest(str(fault['loc'][-1]), known)}"
        elif fault["type"] == "literal_error":
            values = [value.strip("' ") for value in fault["ctx"]["expected"].replace(" or ", ",").split(",")]
            text = f"{what}: {where}={fault['input']!r} is not one of {', '.join(values)}"
            near = nearest(str(fault["input"]), values)
            text += near if near.startswith(" (nearest") else ""
        else:
            text = str(reading(error, what, where))
        raise Refused(text, place) from error


def _arm_overrides(declared: Mapping[str, Any], name: str) -> dict[str, list[str]]:
    """Each arm's overrides, as lists of text."""
    overrides = declared.get("arm_overrides") or {}
    if not isinstance(overrides, Mapping):
        raise Refused(
            f"arm_overrides of {name}: give {{arm: [overrides]}}, as in {{gqa: [heads=gqa]}}",
            ("arm_overrides",),
        )
    for arm, lines in overrides.items():
        if lines is not None and not (
            isinstance(lines, list) and all(isinstance(line, str) for line in lines)
        ):
            raise Refused(
                f"arm {arm} of {name} is {lines!r}: give a list of overrides, as in [heads=gqa]",
                ("arm_overrides", arm),
            )
    return {arm: list(lines or []) for arm, lines in overrides.items()}


def _arms(declared: Mapping[str, Any], overrides: Mapping[str, list[str]], name: str) -> list[str]:
    """The arms to compare, each declared, once, the baseline among them, none with a seed of its own."""
    arms = declared.get("arms")
    if not isinstance(arms, list) or not arms:
        raise Refused(f"arms={arms} of {name}: give a list of names, as in arms=[mha,gqa]", ("arms",))
    for i, arm in enumerate(arms):
        if arm not in overrides:
            raise Refused(f"{name} has no arm {arm}{nearest(str(arm), overrides)}", ("arms", i))
    if len(set(arms)) < len(arms):
        raise Refused(f"arms={arms} of {name} names an arm twice", ("arms",))
    if declared["baseline"] not in arms:
        raise Refused(
            f"baseline={declared['baseline']} of {name} is not among arms={arms}: add it, or set baseline=",
            ("baseline",),
        )
    for arm in arms:
        at = ("arm_overrides", arm)
        try:
            own = overridden(overrides[arm])
        except OverrideParseException as error:
            line = f"{error.override}: not an override; write key=value"
            raise Refused(f"arm {arm} of {name}: {line}", at) from error
        for key, line in own.items():
            if re.split(r"[./@]", key)[0] in HOW:
                raise Refused(
                    f"arm {arm} of {name} sets {line}: how runs are carried out is the same for all arms; "
                    "set it on the command line",
                    at,
                )
        if "seed" in own:
            raise Refused(f"arm {arm} of {name} sets seed: seeds belong to the experiment, not to an arm", at)
    return arms


def _refuse_unmatched(declared: Mapping[str, Any], name: str) -> None:
    match = declared.get("match", "none")
    for i, arm in enumerate(declared.get("unmatched") or []):
        if arm == declared["baseline"] or arm not in (declared.get("arm_overrides") or {}):
            what = (
                "the baseline, which nothing is made equal to"
                if arm == declared["baseline"]
                else "no arm of it"
            )
            raise Refused(f"unmatched of {name}: {arm} is {what}", ("unmatched", i))
    if match == "none":
        if declared.get("unmatched"):
            raise Refused(f"unmatched of {name}: with match=none no arm is matched", ("unmatched",))
        return
    if match not in matching.FIGURES:
        known = ["none", *matching.FIGURES]
        raise Refused(f"match={match} of {name}{nearest(str(match), known)}", ("match",))
    if not declared.get("match_by"):
        raise Refused(
            f"{name} has match={match} and no match_by: name the key that is solved for", ("match_by",)
        )


def _refuse_leakage(declared: Mapping[str, Any], overrides: Mapping[str, Any], name: str) -> None:
    """An arm that sees future tokens by design is an arm, and nothing is measured against it by default."""
    leakage = declared.get("leakage") or []
    for i, arm in enumerate(leakage if isinstance(leakage, list) else []):  # else its type is refused
        if arm not in overrides:
            raise Refused(
                f"leakage of {name}: it has no arm {arm}{nearest(str(arm), overrides)}", ("leakage", i)
            )
        if arm == declared["baseline"]:
            raise Refused(
                f"leakage of {name}: {arm} is the baseline, and nothing compares with a model that sees "
                "future tokens: set baseline to another arm",
                ("leakage", i),
            )


def _claims(
    declared: Mapping[str, Any], arms: Sequence[str], overrides: Mapping[str, Any], name: str
) -> list[Claim]:
    """The claims, each checked; those about an arm that was left out are dropped."""
    written = declared.get("claims") or []
    if not isinstance(written, list):
        raise Refused(f"claims of {name}: give a list, {_CLAIM} each", ("claims",))
    for i, claim in enumerate(written):
        _refuse_claim(claim, overrides, declared["baseline"], name, ("claims", i))
    claims = [
        _read(Claim, claim, f"claim {i + 1} of {name}", ("claims", i)) for i, claim in enumerate(written)
    ]
    for i, claim in enumerate(claims):
        _refuse_threshold(claim, declared["metric"], f"claim {i + 1} of {name}", ("claims", i, "threshold"))
    return [claim for claim, raw in zip(claims, written, strict=True) if about(raw, arms)]


def _refuse_threshold(claim: Claim, metric: str, what: str, at: Key) -> None:
    """A threshold that no measurement could meet, or that every one does."""
    if not isinstance(claim.threshold, float):
        amounts.refuse_threshold(claim, metric, what, at)
        return
    asked = f"is: {claim.relation.name}, threshold: {claim.threshold:g}"
    try:
        low, high = claim.relation.region(claim.threshold, 1.0 if claim.compare == "ratio" else 0.0)
    except ValueError as error:
        raise Refused(f"{what}: {asked}: no effect could satisfy it; give a number above 0", at) from error
    if claim.compare == "ratio" and (high <= 0 or (low <= 0 and high == math.inf)):
        raise Refused(f"{what}: {asked}: a ratio is never below 0; give a number above it", at)


def _refuse_claim(claim: Any, overrides: Mapping[str, Any], baseline: str, name: str, at: Key) -> None:
    """A claim about an unknown arm, or in which an arm is compared with itself, is an error."""
    if not isinstance(claim, Mapping):
        raise Refused(f"a claim of {name} is {claim!r}: give {_CLAIM}", at)
    for key in ("arm", "against"):
        if claim.get(key) and claim[key] not in overrides:
            arm = claim[key]
            raise Refused(
                f"a claim of {name} is about arm {arm}, which it lacks{nearest(str(arm), overrides)}",
                (*at, key),
            )
    if claim.get("arm") and claim["arm"] == (claim.get("against") or baseline):
        itself = "itself" if claim.get("against") else "the baseline, which it is: name another in against"
        raise Refused(f"a claim of {name} compares arm {claim['arm']} with {itself}", (*at, "arm"))
    if "says" in claim and not str(claim["says"] or "").strip():
        raise Refused(f"a claim of {name} says nothing: the report repeats its words", (*at, "says"))


def integer(value: Any, key: str) -> int:
    """`value`, where it is an integer and no boolean."""
    if type(value) is not int:
        raise Refused(f"{key}: {value!r} is no integer", (key,))
    return value


def no_repeat(seeds: Sequence[int]) -> tuple[int, ...]:
    """The seeds as they are; each is one observation, so none may come twice."""
    if len(set(seeds)) < len(seeds):
        raise Refused(
            f"seeds {list(seeds)} name a seed twice: a seed is one observation, name each once", ("seeds",)
        )
    return tuple(seeds)
