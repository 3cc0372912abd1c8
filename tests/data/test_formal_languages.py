"""Word problems, the flip-flop language and Dyck languages, recomputed word by word in plain Python."""

import math

import pytest
from synthetic_tasks import IGNORE, TASK_FACTORIES, collect_validation, iterate_examples
from test_synthetic_recipes import iterate_targets

from attnlab.training.estimates.guessing_loss import compute_guessing_loss

WORD_PROBLEMS = {"parity": 2, "modular_addition": 5, "s3": 6, "s5": 120}  # elements of the group


def multiply(name, words):
    """Return the product of the words of an example, in their order."""
    if name in ("parity", "modular_addition"):
        return str(sum(map(int, words)) % WORD_PROBLEMS[name])
    places = list(range(len(words[0])))
    for word in words:
        places = [int(word[place]) - 1 for place in places]
    return "".join(str(place + 1) for place in places)


def test_a_permutation_is_applied_after_those_before_it():
    assert multiply("s3", ["213", "132"]) == "312"
    assert multiply("s3", ["132", "213"]) == "231"
    assert multiply("s3", ["213", "132", "213", "231"]) == "132"


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("name", WORD_PROBLEMS)
def test_word_problem_targets_are_the_products_so_far(name, last_only):
    sizes = set()
    for words, targets in iterate_examples(TASK_FACTORIES[name](last_only=last_only)):
        size = words.index("_")
        assert words[size:] == ["_"] * (19 - size)
        scored = range(size if last_only else 1, size + 1)
        assert targets == [multiply(name, words[:n]) if n in scored else None for n in range(1, 20)]
        sizes.add(size)
    assert sizes == {3, 4, 5, 6, 7}


@pytest.mark.parametrize("name", WORD_PROBLEMS)
def test_word_problems_are_validated_past_the_trained_sizes(name):
    task = TASK_FACTORIES[name]()
    assert task.conditions == ("length/4", "length/7", "length/14", "length/17")
    sizes = set()
    for words, place, target, condition in iterate_targets(name):
        assert target == multiply(name, words[: place + 1])
        assert condition == f"length/{next(end for end in (4, 7, 14, 17) if place + 1 <= end)}"
        sizes.add(words.index("_"))
    assert max(sizes) > 14
    assert min(sizes) < 7


@pytest.mark.parametrize(("moved", "n_inputs"), [(2, 11), (3, 31), (4, 76), (5, 120)])
def test_permutations_of_an_example_move_at_most_the_given_number_of_points(moved, n_inputs):
    examples = iterate_examples(TASK_FACTORIES["s5"](moved=moved), 1000)
    seen = {word for words, _ in examples for word in words if word != "_"}
    assert len(seen) == n_inputs
    assert max(sum(a != b for a, b in zip(word, "12345", strict=True)) for word in seen) == moved


def read_register(words):
    """Return the bit after each read, by the place of the read, and the number of instructions."""
    reads, stored, place = {}, None, 0
    while place < len(words) and words[place] != "_":
        instruction, bit = words[place : place + 2]
        assert instruction in "wir"
        assert bit in "01"
        if instruction == "w":
            stored = bit
        elif instruction == "r":
            assert bit == stored
            reads[place] = stored
        place += 2
    assert words[place:] == ["_"] * (len(words) - place)
    return reads, place // 2


def test_flip_flop_targets_are_the_bits_last_written():
    sizes, n_ignored, n_free = set(), 0, 0
    for words, targets in iterate_examples(TASK_FACTORIES["flip_flop"](ignore=0.3), 400):
        reads, size = read_register(words)
        assert targets == [reads.get(place) for place in range(37)]
        assert words[0] == "w"
        assert 2 * size - 2 in reads, "the last instruction reads"
        n_ignored += words.count("i")
        n_free += size - 2
        sizes.add(size)
    assert sizes == {3, 4, 5, 6, 7}
    assert n_ignored / n_free == pytest.approx(0.3, abs=0.05)


def test_flip_flop_conditions_count_the_instructions():
    sizes = set()
    for words, place, target, condition in iterate_targets("flip_flop"):
        reads, size = read_register(words)
        assert reads[place] == target
        n_instructions = place // 2 + 1
        assert condition == f"length/{next(end for end in (4, 7, 14, 17) if n_instructions <= end)}"
        sizes.add(size)
    assert max(sizes) > 14


