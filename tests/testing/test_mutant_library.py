"""Detection rate of the conformance tests: mutants must be caught, unusual but valid variants must pass."""

import pytest
from mutants import load_mutants, load_valid_variants

from attnlab import testing
from attnlab.testing.invariants import INVARIANTS

MUTANTS, VALID_VARIANTS = load_mutants(), load_valid_variants()
UNDETECTABLE = {
    "a sink that leaves the shown weights whole": "its declaration defines an epilogue's effect on weights",
}
INVARIANT_BY_MUTANT = {  # mutants that were missed once, and the invariant written to catch them
    "a mask that sees the next token": "future_visibility_is_declared",
    "a stride that looks both ways": "future_visibility_is_declared",
    "a mask that leaks from position 40, by a default argument": "future_visibility_is_declared",
    "a mask that leaks from position 200, by a global": "future_visibility_is_declared",
    "a mask that leaks from position 1000, by a closure": "future_visibility_is_declared",
    "a mask that leaks in the last head, at every eighth query": "future_visibility_is_declared",
    "a window wider than it declares, from position 65 on": "future_visibility_is_declared",
    "a mask of numbers": "builds",
    "a triangle of slots from the top left": "masks_and_scores_depend_on_positions",
    "scores centered over keys, beside a sink": "masks_and_scores_depend_on_positions",
    "no mask from 129 queries on": "long_sequences",
    "chunks of sixteen open both ways": "long_sequences",
    "a cache that forgets beyond 32 tokens": "long_sequences",
    "a cache that leaves out what it has no room for": "cache_capacity",
    "a cache that declares to hold less than it does": "state_size",
    "batch norm before the projection": "batch",
    "keys that are halved in evaluation only": "training_mode",
    "keys that do not turn": "shift_invariance",
    "positions in bfloat16": "rotation_is_relative",
    "a bias that adds other than it says": "bias_is_additive",
    "heads that do not name their KV heads": "measurements_succeed",
    "heads that count the work of one": "declared_costs_match_counts",
    "keys without a gradient": "gradients",
    "dropout that does not rescale": "dropout_preserves_mean",
    "learned slopes in a plain list": "parameters",
    "a softmax without its maximum": "kernel_matches_reference",
    "eight query heads tiled": "kernel_matches_reference",
    "angles in the dtype of features": "long_sequences",
    "an epilogue that promotes 16-bit outputs": "dtypes",
    "keys cached wider than counted": "state_size",
    "heads that change their input": "state",
    "a gain without effect unless rotated": "trains",
    "slopes of the first eight heads": "more_and_wider_heads",
    "a mean detached every 64 tokens": "long_sequences",
    "features that are not saved": "determinism",
    "a cache that drops keys before long chunks see them": "long_sequences",
    "blocks beyond a declared prefix": "future_visibility_is_declared",
    "a block that resets the random state": "model_random_state",
    "a block that ranks all tokens": "model_cache",
    "a mixture over depth without gradient": "trains",
}


def collect_failures(variant, invariant_names=None):
    """Map the names of failed invariants to their details."""
    return {
        outcome.invariant: outcome.detail
        for outcome in testing.evaluate_variant(variant, invariant_names)
        if outcome.status == "failed"
    }


@pytest.mark.parametrize("bug", INVARIANT_BY_MUTANT)
def test_dedicated_invariant_catches_mutant(bug):
    assert INVARIANT_BY_MUTANT[bug] in collect_failures(MUTANTS[bug](), {INVARIANT_BY_MUTANT[bug]})


@pytest.mark.rare(sample=24)
@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug) for bug in MUTANTS])
def test_all_but_undetectable_mutants_are_caught(bug):
    variant = MUTANTS[bug]()
    dedicated_first = sorted(INVARIANTS, key=lambda invariant: invariant.name != INVARIANT_BY_MUTANT.get(bug))
    is_caught = any(collect_failures(variant, {invariant.name}) for invariant in dedicated_first)
    assert is_caught is (bug not in UNDETECTABLE)


@pytest.mark.rare(sample=8)
@pytest.mark.parametrize("odd", [pytest.param(odd, id=odd) for odd in VALID_VARIANTS])
def test_unusual_valid_variants_pass(odd):
    assert collect_failures(VALID_VARIANTS[odd]()) == {}


def test_failure_names_token_head_and_error_size():
    failures = collect_failures(
        MUTANTS["a mask that leaks in head 3"](), {"future_visibility_is_declared", "cache"}
    )
    assert "the token at 0 sees the one at 2 (head 3," in failures["future_visibility_is_declared"]
    assert "token 0, head 3" in failures["cache"]
    assert "relative difference" in failures["cache"]
    failures = collect_failures(
        MUTANTS["a triangle of slots from the top left"](), {"masks_and_scores_depend_on_positions"}
    )
    assert "use q_idx and kv_idx" in failures["masks_and_scores_depend_on_positions"]


def test_mutant_library_is_large():
    assert len(MUTANTS) >= 160
    assert len(VALID_VARIANTS) >= 40
