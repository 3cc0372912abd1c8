"""Validation of experiment files: arms, seeds, budget rule, margin and claims, completed and typed."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from hydra.errors import OverrideParseException
from pydantic import ValidationError

from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.store import fingerprint
from attnlab.store.experiment_files import KeyPath
from attnlab.store.experiment_schema import (
    AMOUNT_FORMS,
    AMOUNT_KEYS,
    FORMS,
    Claim,
    ExpandedClaims,
    Experiment,
    SweptGrid,
    expand_claims,
)
from attnlab.store.run_schema import FrozenModel, convert_validation_error
from attnlab.sweep.plan import budget_matching
from attnlab.sweep.plan.compute_calibration import margin_validation
from attnlab.sweep.plan.overrides import (
    EXECUTION_GROUPS,
    get_root_key,
    index_by_key,
    parse_overrides,
    reject_duplicate_keys,
)
from attnlab.sweep.plan.validate_claims import is_about_arms

_REQUIRED_KEYS = tuple(  # arms and seeds have error messages of their own
    key
    for key, field in Experiment.model_fields.items()
    if field.is_required() and key not in ("arms", "seeds")
)

# keys that an experiment file sets as keys of its own, not in its overrides; size and ladder are groups too
_FILE_KEYS = {*Experiment.model_fields, "experiment", "seed"} - {"size", "ladder"}

_NAME_PATTERN = re.compile(r"\w[\w.-]{0,199}")  # a valid folder name on any file system
_MAX_NAME_LENGTH = 60  # characters of a name that is derived from swept keys
_CLAIM_EXAMPLE = "{says: ..., arm: ..., is: ..., threshold: ...}"
_R = TypeVar("_R", bound=FrozenModel)


def select_experiment_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a config that belong to the experiment."""
    return {key: config[key] for key in Experiment.list_keys() if key in config}


def expand_declared_claims(declared: dict[str, Any]) -> dict[str, Any]:
    """Write out the short forms of claims; what `complete_experiment` rejects is left as it is."""
    if not all(declared.get(key) for key in ("arms", "arm_overrides", "baseline", "claims")):
        return declared
    try:
        overrides = _validate_arm_overrides(declared, "the experiment")
        expanded = _expand_claims(declared, overrides, "the experiment")
    except InvalidConfig:
        return declared
    if expanded.claims == declared["claims"]:
        return declared
    return {
        **declared,
        "arms": expanded.arms,
        "arm_overrides": expanded.arm_overrides,
        "claims": expanded.claims,
    }


def complete_experiment(config: Mapping[str, Any]) -> Experiment:
    """Return the experiment that a config declares."""
    declared = {key: value for key, value in select_experiment_keys(config).items() if value is not None}
    name = declared.get("name") or "the experiment"
    for key in _REQUIRED_KEYS:
        if declared.get(key) in (None, ""):
            raise InvalidConfig(
                f"{name} has no {key}: every experiment needs {', '.join(_REQUIRED_KEYS)}", (key,)
            )
    declared["name"] = name = validate_experiment_name(name)
    _validate_names(declared, name)
    overrides = _validate_arm_overrides(declared, name)
    expanded = _expand_claims(declared, overrides, name)
    overrides = expanded.arm_overrides
    declared["arms"] = expanded.arms
    arms = _validate_arms(declared, overrides, name)
    seeds = _validate_seeds(declared, name)
    _validate_matching(declared, name)
    _validate_leakage_arms(declared, overrides, name)
    completed = {
        **declared,
        "seeds": seeds,
        "arm_overrides": overrides,
        "claims": _parse_claims(declared, expanded, arms, name),
    }
    experiment = _validate_record(Experiment, completed, name, ())
    margin_validation.validate_margin(experiment)
    _validate_ladder_arms(experiment)
    return experiment


def _validate_names(declared: Mapping[str, Any], name: str) -> None:
    """Check that names, and lists of names, are text: the other checks look them up.

    Raises:
        InvalidConfig: A key has a list, mapping or number instead.
    """
    for key in ("baseline", "metric", "match", "match_by"):
        if key in declared and not isinstance(declared[key], str):
            raise InvalidConfig(f"{key}={declared[key]!r} of {name}: give a name, as text", (key,))
    for key in (
        "arms",
        "unmatched",
        "leakage",
        "controlled",
        "metrics",
        "ladder_arms",
        "corpora",
    ):
        values = declared.get(key, [])
        if not isinstance(values, list) and key != "arms":
            raise InvalidConfig(f"{key}={values!r} of {name}: give a list of names", (key,))
        for i, value in enumerate(values if isinstance(values, list) else []):
            if not isinstance(value, str):
                raise InvalidConfig(f"{key} of {name} lists {value!r}: list names, as text", (key, i))


