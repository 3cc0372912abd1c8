"""The names task: exact examples, deduplication, split and packing."""

import pytest
import torch

from attnlab.data.names import names_task

IGNORE = -100


@pytest.fixture
def make_names_task(tmp_path):
    settings = {
        "path": str(tmp_path / "names.txt"),
        "name": None,
        "config": None,
        "split": "train",
        "field": "name",
        "normalize": None,
        "cache": str(tmp_path),
        "length": 6,
        "val_fraction": 0.25,
        "val_windows": None,
        "pack": 1,
    }

    def build(content: str = "bea\nal\n\nzoë\r\nal\n cleo \n", **changes):
        (tmp_path / "names.txt").write_bytes(content.encode())
        return names_task(**settings | changes)

    return build


def collect_train_rows(task) -> dict:
    """Return every training example by its name."""
    batch = task.train_batch(0, 0, 200)
    rows = zip(batch["tokens"].tolist(), batch["targets"].tolist(), batch["lengths"].tolist(), strict=True)
    return {
        "".join(task.decode(tokens)[1:length]): (tokens, targets, length) for tokens, targets, length in rows
    }


def test_examples_are_exact(make_names_task):
    task = make_names_task("ab\nab\nb\nabc\nabc\nca\n")
    assert (task.vocab_size, task.length) == (4, 4)
    expected = {
        "ab": ([0, 1, 2, 0], [1, 2, 0, IGNORE], 3),
        "b": ([0, 2, 0, 0], [2, 0, IGNORE, IGNORE], 2),
        "abc": ([0, 1, 2, 3], [1, 2, 3, 0], 4),
        "ca": ([0, 3, 1, 0], [3, 1, 0, IGNORE], 3),
    }
    (batch,) = task.val_batches(10)
    assert (
        validation_name := "".join(task.decode(batch["tokens"][0].tolist())[1 : batch["lengths"][0]])
    ) in expected
    assert collect_train_rows(task) == {
        name: row for name, row in expected.items() if name != validation_name
    }
    assert batch["targets"].tolist() == [expected[validation_name][1]]


def test_lengths_count_the_scored_targets(make_names_task):
    batch = make_names_task().train_batch(0, 0, 31)
    assert torch.equal((batch["targets"] != IGNORE).sum(1), batch["lengths"])


def test_blank_lines_spaces_and_repetitions_do_not_count(make_names_task):
    task = make_names_task()
    assert task.train_tokens + task.val_tokens == sum(len(name) + 1 for name in ("bea", "al", "zoë", "cleo"))
    assert task.val_windows == 1


def test_no_validation_name_is_trained_on(make_names_task):
    task = make_names_task("\n".join(f"{a}{b}" for a in "abcdefg" for b in "hijklmn"))
    validation_rows = torch.cat([batch["tokens"] for batch in task.val_batches(5)]).tolist()
    train_rows = task.train_batch(0, 0, 2000)["tokens"].tolist()
    assert len(validation_rows) == 12
    assert len({tuple(row) for row in train_rows}) == 49 - 12
    assert not {tuple(row) for row in validation_rows} & {tuple(row) for row in train_rows}


def test_validation_names_are_spread_over_the_alphabet(make_names_task):
    task = make_names_task("\n".join("abcdefghijklmnop"))
    (batch,) = task.val_batches(20)
    initials = sorted(batch["tokens"][:, 1].tolist())
    assert len(initials) == 4
    assert initials[-1] - initials[0] > 3


def test_the_fingerprint_is_independent_of_the_order_of_the_file(make_names_task):
    assert make_names_task("ab\nb\nabc\nca").fingerprint == make_names_task("ca\nabc\nab\nb\n").fingerprint


def test_the_fingerprint_follows_the_names_and_the_split(make_names_task):
    long = "\n".join("abcdefgh")
    prints = [
        make_names_task(long),
        make_names_task(long + "\ni"),
        make_names_task(long, val_fraction=0.5),
        make_names_task(long, val_windows=1),
    ]
    assert len({task.fingerprint for task in prints}) == 4


def test_packed_windows_hold_the_same_names_back_to_back(make_names_task):
    content = "bea\nal\nzoe\ncleo\nbo\nann\nu\n"
    unpacked, packed = make_names_task(content), make_names_task(content, pack=3)
    assert packed.length == 3 * unpacked.length
    single, batch = (task.train_batch(5, 7, count) for task, count in ((unpacked, 6), (packed, 2)))
    for row in range(2):
        names = [3 * row + k for k in range(3)]
        sizes = single["lengths"][names].tolist()
        for key in ("tokens", "targets"):
            expected = [single[key][name, :size].tolist() for name, size in zip(names, sizes, strict=True)]
            assert batch[key][row, : sum(sizes)].tolist() == [token for name in expected for token in name]
        assert batch["documents"][row, : sum(sizes)].tolist() == [
            k for k in range(3) for _ in range(sizes[k])
        ]
        assert batch["lengths"][row] == sum(sizes)
        assert (batch["targets"][row, sum(sizes) :] == IGNORE).all()


def test_the_last_packed_window_may_have_fewer_names(make_names_task):
    task = make_names_task("bea\nal\nzoe\ncleo\nbo\nann\nu\nida\n", pack=3, val_fraction=0.5)
    (batch,) = task.val_batches(10)
    assert batch["tokens"].shape == (2, 15)
    assert (batch["targets"] != IGNORE).sum() == task.val_tokens


def test_a_prompt_begins_with_the_start_token(make_names_task):
    task = make_names_task()
    assert task.decode(task.encode("bea")) == ["<start>", "b", "e", "a"]
    with pytest.raises(ValueError, match=r"'q' \(U\+0071, character 0\)"):
        task.encode("q")


@pytest.mark.parametrize(
    ("content", "changes", "message"),
    [
        ("bea\nal\n", {"pack": 0}, "data.pack must be at least 1 name per window, got 0"),
        ("", {}, r"data\.path=.* is empty"),
        ("bea\ncleopatra", {}, r"'cleopatra' has 9 characters, .* data\.length=6 .* use data\.length=10"),
        ("bea", {}, r"1 names leave none for validation; .* raise data\.val_fraction=0\.25"),
        ("bea", {"length": 1}, r"data\.length must be at least 2 tokens, got 1"),
        ("bea", {"name": "some/set"}, r"set either data\.path .* or data\.name"),
        ("bea", {"path": None}, r"set either data\.path .* or data\.name"),
    ],
)
def test_invalid_settings_are_rejected(make_names_task, content, changes, message):
    with pytest.raises(ValueError, match=message):
        make_names_task(content, **changes)
