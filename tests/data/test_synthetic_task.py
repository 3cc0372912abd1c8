"""Synthetic tasks: batches are functions of (seed, step), and each task matches the example in its module."""

import pytest
import torch
from synthetic_tasks import IGNORE, TASK_FACTORIES, collect_validation, iterate_examples

from attnlab.data.synthetic_task import classify_distances, name_distance_classes


@pytest.mark.parametrize("name", TASK_FACTORIES)
def test_a_batch_is_a_function_of_seed_and_step(name):
    task, same_task = TASK_FACTORIES[name](), TASK_FACTORIES[name]()
    batch = task.train_batch(3, 5, 4)
    assert all(torch.equal(batch[key], same_task.train_batch(3, 5, 4)[key]) for key in batch)
    for seed, step in ((3, 6), (4, 5), (5, 3)):
        assert not torch.equal(batch["tokens"], task.train_batch(seed, step, 4)["tokens"])


@pytest.mark.parametrize("name", TASK_FACTORIES)
def test_shapes_and_dtypes_match_the_task_protocol(name):
    task = TASK_FACTORIES[name]()
    batch = collect_validation(task)
    assert {key: (value.shape, value.dtype) for key, value in batch.items()} == dict.fromkeys(
        ("tokens", "targets", "condition"), ((31, task.length), torch.int64)
    )
    assert batch["tokens"].min() >= 0
    assert batch["tokens"].max() < task.vocab_size
    scored = batch["targets"] != IGNORE
    assert batch["targets"][scored].min() >= 0
    assert batch["targets"].max() < task.vocab_size
    assert scored.any(1).all()
    assert set(batch["condition"][scored].tolist()) <= set(range(len(task.conditions)))
    assert "condition" not in task.train_batch(0, 0, 2)


@pytest.mark.parametrize("name", TASK_FACTORIES)
def test_validation_is_independent_of_its_batch_size_and_not_trained_on(name):
    task = TASK_FACTORIES[name]()
    one, other = task.val_batches(31)[0], task.val_batches(7)
    assert [len(batch["tokens"]) for batch in other] == [7, 7, 7, 7, 3]
    assert torch.equal(one["tokens"], torch.cat([batch["tokens"] for batch in other]))
    assert not torch.equal(one["tokens"], task.train_batch(0, 0, 31)["tokens"])


