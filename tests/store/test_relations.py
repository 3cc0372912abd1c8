"""Relations of claims: regions of effects, and wording of the conclusions."""

import json
import math

import pytest
from pydantic import TypeAdapter, ValidationError

from attnlab.store.experiment_schema import RELATIONS, RelationField


@pytest.mark.parametrize(
    ("relation", "center", "inside", "outside"),
    [
        ("within", 0.0, 0.049, -0.05),
        ("below", 0.0, -9.0, 0.05),
        ("above", 0.0, 9.0, 0.05),
        ("within", 1.0, 1.04, 0.95),
    ],
)
def test_the_region_contains_the_effects_that_satisfy_the_claim(relation, center, inside, outside):
    low, high = RELATIONS[relation].compute_region(0.05, center)
    assert low < inside < high
    assert not low < outside < high


@pytest.mark.parametrize(
    ("relation", "threshold"), [("within", 0.0), ("within", -0.1), ("below", math.inf), ("above", math.nan)]
)
def test_a_threshold_that_no_effect_satisfies_is_rejected(relation, threshold):
    with pytest.raises(ValueError, match=rf"no effect .* `threshold: {threshold}` and `is: {relation}`"):
        RELATIONS[relation].compute_region(threshold)


def test_a_relation_is_parsed_and_serialized_by_name():
    field = TypeAdapter(RelationField)
    assert field.validate_python("below") is RELATIONS["below"]
    assert json.loads(field.dump_json(RELATIONS["within"])) == "within"
    assert field.json_schema() == {"type": "string", "enum": ["below", "above", "within"]}
    with pytest.raises(ValidationError, match="must be one of below, above, within"):
        field.validate_python("under")


@pytest.mark.parametrize(
    ("relation", "threshold", "direction", "supported", "refuted"),
    [
        ("within", 0.1, "lower", "equivalent", "not equivalent"),
        ("below", 0.1, "lower", "non-inferior", "worse by more than the margin"),
        ("above", -0.1, "higher", "non-inferior", "worse by more than the margin"),
        ("below", 0.0, "lower", "better", "not better"),
        ("above", 0.0, "higher", "better", "not better"),
        ("above", 0.0, "lower", "worse", "not worse"),
        ("below", -0.1, "lower", "better by more than the threshold", "not better by that much"),
        ("above", 0.1, "lower", "worse by more than the threshold", "not worse by that much"),
        (
            "below",
            0.1,
            "higher",
            "not better by more than the threshold",
            "better by more than the threshold",
        ),
        ("below", 0.1, None, "below the threshold", "not below the threshold"),
        ("above", 1.5, None, "above the threshold", "not above the threshold"),
    ],
)
def test_conclusions_follow_the_direction_of_the_metric(relation, threshold, direction, supported, refuted):
    assert RELATIONS[relation].format_conclusions(threshold, direction) == (supported, refuted)


def test_a_two_sided_threshold_is_printed_with_both_signs():
    assert [RELATIONS[name].format_threshold("+0.05") for name in ("below", "within")] == ["+0.05", "±0.05"]