def make_exploratory_experiment(
    config: Mapping[str, Any],
    arms: Mapping[str, list[str]],
    grid: SweptGrid,
    seeds: Sequence[int] | None,
) -> Experiment:
    """Make the experiment of a command that sweeps keys and names no experiment.

    Its arms are the combinations of the swept values, compared by validation loss. It preregisters no margin;
    the 0 in its place is never read.
    """
    baseline = next(iter(arms))
    *others, last = grid.axes
    axes = " and ".join(filter(None, [", ".join(others), last]))
    return Experiment(
        name=_name_sweep(grid),
        question=f"What is the effect of {axes}? The baseline is the first arm, {baseline}.",
        size=config.get("size"),
        arms=list(arms),
        arm_overrides=dict(arms),
        baseline=baseline,
        seeds=list(select_seeds(seeds, config)),
        metric="val/loss",
        margin=0.0,
        margin_reason="",
    )


def _name_sweep(grid: SweptGrid) -> str:
    """Return the names of the axes as one name: `heads_x_position`, or `sweep_heads` for one axis."""
    names = list(grid.short_names.values())
    name = re.sub(r"[^\w.-]+", "_", "_x_".join(names) if len(names) > 1 else f"sweep_{names[0]}")
    if len(name) > _MAX_NAME_LENGTH:
        name = f"{name[:_MAX_NAME_LENGTH]}-{fingerprint.compute_digest(names, 8)}"
    return name


def reject_experiment_keys(base: Mapping[str, Any]) -> None:
    """Check that no key is set that only an experiment may have."""
    for key in ("seeds", "looks", "compute_calibration", "tune", "corpora", "ladder", "leakage", "overrides"):
        if base.get(key) is not None:
            hint = "add +experiment=NAME, or set seed=0,1" if key == "seeds" else "add +experiment=NAME"
            value = "..." if key == "ladder" else base[key]
            raise InvalidConfig(f"{key}={value}: only an experiment can set this key; {hint}")


def _validate_seeds(declared: Mapping[str, Any], name: str) -> list[int]:
    """Return the seeds, each once; with preregistered interim analyses, as many as the last one has."""
    seeds = declared.get("seeds")
    looks = declared.get("looks")
    final = None if looks in (None, "anytime") else _count_final_seeds(looks, name)
    if seeds is None and final is not None:
        return list(range(final))
    if not isinstance(seeds, list) or not seeds:
        raise InvalidConfig(f"{name} has no seeds: set seeds=[0,1,2], or seed=0,1,2", ("seeds",))
    all_seeds = list(require_unique_seeds([require_seed(seed, "seeds") for seed in seeds]))
    if final is not None and len(all_seeds) < final:
        raise InvalidConfig(
            f"looks={looks} of {name}: the last interim analysis needs {final} seeds, but seeds "
            f"lists {len(all_seeds)}: remove seeds, or list as many",
            ("looks",),
        )
    return all_seeds[:final]


def _count_final_seeds(looks: Any, name: str) -> int:
    """Return the number of seeds at the last interim analysis.

    Raises:
        InvalidConfig: `looks` is no list, or its numbers do not grow, or start below 2.
    """
    counts = [require_integer(look, "looks") for look in looks] if isinstance(looks, list) else []
    if not counts or counts[0] < 2 or any(b <= a for a, b in pairwise(counts)):
        raise InvalidConfig(
            f"looks={looks} of {name}: give increasing numbers of seeds, at least 2, as in [4,8,12,16], or "
            "anytime",
            ("looks",),
        )
    return counts[-1]


def validate_experiment_name(name: Any) -> str:
    """Return the experiment's name, which is also the folder of its report; a number counts as text."""
    text = str(name) if isinstance(name, int | float) and not isinstance(name, bool) else name
    if not isinstance(text, str) or not _NAME_PATTERN.fullmatch(text):
        raise InvalidConfig(
            f"name={name!r} is not a valid folder name for the report: use only letters, digits, _ - and .",
            ("name",),
        )
    return text


