"""Synthetic tasks of the literature, recomputed word by word in plain Python."""

import pytest
from synthetic_tasks import IGNORE, TASK_FACTORIES, collect_validation, iterate_examples


def iterate_targets(name):
    """Yield, per scored validation target, the words, the position, the target word and its condition."""
    task = TASK_FACTORIES[name]()
    batch = collect_validation(task)
    for tokens, targets, classes in zip(*(batch[key].tolist() for key in batch), strict=True):
        words = task.decode(tokens)
        for position, target in enumerate(targets):
            if target != IGNORE:
                yield words, position, task.words[target], task.conditions[classes[position]]


def test_forgetting_targets_are_the_last_values():
    updated = set()
    for words, targets in iterate_examples(TASK_FACTORIES["forgetting"]()):
        bound = {}
        for key, value in zip(words[:14:2], words[1:14:2], strict=True):
            assert bound.get(key) != value, "a second value is another one"
            bound[key] = value
        assert len(bound) == 5
        assert {words[i]: target for i, target in enumerate(targets) if target} == bound
        assert not any(targets[:14])
        assert all(
            word[0] == "v" for word, target in zip(words[14:], targets[14:], strict=True) if not target
        )
        updated.add(tuple(words[:10:2].index(key) for key in words[10:14:2]))
    assert len(updated) == 20, "any two keys, in any order"


def test_forgetting_conditions_count_the_bindings():
    for words, place, _, condition in iterate_targets("forgetting"):
        assert condition == f"bound/{words[:14:2].count(words[place])}"


def test_compositional_targets_depend_on_both_key_tokens():
    for words, targets in iterate_examples(TASK_FACTORIES["compositional"]()):
        triples = list(zip(words[:18:3], words[1:18:3], words[2:18:3], strict=True))
        values = {(first, second): value for first, second, value in triples}
        firsts, seconds = {key[0] for key in values}, {key[1] for key in values}
        assert (len(firsts), len(seconds), len(values), len(set(values.values()))) == (3, 2, 6, 6)
        assert {(words[i - 1], words[i]): target for i, target in enumerate(targets) if target} == values
        assert not any(targets[:18])
        query = {i for i, target in enumerate(targets) if target}
        fillers = {i for i in range(18, 41)} - query - {i - 1 for i in query}
        assert all(words[i][0] == "v" for i in fillers)


def test_compositional_conditions_are_distances_to_the_key():
    for words, place, target, condition in iterate_targets("compositional"):
        lower_bound = int(condition.removeprefix("distance/"))
        assert lower_bound <= place + 1 - words.index(target) < 2 * lower_bound


def read_pairs(words):
    """Return the events of an in-context recall window: start, key, value; the last may be cut off."""
    events, position = [], 0
    while position < len(words):
        start, key, value = position, [], []
        while position < len(words) and words[position][0] == "k":
            key.append(words[position])
            position += 1
        while position < len(words) and words[position][0] == "v":
            value.append(words[position])
            position += 1
        if not key:
            assert words[position][0] == "n", "a value without a key"
            position += 1
        else:
            events.append((start, tuple(key), tuple(value)))
    return events


@pytest.mark.parametrize("name", ["noisy_recall", "fuzzy_recall"])
def test_every_value_token_of_a_repeated_pair_is_a_target(name):
    sizes = set()
    for words, targets in iterate_examples(TASK_FACTORIES[name]()):
        values, expected = {}, [None] * len(words)
        events = read_pairs(words)
        for start, key, value in events:
            if key in values:
                for i, word in enumerate(values[key]):
                    if start + len(key) + i - 1 < len(words):
                        expected[start + len(key) + i - 1] = word
                assert value == values[key][: len(value)]
            elif (start, key, value) != events[-1]:
                values[key] = value
            sizes.add((len(key), len(value)))
        is_key_cut = events[-1][2] == () and targets[-1] is None  # a key whose end is not seen
        end = events[-1][0] if is_key_cut else len(words)
        assert targets == expected[:end] + [None] * (len(words) - end)
        assert len(values) <= 4
    assert {1, 2, 3} >= {key for key, _ in sizes} >= ({1} if name == "noisy_recall" else {1, 2, 3})


def test_noise_has_its_probability():
    words = [word for row, _ in iterate_examples(TASK_FACTORIES["noisy_recall"](noise=0.4)) for word in row]
    assert sum(word[0] == "n" for word in words) / len(words) == pytest.approx(0.4 * 15 / 16, abs=0.02), (
        "never the first"
    )
    assert not any(
        word[0] == "n" for row, _ in iterate_examples(TASK_FACTORIES["fuzzy_recall"]()) for word in row
    )


@pytest.mark.parametrize("name", ["noisy_recall", "fuzzy_recall"])
def test_in_context_conditions_are_distances_to_the_last_occurrence(name):
    for words, place, _, condition in iterate_targets(name):
        events = [(start, key) for start, key, _ in read_pairs(words) if start <= place]
        start, key = events[-1]
        previous_start = max(other for other, other_key in events[:-1] if other_key == key)
        lower_bound = int(condition.removeprefix("distance/"))
        assert lower_bound <= start - previous_start < 2 * lower_bound


