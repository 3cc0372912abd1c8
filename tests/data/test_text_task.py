"""Text tasks: windows, splits, caching, fingerprints and losses per byte."""

import json
import multiprocessing
import random
import re

import numpy as np
import pytest
import torch

from attnlab.data import text
from attnlab.data.task import IGNORE
from attnlab.data.tokenizers import BpeTokenizer, ByteTokenizer, CharTokenizer


def are_equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_batch_is_a_function_of_seed_and_step_only(make_text_task):
    one, other = make_text_task(), make_text_task()
    expected = [one.train_batch(3, step, 5) for step in range(4)]
    torch.manual_seed(0)
    other.train_batch(9, 9, 2)
    assert all(are_equal(other.train_batch(3, step, 5), expected[step]) for step in (2, 0, 3, 1))


def test_seeds_and_steps_differ_also_beyond_32_bits(text_task):
    keys = [(0, 0), (0, 1), (1, 0), (2**32, 0), (0, 2**32)]
    starts = {tuple(text_task.train_batch(*key, 11)["tokens"].flatten().tolist()) for key in keys}
    assert len(starts) == len(keys)


def test_the_global_random_state_is_unchanged(text_task):
    before = torch.get_rng_state()
    text_task.train_batch(1, 2, 3)
    text_task.val_batches(4)
    assert torch.equal(torch.get_rng_state(), before)


def test_targets_are_the_next_tokens_of_the_text(text_task, novel_path):
    batch = text_task.train_batch(0, 0, 13)
    content = novel_path.read_text()
    assert batch["tokens"].shape == batch["targets"].shape == (13, 7)
    for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
        assert tokens[1:] == targets[:-1]
        assert "".join(text_task.decode([*tokens, targets[-1]])) in content


def test_training_and_validation_partition_the_text(text_task, novel_path):
    content = novel_path.read_text()
    assert (text_task.train_tokens, text_task.val_tokens) == (1009 - 202, 202)
    assert "".join(text_task.decode([*text_task.train_ids, *text_task.val_ids])) == content


def test_windows_do_not_cross_the_split(make_text_task):
    text_task = make_text_task()
    text_task.train_ids, text_task.val_ids = (
        np.arange(807, dtype=np.uint16),
        np.arange(807, 1009, dtype=np.uint16),
    )
    targets = torch.cat([text_task.train_batch(0, step, 64)["targets"] for step in range(60)])
    assert (targets.min(), targets.max()) == (1, 806)  # both borders are reached
    val_tokens = torch.cat([batch["tokens"] for batch in text_task.val_batches(10)])
    assert val_tokens.min() == 807


@pytest.mark.parametrize("val_windows", [None, 5])
def test_validation_scores_no_token_twice_and_spreads_evenly(make_text_task, val_windows):
    text_task = make_text_task(val_windows=val_windows)
    text_task.val_ids = np.arange(202)
    targets = torch.cat([batch["targets"] for batch in text_task.val_batches(6)])
    assert len(targets) == text_task.val_windows == (val_windows or (202 - 1) // 7)
    assert len(targets.unique()) == targets.numel()
    assert (targets.min(), targets.max()) == (1, 201)
    steps = targets[:, 0].diff()
    assert steps.max() - steps.min() <= 1


def test_validation_windows_do_not_depend_on_the_batch_size(text_task):
    rows = [torch.cat([batch["tokens"] for batch in text_task.val_batches(size)]) for size in (3, 100)]
    assert torch.equal(*rows)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BpeTokenizer(280)], ids=["byte", "bpe"])
def test_no_token_crosses_the_split(make_text_task, novel_path, tokenizer):
    text_task = make_text_task(tokenizer=tokenizer)
    assert "".join(text_task.decode(text_task.train_ids)) == novel_path.read_text()[:807]
    assert "".join(text_task.decode(text_task.val_ids)) == novel_path.read_text()[807:]


