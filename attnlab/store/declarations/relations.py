"""Where a claim says that an effect lies: `is: below`, `above` or `within` a threshold.

A relation is a class: the region in which the claim holds decides it, `conclusions` word the outcome, and
`format_threshold` prints the threshold. One more class in `RELATIONS` is one more value of `is`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

Region = tuple[float, float]  # an open interval


class Relation(ABC):
    """One value of `is`."""

    name: ClassVar[str]
    means: ClassVar[str]  # completes "the effect lies"
    two_sided: ClassVar[bool] = False  # its threshold is a distance from no difference, to both sides

    def region(self, threshold: float, center: float = 0.0) -> Region:
        """The effects for which the claim holds.

        Args:
            threshold: as declared, in the metric's unit, or a ratio.
            center: "no difference": 0, or 1 for a ratio.

        Raises:
            ValueError: no effect could satisfy the claim, or the threshold is not finite.
        """
        low, high = self._region(threshold, center)
        if not math.isfinite(threshold) or low >= high:
            raise ValueError(
                f"claim `threshold: {threshold}` with `is: {self.name}` leaves no effect for which it holds"
            )
        return low, high

    @abstractmethod
    def _region(self, threshold: float, center: float) -> Region: ...

    @abstractmethod
    def conclusions(self, threshold: float, direction: str | None) -> tuple[str, str]:
        """Words for a claim about a difference that is supported, and for one that is refuted.

        Args:
            direction: which values of the metric are better: lower, higher, or None where neither is.
        """

    def format_threshold(self, number: str) -> str:
        """The threshold as text, from its number with a sign."""
        return number


@dataclass(frozen=True)
class Below(Relation):
    name = "below"
    means = "below the threshold"

    def _region(self, threshold: float, center: float) -> Region:
        return -math.inf, threshold

    def conclusions(self, threshold: float, direction: str | None) -> tuple[str, str]:
        return _one_sided(threshold, direction, "below")


@dataclass(frozen=True)
class Above(Relation):
    name = "above"
    means = "above the threshold"

    def _region(self, threshold: float, center: float) -> Region:
        return threshold, math.inf

    def conclusions(self, threshold: float, direction: str | None) -> tuple[str, str]:
        return _one_sided(threshold, direction, "above")


@dataclass(frozen=True)
class Within(Relation):
    name = "within"
    two_sided = True
    means = "no further than the threshold from no difference (0, or a ratio of 1)"

    def _region(self, threshold: float, center: float) -> Region:
        return center - threshold, center + threshold

    def conclusions(self, threshold: float, direction: str | None) -> tuple[str, str]:
        return "equivalent", "not equivalent"

    def format_threshold(self, number: str) -> str:
        return "\N{PLUS-MINUS SIGN}" + number.lstrip("+")


def _one_sided(threshold: float, direction: str | None, side: str) -> tuple[str, str]:
    """Conclusions of a claim that the effect lies on one side of its threshold."""
    if direction is None:
        return f"{side} the threshold", f"not {side} the threshold"
    harm = threshold if direction == "lower" else -threshold  # the threshold as a worsening
    asserts_benefit = (direction == "lower") == (side == "below")
    if harm == 0:
        return ("superior", "not superior") if asserts_benefit else ("inferior", "not inferior")
    if asserts_benefit:
        if harm > 0:
            return "non-inferior", "inferior by more than the margin"
        return "superior by more than the threshold", "not superior by that much"
    if harm > 0:
        return "inferior by more than the threshold", "not inferior by that much"
    return "not superior by more than the threshold", "superior by more than the threshold"


RELATIONS: dict[str, Relation] = {relation.name: relation for relation in (Below(), Above(), Within())}


def _read(value: Any) -> Relation:
    if isinstance(value, Relation):
        return value
    if not isinstance(value, str) or value not in RELATIONS:
        raise ValueError(f"must be one of {', '.join(RELATIONS)}")
    return RELATIONS[value]


Is = Annotated[
    Relation,
    PlainValidator(_read),
    PlainSerializer(lambda relation: relation.name, return_type=str),
    WithJsonSchema({"type": "string", "enum": [*RELATIONS]}),
]  # a field that holds a relation, written by its name