def test_selective_copying_targets_are_the_symbols_in_order():
    places = set()
    for words, targets in iterate_examples(TASK_FACTORIES["selective_copying"]()):
        assert words[15:] == ["="] * 4
        assert targets == [None] * 15 + [word for word in words[:15] if word != "."]
        places.update(i for i, word in enumerate(words[:15]) if word != ".")
    assert places == set(range(15))


def test_compression_targets_are_the_numbers_of_the_strings():
    for words, targets in iterate_examples(TASK_FACTORIES["compression"]()):
        assert words[3::4] == [">"] * 4
        assert words[16:] == [">"] * 3
        numbers = [int("".join(words[i - 3 : i]), 3) for i in range(3, 16, 4)]
        expected = [None] * 19
        expected[3:16:4] = [f"#{number}" for number in numbers]
        assert targets == expected


def test_memorized_facts_are_the_same_for_every_seed_and_window():
    task, facts, sampled_keys = TASK_FACTORIES["memorization"](), {}, []
    for seed in (1, 2):
        batch = task.train_batch(seed, 0, 50)
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
            words = task.decode(tokens)
            assert words[1::2] == ["?"] * 9
            assert [i for i, target in enumerate(targets) if target != IGNORE] == list(range(1, 19, 2))
            for key, target in zip(words[:18:2], targets[1::2], strict=True):
                assert facts.setdefault(key, target) == target
                sampled_keys.append(key)
    assert len(facts) == 11
    assert len(set(facts.values())) > 1
    assert sampled_keys.count("k0") / sampled_keys.count("k9") == pytest.approx(10, rel=0.5), "by their ranks"
    for words, place, _, condition in iterate_targets("memorization"):
        lower_bound = int(condition.removeprefix("rank/"))
        assert lower_bound <= int(words[place - 1][1:]) + 1 < 2 * lower_bound


def test_depo_targets_are_the_nodes_k_steps_along_the_chain():
    sizes, hops = set(), set()
    for words, targets in iterate_examples(TASK_FACTORIES["depo"]()):
        steps = next(i for i, word in enumerate(words) if word[0] == "q")
        follows = dict(zip(words[:steps:2], words[1:steps:2], strict=True))
        size = len(follows)
        assert steps == 2 * size
        node, visited = words[0], []
        for _ in range(size):
            visited.append(node)
            node = follows[node]
        assert node == words[0]
        assert len(set(visited)) == size, "one chain, which closes"
        sizes.add(size)
        n_queries = min(size, 4)
        assert words[steps + 3 * n_queries :] == ["_"] * (29 - steps - 3 * n_queries)
        expected = [None] * 29
        for i in range(steps, steps + 3 * n_queries, 3):
            node = words[i + 1]
            for _ in range(int(words[i][1:])):
                node = follows[node]
            assert words[i + 2] == node
            expected[i + 1] = node
            hops.add(words[i])
        assert len({words[i + 1] for i in range(steps, steps + 3 * n_queries, 3)}) == n_queries
        assert targets == expected
    assert sizes == {3, 4, 5, 6}
    assert hops == {"q1", "q2", "q3"}


def test_validation_chains_have_all_nodes_and_are_classified_by_hops():
    for words, place, _, condition in iterate_targets("depo"):
        assert words[12][0] == "q"
        assert condition == f"hops/{words[place - 1][1:]}"


def evaluate_prefix(words, modulus):
    """Return the value of an expression in prefix order, and the remaining words."""
    if words[0] not in "+-*":
        return int(words[0]), words[1:]
    left_value, rest = evaluate_prefix(words[1:], modulus)
    right, rest = evaluate_prefix(rest, modulus)
    return {"+": left_value + right, "-": left_value - right, "*": left_value * right}[
        words[0]
    ] % modulus, rest


def test_mano_targets_are_the_values_of_the_expressions():
    shapes = set()
    for words, targets in iterate_examples(TASK_FACTORIES["mano"]()):
        expected, place = [None] * 33, 0
        while place < 33:
            operations = int(words[place][1:])
            equals = place + 2 * operations + 2
            if equals < 33:
                value, rest = evaluate_prefix(words[place + 1 : equals], 7)
                assert not rest
                assert words[equals] == "="
                assert words[equals + 1 : equals + 2] in ([], [str(value)])
                expected[equals] = str(value)
                shapes.add("".join("o" if word in "+-*" else "n" for word in words[place + 1 : equals]))
            place = equals + 2
        assert targets == expected
    assert shapes == {"onn", "oonnn", "ononn", "ooonnnn", "oonnonn", "oononnn", "onoonnn", "onononn"}


def test_mano_conditions_are_the_numbers_of_operations():
    for words, place, _, condition in iterate_targets("mano"):
        start = max(i for i in range(place) if words[i][0] == "l")
        assert condition == f"operations/{words[start][1:]}"