def _validate_record(record: type[_R], content: Any, what: str, parent_key: KeyPath) -> _R:
    """Parse `content` as a typed record.

    Raises:
        InvalidConfig: It is invalid; the error holds the path of the key at fault, below `parent_key`.
    """
    try:
        return record.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        loc = fault["loc"]  # without the names that pydantic gives to the forms of an amount
        loc = tuple(
            part for i, part in enumerate(loc) if part not in AMOUNT_FORMS or loc[i - 1] not in AMOUNT_KEYS
        )
        key_path = (*parent_key, *loc)
        dotted_key = ".".join(map(str, loc))
        fields = record.model_fields
        known = [field.alias or key for key, field in fields.items()]
        if fault["type"] == "missing" and len(fault["loc"]) == 1:
            text = f"{what} has no {dotted_key}: add it"
        elif fault["type"] == "extra_forbidden":
            text = f"{what}: unknown key {dotted_key}{format_suggestions(str(fault['loc'][-1]), known)}"
        elif fault["type"] == "literal_error":
            values = [value.strip("' ") for value in fault["ctx"]["expected"].replace(" or ", ",").split(",")]
            text = f"{what}: {dotted_key}={fault['input']!r} must be one of {', '.join(values)}"
            suggestions = format_suggestions(str(fault["input"]), values)
            text += suggestions if suggestions.startswith(" (nearest") else ""
        else:
            text = str(convert_validation_error(error, what, dotted_key))
        raise InvalidConfig(text, key_path) from error


def _validate_arm_overrides(declared: Mapping[str, Any], name: str) -> dict[str, list[str]]:
    """Return the overrides of each arm as a list of strings."""
    overrides = declared.get("arm_overrides") or {}
    if not isinstance(overrides, Mapping):
        raise InvalidConfig(
            f"arm_overrides of {name}: give {{arm: [overrides]}}, as in {{gqa: [heads=gqa]}}",
            ("arm_overrides",),
        )
    for arm, lines in overrides.items():
        if lines is not None and not (
            isinstance(lines, list) and all(isinstance(line, str) for line in lines)
        ):
            raise InvalidConfig(
                f"arm {arm} of {name} has overrides {lines!r}: give a list of overrides, as in [heads=gqa]",
                ("arm_overrides", arm),
            )
    return {arm: list(lines or []) for arm, lines in overrides.items()}


def validate_common_overrides(lines: Any) -> list[str]:
    """Return the overrides of all arms, which are applied before the experiment is read.

    Raises:
        InvalidConfig: They are no overrides, or set a key that belongs elsewhere.
    """
    if lines is None:
        return []
    if not (isinstance(lines, list) and all(isinstance(line, str) for line in lines)):
        raise InvalidConfig(
            f"overrides={lines!r}: give a list of overrides, as in [data=text, data.path=book.txt]",
            ("overrides",),
        )
    for i, line in enumerate(lines):
        try:
            [override] = parse_overrides([line])
        except OverrideParseException as error:
            raise InvalidConfig(
                f"overrides: {error.override}: not an override: write key=value", ("overrides", i)
            ) from error
        key = override.key_or_group
        if get_root_key(key) in EXECUTION_GROUPS:
            raise InvalidConfig(
                f"overrides: {line}: execution settings are no part of an experiment; "
                "set it on the command line",
                ("overrides", i),
            )
        if override.is_sweep_override():
            raise InvalidConfig(
                f"overrides: {line}: gives several values; give one, or list the values as arms",
                ("overrides", i),
            )
        if key in _FILE_KEYS:
            raise InvalidConfig(
                f"overrides: {line}: the experiment file sets {key} as a key of its own", ("overrides", i)
            )
    reject_duplicate_keys(parse_overrides(lines), can_sweep=False)
    return list(lines)


