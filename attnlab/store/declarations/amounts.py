"""How large a difference is, declared as a number, as training, or as the experiment's margin."""

import math
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, FiniteFloat, Tag, WithJsonSchema

from attnlab.store.schema import Record


def _share(value: Any) -> float:
    """5 %, 5% or 0.05, strictly between nothing and all."""
    text = value.strip() if isinstance(value, str) else value
    try:
        number = float(text.removesuffix("%")) / 100 if isinstance(text, str) and text[-1:] == "%" else None
        number = float(text) if number is None and not isinstance(value, bool) else number
    except (TypeError, ValueError):
        number = None
    if number is None or not 0 < number < 1:
        raise ValueError("give a share of the training above 0 % and below 100 %, as in 5 %")
    return float(f"{number:.12g}")  # 5 % is 0.05


Share = Annotated[
    float, BeforeValidator(_share), WithJsonSchema({"type": ["number", "string"], "examples": ["5 %", 0.05]})
]


class Training(Record):
    """What so much less training of the baseline would cost: as many nats as its `exchange` finds."""

    model_config = ConfigDict(strict=True)

    training: Share = Field(description="A share of the training, as in 5 %.")
    at_most: FiniteFloat | None = Field(None, gt=0, description="No more than this, in nats.")

    def __str__(self) -> str:
        most = "" if self.at_most is None else f", at most {self.at_most:g} nats"
        return f"{100 * self.training:.6g} % of training{most}"

    def nats(self, slope: float) -> float:
        """At so many nats per doubling of training; to three digits, as it is known no better."""
        value = slope * -math.log2(1 - self.training)
        return float(f"{value if self.at_most is None else min(value, self.at_most):.3g}")


def _form(value: Any) -> str:
    """Which of an amount's forms a value has."""
    if isinstance(value, dict | Training):
        return "training"
    return "word" if value in (MARGIN, LESS) else "number"


MARGIN = "margin"
LESS = "-margin"
_Number: TypeAlias = Annotated[FiniteFloat, Tag("number")]
_Training: TypeAlias = Annotated[Training, Tag("training")]
_Word: TypeAlias = Annotated[Literal["margin", "-margin"], Tag("word")]
FORMS = ("number", "training", "word")  # of an amount; where one is wrong, pydantic names its form too
AMOUNTS = ("margin", "threshold")
Margin: TypeAlias = Annotated[_Number | _Training, Discriminator(_form)]
Threshold: TypeAlias = Annotated[_Number | _Training | _Word, Discriminator(_form)]


def in_nats(amount: Any, margin: Any, slope: float | None) -> Any:
    """A margin or a threshold as a number, given as a type or as a file has it; None where that takes a
    `slope` and none is known.
    """
    if amount in (MARGIN, LESS):
        value = in_nats(margin, None, slope)
        return value if value is None or amount == MARGIN else -value
    if isinstance(amount, dict | Training):
        return None if slope is None else Training.model_validate(amount).nats(slope)
    return amount