@pytest.mark.parametrize("length", [19, 6])
def test_dyck_targets_close_the_bracket_opened_last(length):
    depths, strings = set(), set()
    for words, targets in iterate_examples(TASK_FACTORIES["dyck"](length=length)):
        opened, expected = [], [None] * length
        for place, word in enumerate(words[: length // 2 * 2]):
            if word[0] == "(":
                opened.append(word[1])
                assert len(opened) <= 3
            else:
                depths.add(len(opened))
                assert word == f"){opened.pop()}"
                expected[place - 1] = word
        assert not opened, "balanced"
        assert words[length // 2 * 2 :] == ["_"] * (length % 2)
        assert targets == expected
        strings.add("".join(word[0] for word in words))
    assert depths == {1, 2, 3}
    if length == 6:
        assert strings == {"()()()", "()(())", "(())()", "(()())", "((()))"}


def test_dyck_conditions_are_the_depths_of_the_closed_brackets():
    for words, place, _, condition in iterate_targets("dyck"):
        before = words[: place + 1]
        depth = sum(1 if word[0] == "(" else -1 for word in before)
        assert condition == f"depth/{depth}"


@pytest.mark.parametrize(("name", "elements"), [*WORD_PROBLEMS.items(), ("dyck", 2)])
def test_the_order_of_tokens_is_needed_to_beat_chance(name, elements):
    task = TASK_FACTORIES[name](val_windows=2000)
    guessing_loss = compute_guessing_loss([collect_validation(task)], task.vocab_size)
    assert guessing_loss == pytest.approx(math.log(elements), rel=0.05)


@pytest.mark.parametrize(
    ("name", "answers", "low", "high"), [("flip_flop", 2, 0.5, 0.8), ("variable_binding", 7, 0.5, 0.8)]
)
def test_the_tokens_of_the_window_are_a_guess_better_than_chance(name, answers, low, high):
    task = TASK_FACTORIES[name](val_windows=2000)
    guessing_loss = compute_guessing_loss([collect_validation(task)], task.vocab_size)
    assert low < guessing_loss / math.log(answers) < high


def test_the_values_of_the_window_are_a_guess_for_needles():
    task = TASK_FACTORIES["needle_keys"](val_windows=2000, needles=[3], symbols=17)
    guessing_loss = compute_guessing_loss([collect_validation(task)], task.vocab_size)
    assert guessing_loss == pytest.approx(math.log(3), rel=0.15)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("parity", {"modulus": 1}, r"data\.modulus must .* got 1"),
        ("parity", {"last_only": 1}, r"data\.last_only must be true or false, got 1"),
        ("parity", {"shortest": 8}, r"data\.shortest=8, data\.longest=7.* as large as the one before"),
        ("parity", {"val_longest": 6}, r"data\.longest=7, data\.val_longest=6: each must"),
        ("modular_addition", {"shortest": 0}, r"data\.shortest must .* got 0"),
        ("modular_addition", {"length": 16}, r"data\.length=16 is too short: .*=17 takes 17 tokens"),
        ("s3", {"degree": 1}, r"data\.degree must be an integer from 2 to 6, got 1"),
        ("s3", {"degree": 7}, r"data\.degree must be an integer from 2 to 6, got 7"),
        ("s3", {"moved": 4}, r"data\.moved=4 is too large: .* data\.degree=3"),
        ("s5", {"moved": 1}, r"data\.moved must .* got 1"),
        ("flip_flop", {"ignore": 1}, r"data\.ignore must .* got 1"),
        ("flip_flop", {"ignore": "much"}, r"data\.ignore must .* got much"),
        ("flip_flop", {"shortest": 1}, r"data\.shortest must be at least 2.* got 1"),
        ("flip_flop", {"length": 33}, r"data\.length=33 is too short: .*=17 takes 34 tokens"),
        ("dyck", {"kinds": 1}, r"data\.kinds must .* got 1"),
        ("dyck", {"length": 5}, r"data\.length=5 is too short: a depth of 3 takes 6 tokens"),
    ],
)
def test_invalid_settings_are_rejected(name, changes, message):
    with pytest.raises(ValueError, match=message):
        TASK_FACTORIES[name](**changes)


def test_a_scored_position_has_no_padding_before_it():
    for name in (*WORD_PROBLEMS, "flip_flop"):
        batch = collect_validation(TASK_FACTORIES[name]())
        padding = TASK_FACTORIES[name]().vocab_size - 1
        assert not ((batch["targets"] != IGNORE) & (batch["tokens"] == padding)).any()
