"""Short forms of claims, written out as claims about two arms or about a contrast of arms.

- `interaction: [a, b]`: the contrast a_b - a - b + baseline, where a_b has the overrides of both
- `chain: [a, b, c]`: b against a, c against b, and c against a
- `leave_one_out: a`: each remainder of a, without one of its overrides, against a
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from attnlab.errors import InvalidConfig, format_suggestions

FORMS = ("arm", "contrast", "interaction", "chain", "leave_one_out")


@dataclass(frozen=True)
class ExpandedClaims:
    """Claims without short forms, and the arms that they name.

    `positions` holds the index of each claim in the file.
    """

    claims: list[Any]
    positions: list[int]
    arms: list[str]
    arm_overrides: dict[str, list[str]]


def expand_claims(
    claims: Sequence[Any], arms: Sequence[str], arm_overrides: Mapping[str, Sequence[str]], baseline: str
) -> ExpandedClaims:
    """Write out the short forms of claims, and add the arms that they combine.

    Args:
        claims: As in the file; what is no mapping is left as it is.
        arms: Compared arms. A new arm is compared if those that it is made of are.
        arm_overrides: Overrides of each arm.
        baseline: Arm that both arms of an interaction change.

    Raises:
        InvalidConfig: A claim has several forms, an unknown arm, or a form that gives no claim.
    """
    all_overrides = {arm: list(lines) for arm, lines in arm_overrides.items()}
    made_arms = dict[str, list[str]]()
    compared = list(arms)
    expanded, positions = list[Any](), list[int]()
    for i, claim in enumerate(claims):
        form = _find_form(claim, i) if isinstance(claim, Mapping) else None
        try:
            if form == "interaction":
                new_claims = [_expand_interaction(claim, compared, all_overrides, made_arms, baseline)]
            elif form == "chain":
                new_claims = [*_expand_chain(claim, all_overrides)]
            elif form == "leave_one_out":
                new_claims = [*_expand_leave_one_out(claim, compared, all_overrides, made_arms)]
            else:
                if form == "contrast":
                    _validate_contrast(claim, all_overrides)
                new_claims = [claim]
        except ValueError as error:
            raise InvalidConfig(f"claim {i + 1}: {form}: {error}", ("claims", i, form or "")) from error
        expanded += new_claims
        positions += [i] * len(new_claims)
    return ExpandedClaims(expanded, positions, compared, all_overrides)


def _find_form(claim: Mapping[str, Any], index: int) -> str | None:
    """Find the key that says which arms a claim compares; None if there is none."""
    forms = [form for form in FORMS if claim.get(form) is not None]
    if len(forms) > 1:
        raise InvalidConfig(
            f"claim {index + 1} has {' and '.join(forms)}: give one of {', '.join(FORMS)}",
            ("claims", index, forms[1]),
        )
    form = forms[0] if forms else None
    if form not in (None, "arm"):
        if claim.get("against") is not None:
            raise InvalidConfig(
                f"claim {index + 1}: against belongs to arm, not to {form}: remove it",
                ("claims", index, "against"),
            )
        if form in ("contrast", "interaction") and claim.get("compare") == "ratio":
            raise InvalidConfig(
                f"claim {index + 1}: {form} is a sum of differences: remove compare: ratio",
                ("claims", index, "compare"),
            )
    return form


def _expand_interaction(
    claim: Mapping[str, Any],
    arms: list[str],
    overrides: dict[str, list[str]],
    made_arms: dict[str, list[str]],
    baseline: str,
) -> dict[str, Any]:
    pair = _require_names(claim["interaction"], overrides)
    if len(pair) != 2 or baseline in pair:
        raise ValueError(f"give two arms, without the baseline {baseline}, as in [gate, exclusive]")
    both = "_".join(pair)
    if both not in overrides or both in made_arms:
        lines = {_get_key(line): line for line in overrides[pair[0]]}
        for line in overrides[pair[1]]:
            if lines.setdefault(_get_key(line), line) != line:
                raise ValueError(
                    f"{pair[0]} and {pair[1]} both set {_get_key(line)}: write an arm {both} with the value "
                    "of both changes together"
                )
        _add_arm(both, list(lines.values()), overrides, made_arms)
    if both not in arms and {*pair, baseline} <= {*arms}:
        arms.append(both)
    return {**claim, "contrast": {both: 1.0, pair[0]: -1.0, pair[1]: -1.0, baseline: 1.0}}


def _expand_chain(claim: Mapping[str, Any], overrides: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    chain = _require_names(claim["chain"], overrides)
    if len(chain) < 3:
        raise ValueError("give at least three arms, in the order of the steps; two are `arm` and `against`")
    for before, arm in [*pairwise(chain), (chain[0], chain[-1])]:
        yield _make_pair_claim(claim, arm, before)


def _expand_leave_one_out(
    claim: Mapping[str, Any],
    arms: list[str],
    overrides: dict[str, list[str]],
    made_arms: dict[str, list[str]],
) -> Iterator[dict[str, Any]]:
    [whole] = _require_names([claim["leave_one_out"]], overrides)
    lines = overrides[whole]
    if len(lines) < 2:
        raise ValueError(f"arm {whole} has fewer than two overrides, so nothing can be left out of it")
    short_keys = [_get_key(line).removesuffix("._target_").rpartition(".")[2] for line in lines]
    for i, line in enumerate(lines):
        key = short_keys[i] if short_keys.count(short_keys[i]) == 1 else _get_key(line).replace(".", "_")
        remainder = f"without_{key.replace('/', '_')}"
        _add_arm(remainder, [*lines[:i], *lines[i + 1 :]], overrides, made_arms)
        if whole in arms and remainder not in arms:
            arms.append(remainder)
        yield _make_pair_claim(claim, remainder, whole)


def _add_arm(
    name: str, lines: list[str], overrides: dict[str, list[str]], made_arms: dict[str, list[str]]
) -> None:
    """Add an arm that a claim combines, unless the file has it.

    Raises:
        ValueError: another claim has made an arm of this name with other overrides.
    """
    if made_arms.get(name, lines) != lines:
        raise ValueError(
            f"it needs an arm {name} with {lines}, and another claim one with {made_arms[name]}: rename an "
            "arm, or write these claims with `arm` and `against`"
        )
    if name not in overrides:
        overrides[name] = made_arms[name] = lines


def _make_pair_claim(claim: Mapping[str, Any], arm: str, against: str) -> dict[str, Any]:
    says = claim.get("says")
    if not isinstance(says, str) or "{arm}" not in says or "{against}" not in says:
        raise ValueError(
            "says needs {arm} and {against}, as in '{arm} has a lower validation loss than {against}'"
        )
    return {
        **claim,
        "says": says.replace("{arm}", arm).replace("{against}", against),
        "arm": arm,
        "against": against,
    }


def _validate_contrast(claim: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    weights = claim["contrast"]
    if not isinstance(weights, Mapping):
        raise ValueError("give weights of arms, as in {a: 1, b: -0.5, c: -0.5}")
    _require_names(list(weights), overrides)
    for arm, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ValueError(f"the weight of {arm} is {weight!r}: give a number")
        if weight == 0:
            raise ValueError(f"the weight of {arm} is 0: leave it out")
    total = math.fsum(weights.values())
    if len(weights) < 2 or abs(total) > 1e-9 * max(map(abs, weights.values())):
        raise ValueError(f"the weights add up to {total:g}: two or more weights that add up to 0 are needed")


def _require_names(names: Any, overrides: Mapping[str, Any]) -> list[str]:
    """Return the names of arms if all are known and none is repeated."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{names!r}: give names of arms")
    for name in names:
        if name not in overrides:
            raise ValueError(f"unknown arm {name}{format_suggestions(name, overrides)}")
    if len({*names}) < len(names):
        raise ValueError(f"{', '.join(names)}: an arm is repeated; list each once")
    return list(names)


def _get_key(line: str) -> str:
    """Return the key of an override, as in `model.act` of `+model.act=gelu`."""
    return line.lstrip("+~").partition("=")[0]
