"""Where a claim says that an effect lies, and the words for how it turns out."""

import json
import math

import pytest
from pydantic import TypeAdapter, ValidationError

from attnlab.store.declarations import RELATIONS, Is


@pytest.mark.parametrize(
    ("relation", "center", "inside", "outside"),
    [
        ("within", 0.0, 0.049, -0.05),
        ("below", 0.0, -9.0, 0.05),
        ("above", 0.0, 9.0, 0.05),
        ("within", 1.0, 1.04, 0.95),
    ],
)
def test_a_region_holds_what_satisfies_the_claim(relation, center, inside, outside):
    low, high = RELATIONS[relation].region(0.05, center)
    assert low < inside < high
    assert not low < outside < high


@pytest.mark.parametrize(
    ("relation", "threshold"), [("within", 0.0), ("within", -0.1), ("below", math.inf), ("above", math.nan)]
)
def test_a_threshold_that_no_effect_satisfies_is_refused(relation, threshold):
    with pytest.raises(ValueError, match=rf"claim `threshold: {threshold}` with `is: {relation}` leaves no"):
        RELATIONS[relation].region(threshold)


def test_a_relation_is_read_and_written_by_its_name():
    field = TypeAdapter(Is)
    assert field.validate_python("below") is RELATIONS["below"]
    assert json.loads(field.dump_json(RELATIONS["within"])) == "within"
    assert field.json_schema() == {"type": "string", "enum": ["below", "above", "within"]}
    with pytest.raises(ValidationError, match="must be one of below, above, within"):
        field.validate_python("under")


@pytest.mark.parametrize(
    ("relation", "threshold", "direction", "supported", "refuted"),
    [
        ("within", 0.1, "lower", "equivalent", "not equivalent"),
        ("below", 0.1, "lower", "non-inferior", "inferior by more than the margin"),
        ("above", -0.1, "higher", "non-inferior", "inferior by more than the margin"),
        ("below", 0.0, "lower", "superior", "not superior"),
        ("above", 0.0, "higher", "superior", "not superior"),
        ("above", 0.0, "lower", "inferior", "not inferior"),
        ("below", -0.1, "lower", "superior by more than the threshold", "not superior by that much"),
        ("above", 0.1, "lower", "inferior by more than the threshold", "not inferior by that much"),
        (
            "below",
            0.1,
            "higher",
            "not superior by more than the threshold",
            "superior by more than the threshold",
        ),
        ("below", 0.1, None, "below the threshold", "not below the threshold"),
        ("above", 1.5, None, "above the threshold", "not above the threshold"),
    ],
)
def test_an_outcome_is_worded_by_which_values_are_better(relation, threshold, direction, supported, refuted):
    assert RELATIONS[relation].conclusions(threshold, direction) == (supported, refuted)


def test_a_two_sided_threshold_is_printed_with_both_signs():
    assert [RELATIONS[name].format_threshold("+0.05") for name in ("below", "within")] == ["+0.05", "±0.05"]