def test_a_prepared_text_is_not_tokenized_again(make_text_task, monkeypatch):
    first = make_text_task()
    monkeypatch.setattr(CharTokenizer, "fit", lambda *_: pytest.fail("tokenized again"))
    assert are_equal(make_text_task().train_batch(0, 0, 5), first.train_batch(0, 0, 5))


def test_the_fingerprint_depends_on_all_settings_of_the_batches(make_text_task, novel_path, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(novel_path.read_bytes() + b"a")
    tasks = [
        make_text_task(),
        make_text_task(path=other),
        make_text_task(tokenizer=ByteTokenizer()),
        make_text_task(tokenizer=BpeTokenizer(280)),
        make_text_task(tokenizer=BpeTokenizer(281)),
        make_text_task(length=8),
        make_text_task(val_fraction=0.3),
        make_text_task(val_windows=5),
    ]
    assert len({text_task.fingerprint for text_task in tasks}) == len(tasks)


def test_the_fingerprint_is_independent_of_paths(make_text_task, novel_path, tmp_path):
    moved = tmp_path / "moved.txt"
    moved.write_bytes(novel_path.read_bytes())
    assert (
        make_text_task(path=moved, cache=str(tmp_path / "elsewhere")).fingerprint
        == make_text_task().fingerprint
    )


def test_the_fingerprint_of_pydocs_depends_on_the_python_version(tmp_path, monkeypatch):
    settings = {
        "length": 7,
        "val_fraction": 0.1,
        "val_windows": 3,
        "allow_overlap": True,
        "cache": str(tmp_path),
    }
    current = text.pydocs_text(tokenizer=CharTokenizer(), **settings)
    monkeypatch.setattr("platform.python_version", lambda: "3.0.0")
    assert text.pydocs_text(tokenizer=CharTokenizer(), **settings).fingerprint != current.fingerprint


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_concurrent_processes_prepare_one_folder(make_text_task, tmp_path):
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(3), context.Queue()

    class BarrierTokenizer(ByteTokenizer):
        def fit(self, training, validation):
            gate.wait(60)  # so that all three fit at once
            return super().fit(training, validation)

    def construct():
        text_task = make_text_task(tokenizer=BarrierTokenizer())
        results.put((text_task.fingerprint, text_task.train_ids.sum()))

    workers = [context.Process(target=construct) for _ in range(3)]
    for worker in workers:
        worker.start()
    fingerprints = {results.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(fingerprints) == 1
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 1  # no temporary folder is left


def test_an_error_names_the_unknown_character_of_a_prompt(text_task):
    with pytest.raises(ValueError, match=r"'Z' \(U\+005A, character 1\) .* data/tokenizer=byte"):
        text_task.encode("aZ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 1}, r"data\.length must be at least 2 tokens, got 1"),
        ({"length": "64"}, r"data\.length must be at least 2 tokens, got 64"),
        ({"val_fraction": 0}, r"data\.val_fraction must .* at most 0\.5, got 0"),
        ({"val_fraction": 0.6}, r"data\.val_fraction must .* at most 0\.5, got 0\.6"),
        ({"val_windows": 0}, r"data\.val_windows must be at least 1, or null"),
        (
            {"length": 202},
            r"novel\.txt: the validation text has 202 tokens \(char\), .* takes 203; .* at least 1015 tokens",
        ),
        ({"length": 900}, r"novel\.txt: the training text has 807 tokens .* at least 4505 tokens"),
    ],
)
def test_errors_name_the_key_and_the_remedy(make_text_task, changes, message):
    with pytest.raises(ValueError, match=message):
        make_text_task(**changes)


@pytest.mark.parametrize(("length", "val_fraction"), [(7, 0.2), (7, 0.45), (6, 0.5), (11, 0.03)])
def test_a_text_of_the_length_in_the_error_is_accepted(make_text_task, tmp_path, length, val_fraction):
    path = tmp_path / "least.txt"
    path.write_text("ab")
    with pytest.raises(ValueError, match=r"at least \d+ tokens") as caught:
        make_text_task(path=path, length=length, val_fraction=val_fraction)
    min_tokens = int(re.search(r"at least (\d+)", str(caught.value))[1])
    path.write_text("".join(random.Random(0).choices("abcdefgh", k=min_tokens)))
    assert make_text_task(path=path, length=length, val_fraction=val_fraction).val_windows == 1


def test_learned_byte_pairs_are_cached_per_training_text(make_text_task, novel_path, tmp_path, monkeypatch):
    first = make_text_task(tokenizer=BpeTokenizer(280))
    monkeypatch.setattr(BpeTokenizer, "fit", lambda *_: pytest.fail("learned again"))
    other = tmp_path / "other.txt"
    other.write_text(novel_path.read_text()[:-1] + "!")  # another validation text
    text_task = make_text_task(path=other, tokenizer=BpeTokenizer(280))
    assert np.array_equal(text_task.train_ids, first.train_ids)
    assert text_task.fingerprint != first.fingerprint


@pytest.mark.parametrize(
    "tokenizer", [CharTokenizer(), ByteTokenizer(), BpeTokenizer(300)], ids=["char", "byte", "bpe"]
)
def test_chunked_encoding_equals_encoding_at_once(make_text_task, tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr(BpeTokenizer, "piece_chars", 100)
    unsplit = make_text_task(tokenizer=tokenizer)
    monkeypatch.setattr(text, "MAX_ENCODE_CHARS", 300)
    pieces = make_text_task(tokenizer=tokenizer, cache=str(tmp_path / "elsewhere"))
    assert np.array_equal(pieces.train_ids, unsplit.train_ids)
    assert np.array_equal(pieces.val_ids, unsplit.val_ids)


@pytest.mark.parametrize(
    "tokenizer", [CharTokenizer(), ByteTokenizer(), BpeTokenizer(300)], ids=["char", "byte", "bpe"]
)
def test_token_bytes_sum_to_the_bytes_of_the_text(make_text_task, novel_path, tokenizer):
    text_task, sizes = make_text_task(tokenizer=tokenizer, val_windows=5), tokenizer.count_token_bytes()
    assert sizes[text_task.val_ids].sum() == len(novel_path.read_text()[807:].encode())


def test_every_tokenizer_and_length_scores_the_same_bytes(make_text_task, novel_path):
    validation, scored = novel_path.read_text()[807:], {}
    for tokenizer in (CharTokenizer(), ByteTokenizer(), BpeTokenizer(300)):
        for length in (3, 8):
            text_task = make_text_task(tokenizer=tokenizer, length=length)
            batches = text_task.byte_batches(2)
            targets = torch.cat([batch["targets"] for batch in batches]).flatten().numpy()
            targets = targets[targets != IGNORE]
            text = "".join(text_task.decode(targets.tolist()))
            scored[tokenizer.unit, length] = text_task.val_text["sha256"], text_task.val_text["bytes"], text
            assert (
                tokenizer.count_token_bytes()[targets].sum()
                == text_task.val_text["bytes"]
                == len(text.encode())
            )
            assert all(batch["tokens"].shape[1] == length for batch in batches)
    assert len(set(scored.values())) == 1
    assert scored["char", 3][2] in validation


def test_another_validation_text_has_another_digest(make_text_task):
    assert make_text_task().val_text["sha256"] != make_text_task(val_fraction=0.3).val_text["sha256"]


@pytest.mark.parametrize("validation", ["", "x", "\N{PILE OF POO}"])
def test_a_validation_text_too_short_for_spans_scores_no_bytes(tmp_path, validation):
    text._write_spans(validation, ByteTokenizer(), tmp_path, np.uint8)
    assert json.loads((tmp_path / "spans.json").read_text()) == {
        "sha256": text.compute_fingerprint(spans=[]), "bytes": 0, "tokens": [],
    }  # fmt: skip
    assert np.load(tmp_path / "spans.npy").shape == (0,)
