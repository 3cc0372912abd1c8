"""How much the kit catches: bugs that strangers make, and odd parts that are right, each in its own zoo."""

import pytest
from planted import planted, sound

from attnlab import testing
from attnlab.testing.laws import LAWS

PLANTED, SOUND = planted(), sound()
MISSED = {
    "a penalty with the wrong sign": "it is a penalty of another sign: only its author knows which was meant",
    "a sink that leaves the shown weights whole": "what an epilogue does to weights is what it declares",
}
BY = {  # those that were missed once, and the law that is there to catch them
    "a mask that sees the next token": "look_ahead_is_declared",
    "a stride that looks both ways": "look_ahead_is_declared",
    "a mask that leaks from position 40, by a default argument": "look_ahead_is_declared",
    "a mask that leaks from position 200, by a global": "look_ahead_is_declared",
    "a mask that leaks from position 1000, by a closure": "look_ahead_is_declared",
    "a mask that leaks in the last head, at every eighth query": "look_ahead_is_declared",
    "a window wider than it declares, from position 65 on": "look_ahead_is_declared",
    "a mask of numbers": "builds",
    "a triangle of slots from the top left": "masks_and_scores_answer_by_position",
    "scores centred over keys, beside a sink": "masks_and_scores_answer_by_position",
    "no mask from 129 queries on": "long_texts_do_not_leak",
    "chunks of sixteen open both ways": "long_texts_do_not_leak",
    "a cache that forgets beyond 32 tokens": "long_texts_decode",
    "a cache that leaves out what it has no room for": "cache_room",
    "a cache that declares to hold less than it does": "state_size",
    "batch norm before the projection": "rows_are_apart",
    "keys that are halved in evaluation only": "train_equals_eval",
    "keys that do not turn": "shift_changes_nothing",
    "positions in bfloat16": "rotation_is_relative",
    "a bias that adds other than it says": "bias_is_what_is_added",
    "heads that do not name their KV heads": "can_be_measured",
    "heads that count the work of one": "costs_are_counted",
    "keys without a gradient": "gradients_are_the_functions",
    "dropout that does not rescale": "dropout_keeps_the_mean",
    "learned slopes in a plain list": "parameters_are_registered",
    "a softmax without its maximum": "kernel_agrees",
}
ODD = ("a rotation with a list", "windowed attention within a mixer", "local and global heads")


def failed(variant, laws=None):
    return {each.law: each.detail for each in testing.outcomes(variant, laws) if each.status == "failed"}


@pytest.mark.parametrize("bug", BY)
def test_the_law_that_is_there_for_it_catches_it(bug):
    assert BY[bug] in failed(PLANTED[bug](), {BY[bug]})


@pytest.mark.rare(sample=24)
@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug) for bug in PLANTED])
def test_every_planted_bug_is_caught_but_those_that_no_law_can_see(bug):
    variant = PLANTED[bug]()
    caught = any(failed(variant, {law.name}) for law in sorted(LAWS, key=lambda law: law.name != BY.get(bug)))
    assert caught is (bug not in MISSED)


@pytest.mark.rare(sample=8)
@pytest.mark.parametrize("odd", [pytest.param(odd, id=odd) for odd in SOUND])
def test_what_is_odd_and_right_raises_no_alarm(odd):
    assert failed(SOUND[odd]()) == {}


def test_a_failure_names_the_token_the_head_and_the_size_of_the_error():
    by_law = failed(
        PLANTED["a mask that leaks in head 3"](), {"look_ahead_is_declared", "decode_equals_full_pass"}
    )
    assert "the token at 0 sees the one at 2 (head 3," in by_law["look_ahead_is_declared"]
    assert "head 3, token 0" in by_law["decode_equals_full_pass"]
    assert " off by " in by_law["decode_equals_full_pass"]
    slots = failed(
        PLANTED["a triangle of slots from the top left"](), {"masks_and_scores_answer_by_position"}
    )
    assert "use q_pos and kv_pos" in slots["masks_and_scores_answer_by_position"]


def test_the_zoo_is_large():
    assert len(PLANTED) >= 180
    assert len(SOUND) >= 30
