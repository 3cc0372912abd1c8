"""Sizes of differences: a number, a proportion of training compute, or the experiment's margin."""

import math
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, FiniteFloat, Tag, WithJsonSchema

from attnlab.store.run_schema import FrozenModel


def _parse_proportion(value: Any) -> float:
    """Parse `5%`, `5 %` or 0.05, strictly between 0 and 1."""
    text = value.strip() if isinstance(value, str) else value
    try:
        number = float(text.removesuffix("%")) / 100 if isinstance(text, str) and text[-1:] == "%" else None
        number = float(text) if number is None and not isinstance(value, bool) else number
    except (TypeError, ValueError):
        number = None
    if number is None or not 0 < number < 1:
        raise ValueError("must be a proportion of training compute above 0% and below 100%, as in 5%")
    return float(f"{number:.12g}")  # without the rounding error of / 100


Proportion = Annotated[
    float,
    BeforeValidator(_parse_proportion),
    WithJsonSchema({"type": ["number", "string"], "examples": ["5%", 0.05]}),
]


class ComputeProportion(FrozenModel):
    """Proportion of the baseline's training compute: the loss in nats that so much less compute costs."""

    model_config = ConfigDict(strict=True)

    training: Proportion = Field(description="Proportion of training compute, as in 5%.")
    at_most: FiniteFloat | None = Field(None, gt=0, description="Upper limit, in nats.")

    def __str__(self) -> str:
        most = "" if self.at_most is None else f", at most {self.at_most:g} nats"
        return f"{100 * self.training:.6g} % of training{most}"

    def to_nats(self, nats_per_doubling: float) -> float:
        """Convert to nats, rounded to three digits, the precision of the compute calibration."""
        value = nats_per_doubling * -math.log2(1 - self.training)
        return float(f"{value if self.at_most is None else min(value, self.at_most):.3g}")


def _classify_amount(value: Any) -> str:
    """Return the form of an amount, one of `AMOUNT_FORMS`."""
    if isinstance(value, dict | ComputeProportion):
        return "training"
    return "word" if value in (MARGIN, NEGATIVE_MARGIN) else "number"


MARGIN = "margin"
NEGATIVE_MARGIN = "-margin"
_Number: TypeAlias = Annotated[FiniteFloat, Tag("number")]
_Compute: TypeAlias = Annotated[ComputeProportion, Tag("training")]
_Keyword: TypeAlias = Annotated[Literal["margin", "-margin"], Tag("word")]
AMOUNT_FORMS = ("number", "training", "word")  # tags that pydantic adds to the location of an error
AMOUNT_KEYS = ("margin", "threshold")
Margin: TypeAlias = Annotated[_Number | _Compute, Discriminator(_classify_amount)]
Threshold: TypeAlias = Annotated[_Number | _Compute | _Keyword, Discriminator(_classify_amount)]


def describe_training_amount(amount: Any, margin: Any) -> str | None:
    """Describe a margin or threshold, typed or raw, without its sign; None if it is no training compute."""
    amount = margin if amount in (MARGIN, NEGATIVE_MARGIN) else amount
    is_training = isinstance(amount, dict | ComputeProportion)
    return str(ComputeProportion.model_validate(amount)) if is_training else None


def convert_to_nats(amount: Any, margin: Any, nats_per_doubling: float | None) -> Any:
    """Convert a margin or threshold, typed or raw, to a number; None if `nats_per_doubling` is unknown."""
    if amount in (MARGIN, NEGATIVE_MARGIN):
        value = convert_to_nats(margin, None, nats_per_doubling)
        return value if value is None or amount == MARGIN else -value
    if isinstance(amount, dict | ComputeProportion):
        return (
            None
            if nats_per_doubling is None
            else ComputeProportion.model_validate(amount).to_nats(nats_per_doubling)
        )
    return amount