@pytest.mark.parametrize("name", TASK_FACTORIES)
def test_the_fingerprint_follows_the_settings(name):
    prints = [
        TASK_FACTORIES[name](**changes).fingerprint
        for changes in ({}, {}, {"val_windows": 3}, {"length": 47})
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.parametrize("name", TASK_FACTORIES)
def test_words_round_trip(name):
    task = TASK_FACTORIES[name]()
    assert task.decode(task.encode(" ".join(task.words))) == list(task.words)
    with pytest.raises(ValueError, match="has no word 'xyz'"):
        task.encode(f"{task.words[0]} xyz")


def test_recall_queries_every_key_once():
    for words, targets in iterate_examples(TASK_FACTORIES["recall"]()):
        pairs = dict(zip(words[:10:2], words[1:10:2], strict=True))
        assert len(pairs) == 5
        answers = {words[i]: target for i, target in enumerate(targets) if target}
        assert answers == pairs
        assert not any(targets[:10])
        assert [i for i, word in enumerate(words) if word[0] == "k" and i >= 10] == [
            i for i, target in enumerate(targets) if target
        ]


def test_recall_queries_are_uniform_at_power_one_and_early_below():
    def mean_place(power):
        targets = TASK_FACTORIES["recall"](length=90, pairs=2, power=power).train_batch(0, 0, 1000)["targets"]
        return (targets != IGNORE).nonzero()[:, 1].double().mean().item()

    assert mean_place(1.0) == pytest.approx(4 + 42, abs=2)
    assert mean_place(0.01) < 25


def test_recall_conditions_are_distances_to_the_pair():
    task = TASK_FACTORIES["recall"]()
    batch = collect_validation(task)
    for tokens, targets, condition in zip(*(batch[key].tolist() for key in batch), strict=True):
        for i, target in enumerate(targets):
            if target != IGNORE:
                lower_bound = int(task.conditions[condition[i]].removeprefix("distance/"))
                assert lower_bound <= i - tokens.index(tokens[i]) < 2 * lower_bound


def test_distance_classes_are_exact():
    distances = torch.tensor([1, 2, 3, 4, 7, 8, 1023, 1024, 2**30 - 1, 2**30])
    assert classify_distances(distances).tolist() == [0, 1, 1, 2, 2, 3, 9, 10, 29, 30]
    assert name_distance_classes(8) == ["distance/1", "distance/2", "distance/4", "distance/8"]


def test_induction_repeats_distinct_tokens_with_every_period():
    periods = set()
    for words, targets in iterate_examples(TASK_FACTORIES["induction"]()):
        period = words.index(words[0], 1)
        periods.add(period)
        assert words == [words[i % period] for i in range(17)]
        assert len(set(words)) == period
        assert targets == [None] * period + [words[(i + 1) % period] for i in range(period, 17)]
    assert periods == {3, 4, 5, 6, 7}


def test_induction_conditions_count_earlier_occurrences():
    task = TASK_FACTORIES["induction"]()
    batch = collect_validation(task)
    for tokens, targets, condition in zip(*(batch[key].tolist() for key in batch), strict=True):
        for i, target in enumerate(targets):
            if target != IGNORE:
                assert task.conditions[condition[i]] == f"seen/{tokens[:i].count(tokens[i])}"


@pytest.mark.parametrize(("name", "step"), [("copy", 1), ("reverse", -1)])
def test_a_copy_follows_its_marker(name, step):
    sizes = set()
    for words, targets in iterate_examples(TASK_FACTORIES[name]()):
        size = words.index("=")
        sizes.add(size)
        string = words[:size]
        copy = [*string[::step], "_"]
        assert words == [*string, "=", *copy, *"_" * 99][:19]
        assert targets == ([None] * size + copy + [None] * 19)[:19]
    assert sizes == {1, 2, 3, 4}


def test_validation_strings_are_longer_and_classified_by_length():
    task = TASK_FACTORIES["copy"]()
    assert task.conditions == ("length/3", "length/5", "length/7", "length/9")
    batch = collect_validation(task)
    sizes = (batch["targets"] != IGNORE).sum(1) - 1
    assert sizes.max() == 9
    for size, condition in zip(sizes.tolist(), batch["condition"][:, 0].tolist(), strict=True):
        assert condition == next(n for n, end in enumerate((3, 5, 7, 9)) if size <= end)


def test_a_needle_is_queried_at_every_distance():
    places = set()
    for words, targets in iterate_examples(TASK_FACTORIES["needle"]()):
        (place,) = [i for i, word in enumerate(words) if word[0] == "v"]
        places.add(place)
        queries = [i for i, word in enumerate(words) if word == "?"]
        assert [i - place for i in queries] == [2, 7, 11]
        assert targets == [words[place] if i in queries else None for i in range(19)]
    assert places == {3, 4, 5, 6, 7}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("recall", {"vocabulary": 9}, r"data\.vocabulary must be even .* got 9"),
        ("recall", {"pairs": 8}, r"data\.vocabulary must .* at least 16 \(twice data\.pairs\), got 14"),
        ("recall", {"length": 19}, r"data\.length=19 is too short: 5 pairs .* 20 tokens"),
        ("recall", {"power": 0}, r"data\.power must .* got 0"),
        ("recall", {"val_windows": 0}, r"data\.val_windows must .* got 0"),
        ("induction", {"longest": 12}, r"data\.longest=12"),
        ("induction", {"shortest": 0}, r"data\.shortest must .* got 0"),
        ("induction", {"length": 7}, r"data\.length=7"),
        ("copy", {"length": 18}, r"data\.length=18 is too short: a string of 9.* 19 tokens"),
        ("copy", {"symbols": 0}, r"data\.symbols must .* got 0"),
        ("needle", {"distances": [7, 2]}, r"data\.distances must be in increasing order .* got \[7, 2\]"),
        ("needle", {"distances": []}, r"data\.distances must .* got \[\]"),
        ("needle", {"length": 14}, r"data\.length=14 is too short: .* 15 tokens"),
    ],
)
def test_invalid_settings_are_rejected(name, changes, message):
    with pytest.raises(ValueError, match=message):
        TASK_FACTORIES[name](**changes)
