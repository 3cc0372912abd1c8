"""What the tasks of the literature ask, worked out again word by word in plain Python."""

import pytest
from drawn_tasks import IGNORE, MAKE, rows, validation


def conditions(name):
    """Of every scored target of the validation: words, place, word of the target, name of its class."""
    task = MAKE[name]()
    batch = validation(task)
    for tokens, targets, classes in zip(*(batch[key].tolist() for key in batch), strict=True):
        words = task.decode(tokens)
        for place, target in enumerate(targets):
            if target != IGNORE:
                yield words, place, task.words[target], task.conditions[classes[place]]


def test_forgetting_asks_for_the_last_value_of_every_key():
    updated = set()
    for words, targets in rows(MAKE["forgetting"]()):
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


def test_forgetting_says_how_often_a_key_was_bound():
    for words, place, _, told in conditions("forgetting"):
        assert told == f"bound/{words[:14:2].count(words[place])}"


def test_a_compositional_key_is_two_tokens_and_neither_says_the_value():
    for words, targets in rows(MAKE["compositional"]()):
        triples = list(zip(words[:18:3], words[1:18:3], words[2:18:3], strict=True))
        values = {(first, second): value for first, second, value in triples}
        firsts, seconds = {key[0] for key in values}, {key[1] for key in values}
        assert (len(firsts), len(seconds), len(values), len(set(values.values()))) == (3, 2, 6, 6)
        assert {(words[i - 1], words[i]): target for i, target in enumerate(targets) if target} == values
        assert not any(targets[:18])
        query = {i for i, target in enumerate(targets) if target}
        rest = {i for i in range(18, 41)} - query - {i - 1 for i in query}
        assert all(words[i][0] == "v" for i in rest)


def test_a_compositional_query_knows_how_far_back_its_key_is():
    for words, place, target, told in conditions("compositional"):
        least = int(told.removeprefix("distance/"))
        assert least <= place + 1 - words.index(target) < 2 * least


def read_pairs(words):
    """Events of a window of in-context recall, whole ones and a last one that may be cut: start, key,
    value."""
    events, place = [], 0
    while place < len(words):
        start, key, value = place, [], []
        while place < len(words) and words[place][0] == "k":
            key.append(words[place])
            place += 1
        while place < len(words) and words[place][0] == "v":
            value.append(words[place])
            place += 1
        if not key:
            assert words[place][0] == "n", "a value without a key"
            place += 1
        else:
            events.append((start, tuple(key), tuple(value)))
    return events


@pytest.mark.parametrize("name", ["noisy_recall", "fuzzy_recall"])
def test_a_pair_that_came_before_is_asked_for_token_by_token(name):
    sizes = set()
    for words, targets in rows(MAKE[name]()):
        known, expected = {}, [None] * len(words)
        events = read_pairs(words)
        for start, key, value in events:
            if key in known:
                for i, word in enumerate(known[key]):
                    if start + len(key) + i - 1 < len(words):
                        expected[start + len(key) + i - 1] = word
                assert value == known[key][: len(value)]
            elif (start, key, value) != events[-1]:
                known[key] = value
            sizes.add((len(key), len(value)))
        cut = events[-1][2] == () and targets[-1] is None  # a key whose end is not seen
        last = events[-1][0] if cut else len(words)
        assert targets == expected[:last] + [None] * (len(words) - last)
        assert len(known) <= 4
    assert {1, 2, 3} >= {key for key, _ in sizes} >= ({1} if name == "noisy_recall" else {1, 2, 3})


def test_noise_takes_its_share_and_two_tokens():
    words = [word for row, _ in rows(MAKE["noisy_recall"](noise=0.4)) for word in row]
    assert sum(word[0] == "n" for word in words) / len(words) == pytest.approx(0.4 * 15 / 16, abs=0.02), (
        "never the first"
    )
    assert not any(word[0] == "n" for row, _ in rows(MAKE["fuzzy_recall"]()) for word in row)


@pytest.mark.parametrize("name", ["noisy_recall", "fuzzy_recall"])
def test_a_repeated_pair_knows_how_far_back_it_stood(name):
    for words, place, _, told in conditions(name):
        events = [(start, key) for start, key, _ in read_pairs(words) if start <= place]
        start, key = events[-1]
        before = max(other for other, each in events[:-1] if each == key)
        least = int(told.removeprefix("distance/"))
        assert least <= start - before < 2 * least


def test_selective_copying_asks_for_the_symbols_in_order():
    places = set()
    for words, targets in rows(MAKE["selective_copying"]()):
        assert words[15:] == ["="] * 4
        assert targets == [None] * 15 + [word for word in words[:15] if word != "."]
        places.update(i for i, word in enumerate(words[:15]) if word != ".")
    assert places == set(range(15))


def test_compression_asks_for_the_number_of_each_string():
    for words, targets in rows(MAKE["compression"]()):
        assert words[3::4] == [">"] * 4
        assert words[16:] == [">"] * 3
        numbers = [int("".join(words[i - 3 : i]), 3) for i in range(3, 16, 4)]
        expected = [None] * 19
        expected[3:16:4] = [f"#{number}" for number in numbers]
        assert targets == expected


