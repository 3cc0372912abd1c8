"""Template of a report's answer: a sentence with placeholders that the report fills in.

`{ARM.FIELD}` is about an arm and the baseline, `{ARM/OTHER.FIELD}` about an arm and another that a claim
compares it with, both in the experiment's metric:

- `outcome`: Δ, its 95% interval, the threshold and the verdict, as in a claim's line
- `delta`: Δ with its 95% interval
- `verdict`: the conclusion and the verdict, as in `non-inferior (SUPPORTED)`
- a resource, as in `{gqa.kv_bytes_per_token}`, or with `_ratio` its ratio to the other arm

`{best}` is the arm with the best mean.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from string import Formatter

from attnlab.errors import format_suggestions
from attnlab.store.run_schema import Budget

BEST = "best"
COMPARISON_FIELDS = ("outcome", "delta", "verdict")
RATIO_SUFFIX = "_ratio"
RESOURCES = tuple(key for key in Budget.model_fields if key not in ("dtype", "kernel", "device"))


@dataclass(frozen=True)
class Placeholder:
    """A placeholder: its field, and its arms; `arm` is empty for `{best}`, `against` for the baseline."""

    field: str
    arm: str = ""
    against: str = ""


def parse_answer_template(template: str) -> list[str | Placeholder]:
    """Parse a template into text and placeholders.

    Raises:
        ValueError: A brace has no partner, or a placeholder has an unknown form or field.
    """
    try:
        fields = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{error}: close every placeholder, and write {{{{ or }}}} for a brace") from error
    parts = list[str | Placeholder]()
    for text, name, spec, conversion in fields:
        parts.append(text)
        if name is not None:
            parts.append(_parse_placeholder(name + (f"!{conversion}" if conversion else "") + (spec or "")))
    return parts


def _parse_placeholder(name: str) -> Placeholder:
    if name == BEST:
        return Placeholder(BEST)
    arms, _, field = name.rpartition(".")
    arm, _, against = arms.partition("/")
    if not arm:
        raise ValueError(f"{{{name}}}: write {{ARM.outcome}}, {{ARM/OTHER.outcome}} or {{{BEST}}}")
    if field not in COMPARISON_FIELDS and field.removesuffix(RATIO_SUFFIX) not in RESOURCES:
        known = [*COMPARISON_FIELDS, *RESOURCES, *(f"{key}{RATIO_SUFFIX}" for key in RESOURCES)]
        raise ValueError(f"{{{name}}}: unknown field {field}{format_suggestions(field, known)}")
    return Placeholder(field, arm, against)


def validate_answer_template(
    template: str, arms: Collection[str], compared_pairs: Collection[Sequence[str]]
) -> None:
    """Check the placeholders of a template.

    Args:
        arms: all arms of the experiment file.
        compared_pairs: (arm, other arm) of the claims about the experiment's metric.

    Raises:
        ValueError: The template cannot be parsed, or a placeholder names no arm or an uncompared pair.
    """
    for part in parse_answer_template(template):
        if isinstance(part, str):
            continue
        for arm in filter(None, (part.arm, part.against)):
            if arm not in arms:
                raise ValueError(f"unknown arm {arm}{format_suggestions(arm, arms)}")
        pair = (part.arm, part.against)
        if part.against and part.field in COMPARISON_FIELDS and pair not in compared_pairs:
            raise ValueError(
                f"{{{part.arm}/{part.against}.{part.field}}}: no claim compares these arms in the metric of "
                "the experiment: add one, or name another pair"
            )