def _validate_arms(declared: Mapping[str, Any], overrides: Mapping[str, list[str]], name: str) -> list[str]:
    """Return the names of the arms to compare.

    Raises:
        InvalidConfig: An arm is unknown, repeated, or sets a seed or execution key; or there is no baseline.
    """
    arms = declared.get("arms")
    if not isinstance(arms, list) or not arms:
        raise InvalidConfig(f"arms={arms} of {name}: give a list of names, as in arms=[mha,gqa]", ("arms",))
    for i, arm in enumerate(arms):
        if arm not in overrides:
            raise InvalidConfig(
                f"{name} has no arm {arm}{format_suggestions(str(arm), overrides)}", ("arms", i)
            )
    if len(set(arms)) < len(arms):
        raise InvalidConfig(f"arms={arms} of {name} lists an arm twice: remove one", ("arms",))
    if declared["baseline"] not in arms:
        raise InvalidConfig(
            f"baseline={declared['baseline']} of {name} is not among arms={arms}: add it, or set baseline=",
            ("baseline",),
        )
    for arm in arms:
        key_path = ("arm_overrides", arm)
        try:
            line_by_key = index_by_key(overrides[arm])
            reject_duplicate_keys(parse_overrides(overrides[arm]), can_sweep=False)
        except OverrideParseException as error:
            line = f"{error.override}: not an override: write key=value"
            raise InvalidConfig(f"arm {arm} of {name}: {line}", key_path) from error
        for key, line in line_by_key.items():
            if get_root_key(key) in EXECUTION_GROUPS:
                raise InvalidConfig(
                    f"arm {arm} of {name} sets {line}: execution settings are the same for all "
                    "arms; set it on the command line",
                    key_path,
                )
        if "seed" in line_by_key:
            raise InvalidConfig(
                f"arm {arm} of {name} sets seed: all arms use the seeds of the experiment; remove it",
                key_path,
            )
    return arms


def _validate_matching(declared: Mapping[str, Any], name: str) -> None:
    """Check `match`, `match_by` and `unmatched`."""
    match = declared.get("match", "none")
    for i, arm in enumerate(declared.get("unmatched") or []):
        if arm == declared["baseline"] or arm not in (declared.get("arm_overrides") or {}):
            problem = "the baseline, which is never matched" if arm == declared["baseline"] else "not an arm"
            raise InvalidConfig(f"unmatched of {name}: {arm} is {problem}: remove it", ("unmatched", i))
    if match == "none":
        if declared.get("unmatched"):
            raise InvalidConfig(
                f"unmatched of {name}: match=none matches no arm: remove unmatched, or set match",
                ("unmatched",),
            )
        return
    if match not in budget_matching.RESOURCE_ALIASES:
        known = ["none", *budget_matching.RESOURCE_ALIASES]
        raise InvalidConfig(
            f"unknown match={match} of {name}{format_suggestions(str(match), known)}", ("match",)
        )
    if not declared.get("match_by"):
        raise InvalidConfig(
            f"{name} has match={match} but no match_by: set match_by to the key to solve for", ("match_by",)
        )


def _validate_ladder_arms(experiment: Experiment) -> None:
    """Check that the arms of a ladder are arms; like claims, of any command."""
    for i, arm in enumerate(experiment.ladder_arms or []):
        if arm not in experiment.arm_overrides:
            hint = format_suggestions(arm, experiment.arm_overrides)
            raise InvalidConfig(
                f"ladder_arms of {experiment.name}: unknown arm {arm}{hint}", ("ladder_arms", i)
            )


def _validate_leakage_arms(declared: Mapping[str, Any], overrides: Mapping[str, Any], name: str) -> None:
    """Check that arms that see future tokens by design exist, and that none is the baseline."""
    leakage = declared.get("leakage") or []
    for i, arm in enumerate(leakage):
        if arm not in overrides:
            raise InvalidConfig(
                f"leakage of {name}: unknown arm {arm}{format_suggestions(str(arm), overrides)}",
                ("leakage", i),
            )
        if arm == declared["baseline"]:
            raise InvalidConfig(
                f"leakage of {name}: {arm} is the baseline, but no arm can be compared with a "
                "model that sees future tokens: set baseline to another arm",
                ("leakage", i),
            )


def _expand_claims(
    declared: Mapping[str, Any], overrides: Mapping[str, list[str]], name: str
) -> ExpandedClaims:
    """Write out the short forms of claims and add the arms that they combine."""
    raw_claims = declared.get("claims", [])
    if not isinstance(raw_claims, list):
        raise InvalidConfig(f"claims of {name}: give a list, {_CLAIM_EXAMPLE} each", ("claims",))
    arms = declared.get("arms")
    if not isinstance(arms, list):  # `_validate_arms` rejects it
        return ExpandedClaims(raw_claims, list(range(len(raw_claims))), arms or [], dict(overrides))
    try:
        return expand_claims(raw_claims, arms, overrides, declared["baseline"])
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}", error.key_path) from error