def test_memorised_facts_are_the_same_for_every_seed_and_window():
    task, facts, drawn = MAKE["memorization"](), {}, []
    for seed in (1, 2):
        batch = task.train_batch(seed, 0, 50)
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
            words = task.decode(tokens)
            assert words[1::2] == ["?"] * 9
            assert [i for i, target in enumerate(targets) if target != IGNORE] == list(range(1, 19, 2))
            for key, target in zip(words[:18:2], targets[1::2], strict=True):
                assert facts.setdefault(key, target) == target
                drawn.append(key)
    assert len(facts) == 11
    assert len(set(facts.values())) > 1
    assert drawn.count("k0") / drawn.count("k9") == pytest.approx(10, rel=0.5), "by their ranks"
    for words, place, _, told in conditions("memorization"):
        least = int(told.removeprefix("rank/"))
        assert least <= int(words[place - 1][1:]) + 1 < 2 * least


def test_depo_asks_who_is_so_many_steps_further():
    sizes, hops = set(), set()
    for words, targets in rows(MAKE["depo"]()):
        steps = next(i for i, word in enumerate(words) if word[0] == "q")
        follows = dict(zip(words[:steps:2], words[1:steps:2], strict=True))
        size = len(follows)
        assert steps == 2 * size
        node, seen = words[0], []
        for _ in range(size):
            seen.append(node)
            node = follows[node]
        assert node == words[0]
        assert len(set(seen)) == size, "one chain, which closes"
        sizes.add(size)
        asked = min(size, 4)
        assert words[steps + 3 * asked :] == ["_"] * (29 - steps - 3 * asked)
        expected = [None] * 29
        for i in range(steps, steps + 3 * asked, 3):
            node = words[i + 1]
            for _ in range(int(words[i][1:])):
                node = follows[node]
            assert words[i + 2] == node
            expected[i + 1] = node
            hops.add(words[i])
        assert len({words[i + 1] for i in range(steps, steps + 3 * asked, 3)}) == asked
        assert targets == expected
    assert sizes == {3, 4, 5, 6}
    assert hops == {"q1", "q2", "q3"}


def test_validation_chains_are_whole_and_told_apart_by_hops():
    for words, place, _, told in conditions("depo"):
        assert words[12][0] == "q"
        assert told == f"hops/{words[place - 1][1:]}"


def value_of(words, modulus):
    """Of an expression in prefix order, and what is left of the words."""
    if words[0] not in "+-*":
        return int(words[0]), words[1:]
    left, rest = value_of(words[1:], modulus)
    right, rest = value_of(rest, modulus)
    return {"+": left + right, "-": left - right, "*": left * right}[words[0]] % modulus, rest


def test_mano_asks_for_the_value_of_each_expression():
    shapes = set()
    for words, targets in rows(MAKE["mano"]()):
        expected, place = [None] * 33, 0
        while place < 33:
            operations = int(words[place][1:])
            equals = place + 2 * operations + 2
            if equals < 33:
                value, rest = value_of(words[place + 1 : equals], 7)
                assert not rest
                assert words[equals] == "="
                assert words[equals + 1 : equals + 2] in ([], [str(value)])
                expected[equals] = str(value)
                shapes.add("".join("o" if word in "+-*" else "n" for word in words[place + 1 : equals]))
            place = equals + 2
        assert targets == expected
    assert shapes == {"onn", "oonnn", "ononn", "ooonnnn", "oonnonn", "oononnn", "onoonnn", "onononn"}


def test_mano_is_told_apart_by_the_number_of_operations():
    for words, place, _, told in conditions("mano"):
        start = max(i for i in range(place) if words[i][0] == "l")
        assert told == f"operations/{words[start][1:]}"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("forgetting", {"updates": 6}, r"data\.updates=6: .* data\.pairs=5"),
        ("forgetting", {"vocabulary": 8}, r"data\.vocabulary=8"),
        ("forgetting", {"length": 23}, r"data\.length=23: .* 24 tokens"),
        ("forgetting", {"power": 0}, r"data\.power=0"),
        ("compositional", {"vocabulary": 25}, r"data\.vocabulary=25: .* divisible by 3"),
        ("compositional", {"firsts": 5}, r"data\.vocabulary=24: .* at least 30"),
        ("compositional", {"length": 35}, r"data\.length=35: .* 36 tokens"),
        ("noisy_recall", {"pairs": 7}, r"data\.symbols=6: .* data\.pairs=7"),
        ("noisy_recall", {"noise": 1}, r"data\.noise=1"),
        ("noisy_recall", {"length": 9}, r"data\.length=9: .* 10 tokens"),
        ("fuzzy_recall", {"symbols": 17}, r"data\.symbols=17, data\.key_tokens=3: they make 4913 keys"),
        ("fuzzy_recall", {"value_tokens": 0}, r"data\.value_tokens=0"),
        ("selective_copying", {"copied": 10}, r"data\.length=19: .* 20 tokens"),
        ("compression", {"digits": 11}, r"data\.digits=11: .* 177147 strings"),
        ("compression", {"length": 3}, r"data\.length=3: .* 4 tokens"),
        ("memorization", {"power": -1}, r"data\.power=-1"),
        ("memorization", {"values": 1}, r"data\.values=1"),
        ("depo", {"nodes": 2}, r"data\.nodes=2"),
        ("depo", {"vocabulary": 5}, r"data\.vocabulary=5"),
        ("depo", {"length": 23}, r"data\.length=23: .* 24 tokens"),
        ("mano", {"length": 9}, r"data\.length=9: .* 10 tokens"),
        ("mano", {"modulus": 1}, r"data\.modulus=1"),
    ],
)
def test_bad_settings_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        MAKE[name](**changes)
