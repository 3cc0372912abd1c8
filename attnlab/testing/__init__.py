"""The conformance kit: do the laws of attention hold for a variant? For the shipped ones, and for yours.

    from attnlab import testing

    @testing.cases(*testing.composed(["heads=mine"], config_dir="conf"))
    def test_my_heads_are_attention(case):
        case()

`check_variant(["heads=mine"])` gives the outcomes instead. All trials are in float64 with small seeded
tensors, on the CPU.
"""

from attnlab.testing.kit import Case, Outcome, applying, cases, check_variant, judge, outcomes, verify
from attnlab.testing.laws.compose import combination, composed, one_at_a_time
from attnlab.testing.laws.variant import Variant

__all__ = [
    "Case",
    "Outcome",
    "Variant",
    "applying",
    "cases",
    "check_variant",
    "combination",
    "composed",
    "judge",
    "one_at_a_time",
    "outcomes",
    "verify",
]
