"""Relations of a claim: the effect lies `below`, `above` or `within` a threshold.

Each relation is a class: the region in which the claim holds decides it, `format_conclusions` words the
outcome, and `format_threshold` prints the threshold. A new class in `RELATIONS` adds a value of `is`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

Region = tuple[float, float]  # an open interval


class Relation(ABC):
    """One value of the key `is`."""

    name: ClassVar[str]
    description: ClassVar[str]  # completes "the effect lies"
    is_two_sided: ClassVar[bool] = False  # whether the threshold is a distance to both sides of no difference

    def compute_region(self, threshold: float, center: float = 0.0) -> Region:
        """Return the open interval of effects for which the claim holds.

        Args:
            threshold: As preregistered, in the metric's unit, or a ratio.
            center: Value of no difference: 0, or 1 for a ratio.

        Raises:
            ValueError: No effect could satisfy the claim, or the threshold is not finite.
        """
        low, high = self._compute_bounds(threshold, center)
        if not math.isfinite(threshold) or low >= high:
            raise ValueError(
                f"no effect can satisfy a claim with `threshold: {threshold}` and `is: {self.name}`: "
                "change the threshold"
            )
        return low, high

    @abstractmethod
    def _compute_bounds(self, threshold: float, center: float) -> Region: ...

    @abstractmethod
    def format_conclusions(self, threshold: float, direction: str | None) -> tuple[str, str]:
        """Return the conclusions of a supported and of a refuted claim about a difference.

        Args:
            direction: Whether lower or higher values of the metric are better; None if neither is.
        """

    def format_threshold(self, number: str) -> str:
        """Return the threshold as text, given its signed number."""
        return number


@dataclass(frozen=True)
class Below(Relation):
    name = "below"
    description = "below the threshold"

    def _compute_bounds(self, threshold: float, center: float) -> Region:
        return -math.inf, threshold

    def format_conclusions(self, threshold: float, direction: str | None) -> tuple[str, str]:
        return _format_one_sided_conclusions(threshold, direction, "below")


@dataclass(frozen=True)
class Above(Relation):
    name = "above"
    description = "above the threshold"

    def _compute_bounds(self, threshold: float, center: float) -> Region:
        return threshold, math.inf

    def format_conclusions(self, threshold: float, direction: str | None) -> tuple[str, str]:
        return _format_one_sided_conclusions(threshold, direction, "above")


@dataclass(frozen=True)
class Within(Relation):
    name = "within"
    is_two_sided = True
    description = "at most the threshold away from no difference (0, or a ratio of 1)"

    def _compute_bounds(self, threshold: float, center: float) -> Region:
        return center - threshold, center + threshold

    def format_conclusions(self, threshold: float, direction: str | None) -> tuple[str, str]:
        return "equivalent", "not equivalent"

    def format_threshold(self, number: str) -> str:
        return "\N{PLUS-MINUS SIGN}" + number.lstrip("+")


def _format_one_sided_conclusions(threshold: float, direction: str | None, side: str) -> tuple[str, str]:
    """Return the conclusions of a claim that the effect lies on one side of its threshold."""
    if direction is None:
        return f"{side} the threshold", f"not {side} the threshold"
    harm = threshold if direction == "lower" else -threshold  # the threshold as a worsening
    asserts_benefit = (direction == "lower") == (side == "below")
    if harm == 0:
        return ("better", "not better") if asserts_benefit else ("worse", "not worse")
    if asserts_benefit:
        if harm > 0:
            return "non-inferior", "worse by more than the margin"
        return "better by more than the threshold", "not better by that much"
    if harm > 0:
        return "worse by more than the threshold", "not worse by that much"
    return "not better by more than the threshold", "better by more than the threshold"


RELATIONS: dict[str, Relation] = {relation.name: relation for relation in (Below(), Above(), Within())}


def _parse_relation(value: Any) -> Relation:
    if isinstance(value, Relation):
        return value
    if not isinstance(value, str) or value not in RELATIONS:
        raise ValueError(f"must be one of {', '.join(RELATIONS)}")
    return RELATIONS[value]


RelationField = Annotated[
    Relation,
    PlainValidator(_parse_relation),
    PlainSerializer(lambda relation: relation.name, return_type=str),
    WithJsonSchema({"type": "string", "enum": [*RELATIONS]}),
]  # a field that holds a relation, written by its name