def _parse_claims(
    declared: Mapping[str, Any], expanded: ExpandedClaims, arms: Sequence[str], name: str
) -> list[Claim]:
    """Return the claims, all of them checked, without those about an arm that is not compared."""
    placed_claims = [*zip(expanded.claims, expanded.positions, strict=True)]
    for raw_claim, i in placed_claims:
        _validate_claim_arms(raw_claim, expanded.arm_overrides, declared["baseline"], name, ("claims", i))
    claims = [
        _validate_record(Claim, raw_claim, f"claim {i + 1} of {name}", ("claims", i))
        for raw_claim, i in placed_claims
    ]
    for claim, (_, i) in zip(claims, placed_claims, strict=True):
        _validate_threshold(claim, declared["metric"], f"claim {i + 1} of {name}", ("claims", i, "threshold"))
    return [
        claim
        for claim, (raw_claim, _) in zip(claims, placed_claims, strict=True)
        if is_about_arms(raw_claim, arms)
    ]


def _validate_threshold(claim: Claim, metric: str, what: str, at: KeyPath) -> None:
    """Check the threshold of a claim.

    Raises:
        InvalidConfig: No measurement could satisfy the claim, or every measurement would.
    """
    if not isinstance(claim.threshold, float):
        margin_validation.validate_margin_threshold(claim, metric, what, at)
        return
    condition = f"is: {claim.relation.name}, threshold: {claim.threshold:g}"
    try:
        low, high = claim.relation.compute_region(claim.threshold, 1.0 if claim.compare == "ratio" else 0.0)
    except ValueError as error:
        raise InvalidConfig(
            f"{what}: {condition}: no effect can satisfy it; give a number above 0", at
        ) from error
    if claim.compare == "ratio" and (high <= 0 or (low <= 0 and high == math.inf)):
        raise InvalidConfig(f"{what}: {condition}: a ratio is never below 0; give a number above 0", at)


def _validate_claim_arms(
    claim: Any, overrides: Mapping[str, Any], baseline: str, name: str, key_path: KeyPath
) -> None:
    """Check the arms of a claim as written.

    Raises:
        InvalidConfig: An arm is unknown, or the claim compares an arm with itself.
    """
    if not isinstance(claim, Mapping):
        raise InvalidConfig(f"a claim of {name} is {claim!r}: give {_CLAIM_EXAMPLE}", key_path)
    if not any(claim.get(form) for form in FORMS):
        raise InvalidConfig(
            f"a claim of {name} names no arm: give one of {', '.join(FORMS)}", (*key_path, "arm")
        )
    for key in ("arm", "against"):
        if claim.get(key) and claim[key] not in [*overrides]:  # a list has no hash
            arm = claim[key]
            raise InvalidConfig(
                f"a claim of {name} has the unknown arm {arm}{format_suggestions(str(arm), overrides)}",
                (*key_path, key),
            )
    if claim.get("arm") and claim["arm"] == (claim.get("against") or baseline):
        other = (
            "itself"
            if claim.get("against")
            else "itself, because it is the baseline: set against to another arm"
        )
        raise InvalidConfig(f"a claim of {name} compares arm {claim['arm']} with {other}", (*key_path, "arm"))
    if "says" in claim and not str(claim["says"] or "").strip():
        raise InvalidConfig(
            f"a claim of {name} has an empty `says`: write the statement that the report prints",
            (*key_path, "says"),
        )


def require_integer(value: Any, key: str) -> int:
    """Return `value` if it is an integer and no boolean."""
    if type(value) is not int:
        raise InvalidConfig(f"{key}: {value!r} is not an integer", (key,))
    return value


def require_seed(value: Any, key: str) -> int:
    """Return `value` if it is an integer from 0 to 2^63 - 1."""
    if not 0 <= require_integer(value, key) < 2**63:
        raise InvalidConfig(f"{key}: {value} is no seed: give an integer from 0 to 2^63 - 1", (key,))
    return int(value)


def require_unique_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """Return the seeds if none is repeated; each seed is one observation."""
    if len(set(seeds)) < len(seeds):
        raise InvalidConfig(
            f"seeds {list(seeds)} contain a duplicate, but a seed is one observation: list each once",
            ("seeds",),
        )
    return tuple(seeds)


def select_seeds(seeds: Sequence[int] | None, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the seeds of the command line, or else the one of the config; each seed once."""
    return require_unique_seeds([require_seed(config.get("seed", 0), "seed")] if seeds is None else seeds)