def test_needle_keys_target_the_value_of_the_queried_key():
    counts, starts, queried = set(), set(), set()
    for words, targets in iterate_examples(TASK_FACTORIES["needle_keys"]()):
        pairs, place = {}, 0
        while place < 18:
            if words[place][0] == "k":
                assert words[place] not in pairs
                assert words[place + 1][0] == "v"
                pairs[words[place]] = words[place + 1]
                starts.add(place)
                place += 1
            else:
                assert words[place][0] == "c"
            place += 1
        assert targets == [None] * 18 + [pairs[words[18]]]
        counts.add(len(pairs))
        queried.add(list(pairs).index(words[18]))
    assert counts == {1, 3}
    assert starts == set(range(17))
    assert queried == {0, 1, 2}
    for words, place, _, condition in iterate_targets("needle_keys"):
        assert condition == f"needles/{sum(word[0] == 'k' for word in words[:place])}"


def test_variable_binding_targets_are_the_last_values():
    overwrites = set()
    for words, targets in iterate_examples(TASK_FACTORIES["variable_binding"]()):
        bound = {}
        for variable, value in zip(words[:28:2], words[1:28:2], strict=True):
            assert (variable[0], value[0]) in {("x", "v"), ("_", "_")}
            if variable != "_":
                bound[variable] = value
        overwrites.add(14 - words[:28:2].count("_") - 3)
        assert set(words[28:]) == set(bound) == {"x0", "x1", "x2"}
        assert targets == [None] * 28 + [bound[variable] for variable in words[28:]]
    assert overwrites == {0, 1, 2, 3, 4, 5}


def test_variable_binding_conditions_count_the_overwrites():
    for words, place, _, condition in iterate_targets("variable_binding"):
        lower_bound = int(condition.removeprefix("overwrites/"))
        overwrites = words[:28].count(words[place]) - 1
        assert lower_bound <= overwrites <= max(0, 2 * lower_bound - 1)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("forgetting", {"updates": 6}, r"data\.updates=6 is too large: .* data\.pairs=5"),
        ("forgetting", {"vocabulary": 8}, r"data\.vocabulary must .* got 8"),
        ("forgetting", {"length": 23}, r"data\.length=23 is too short: .* 24 tokens"),
        ("forgetting", {"power": 0}, r"data\.power must .* got 0"),
        ("compositional", {"vocabulary": 25}, r"data\.vocabulary must be divisible by 3 .* got 25"),
        ("compositional", {"firsts": 5}, r"data\.vocabulary must .* at least 30, got 24"),
        ("compositional", {"length": 35}, r"data\.length=35 is too short: .* 36 tokens"),
        ("noisy_recall", {"pairs": 7}, r"data\.symbols=6 is too small: data\.pairs=7"),
        ("noisy_recall", {"noise": 1}, r"data\.noise must .* got 1"),
        ("noisy_recall", {"length": 9}, r"data\.length=9 is too short: .* 10 tokens"),
        ("fuzzy_recall", {"symbols": 17}, r"data\.symbols=17 and data\.key_tokens=3 make 4913 keys"),
        ("fuzzy_recall", {"value_tokens": 0}, r"data\.value_tokens must .* got 0"),
        ("selective_copying", {"copied": 10}, r"data\.length=19 is too short: .* 20 tokens"),
        ("compression", {"digits": 11}, r"data\.digits=11 is too large: .* 177147 strings"),
        ("compression", {"length": 3}, r"data\.length=3 is too short: .* 4 tokens"),
        ("memorization", {"power": -1}, r"data\.power must .* got -1"),
        ("memorization", {"values": 1}, r"data\.values must .* got 1"),
        ("depo", {"nodes": 2}, r"data\.nodes must .* got 2"),
        ("depo", {"vocabulary": 5}, r"data\.vocabulary=5"),
        ("depo", {"length": 23}, r"data\.length=23 is too short: .* 24 tokens"),
        ("mano", {"length": 9}, r"data\.length=9 is too short: .* 10 tokens"),
        ("mano", {"modulus": 1}, r"data\.modulus must .* got 1"),
        ("needle_keys", {"needles": []}, r"data\.needles must .* got \[\]"),
        ("needle_keys", {"needles": [0, 2]}, r"data\.needles must .* got \[0, 2\]"),
        ("needle_keys", {"needles": [3, 1]}, r"data\.needles must be in increasing order .* got \[3, 1\]"),
        ("needle_keys", {"needles": [6]}, r"data\.symbols=5 is too small: 6 needles"),
        ("needle_keys", {"length": 6}, r"data\.length=6 is too short: 3 pairs .* 7 tokens"),
        ("variable_binding", {"values": 1}, r"data\.values must .* got 1"),
        ("variable_binding", {"overwrites": 0}, r"data\.overwrites must .* got 0"),
        ("variable_binding", {"length": 18}, r"data\.length=18 is too short: 3 variables .* 19 tokens"),
    ],
)
def test_invalid_settings_are_rejected(name, changes, message):
    with pytest.raises(ValueError, match=message):
        TASK_FACTORIES[name](**changes)
