"""Conformance tests: check the invariants of attention on shipped variants and on your own.

    from attnlab import testing

    @testing.cases(*testing.compose_variants(["heads=mine"], config_dir="conf"))
    def test_my_heads_are_attention(case):
        case()

`check_variant(["heads=mine"])` returns the outcomes instead. `check_module` and
`parametrize_attention_checks` check any torch module, also of other projects. All trials use small seeded
float64 tensors on the CPU.
"""

from attnlab.testing.conformance import (
    Case,
    Outcome,
    cases,
    check_variant,
    evaluate_invariant,
    evaluate_variant,
    find_applicable_invariants,
    verify,
)
from attnlab.testing.invariants.variant import Variant
from attnlab.testing.invariants.variant_composition import (
    combine_choices,
    compose_variants,
    count_single_axis_variants,
    iter_single_axis_variants,
)
from attnlab.testing.module_checks.check_results import CheckResult, Reproduction
from attnlab.testing.module_checks.runner import check_module, parametrize_attention_checks

__all__ = [
    "Case",
    "CheckResult",
    "Outcome",
    "Reproduction",
    "Variant",
    "cases",
    "check_module",
    "check_variant",
    "combine_choices",
    "compose_variants",
    "count_single_axis_variants",
    "evaluate_invariant",
    "evaluate_variant",
    "find_applicable_invariants",
    "iter_single_axis_variants",
    "parametrize_attention_checks",
    "verify",
]
