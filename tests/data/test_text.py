import json
import multiprocessing
import re

import numpy as np
import pytest
import torch

from attnlab.data import text
from attnlab.data.task import IGNORE
from attnlab.data.tokenizers import Bpe, Byte, Char


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_batch_is_a_function_of_seed_and_step_only(make):
    one, other = make(), make()
    wanted = [one.train_batch(3, step, 5) for step in range(4)]
    torch.manual_seed(0)
    other.train_batch(9, 9, 2)
    assert all(same(other.train_batch(3, step, 5), wanted[step]) for step in (2, 0, 3, 1))


def test_seeds_and_steps_differ_also_beyond_32_bits(task):
    keys = [(0, 0), (0, 1), (1, 0), (2**32, 0), (0, 2**32)]
    starts = {tuple(task.train_batch(*key, 11)["tokens"].flatten().tolist()) for key in keys}
    assert len(starts) == len(keys)


def test_the_global_random_state_is_left_alone(task):
    before = torch.get_rng_state()
    task.train_batch(1, 2, 3)
    task.val_batches(4)
    assert torch.equal(torch.get_rng_state(), before)


def test_targets_are_the_next_tokens_of_the_text(task, novel):
    batch = task.train_batch(0, 0, 13)
    content = novel.read_text()
    assert batch["tokens"].shape == batch["targets"].shape == (13, 7)
    for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
        assert tokens[1:] == targets[:-1]
        assert "".join(task.decode([*tokens, targets[-1]])) in content


def test_training_and_validation_are_the_two_parts_of_the_text(task, novel):
    content = novel.read_text()
    assert (task.train_tokens, task.val_tokens) == (1009 - 202, 202)
    assert "".join(task.decode([*task.training, *task.validation])) == content


def test_windows_stay_in_their_part(make):
    task = make()
    task.training, task.validation = np.arange(807, dtype=np.uint16), np.arange(807, 1009, dtype=np.uint16)
    seen = torch.cat([task.train_batch(0, step, 64)["targets"] for step in range(60)])
    assert (seen.min(), seen.max()) == (1, 806)  # and both borders are reached
    held_out = torch.cat([batch["tokens"] for batch in task.val_batches(10)])
    assert held_out.min() == 807


@pytest.mark.parametrize("val_windows", [None, 5])
def test_validation_scores_no_token_twice_and_spreads_evenly(make, val_windows):
    task = make(val_windows=val_windows)
    task.validation = np.arange(202)
    targets = torch.cat([batch["targets"] for batch in task.val_batches(6)])
    assert len(targets) == task.val_windows == (val_windows or (202 - 1) // 7)
    assert len(targets.unique()) == targets.numel()
    assert (targets.min(), targets.max()) == (1, 201)
    steps = targets[:, 0].diff()
    assert steps.max() - steps.min() <= 1


def test_validation_windows_do_not_depend_on_the_batch_size(task):
    rows = [torch.cat([batch["tokens"] for batch in task.val_batches(size)]) for size in (3, 100)]
    assert torch.equal(*rows)


@pytest.mark.parametrize("tokenizer", [Byte(), Bpe(280)], ids=["byte", "bpe"])
def test_no_token_crosses_the_border(make, novel, tokenizer):
    task = make(tokenizer=tokenizer)
    assert "".join(task.decode(task.training)) == novel.read_text()[:807]
    assert "".join(task.decode(task.validation)) == novel.read_text()[807:]


def test_a_prepared_text_is_not_tokenised_again(make, monkeypatch):
    first = make()
    monkeypatch.setattr(Char, "fit", lambda *_: pytest.fail("tokenised again"))
    assert same(make().train_batch(0, 0, 5), first.train_batch(0, 0, 5))


def test_the_fingerprint_follows_what_decides_the_batches(make, novel, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(novel.read_bytes() + b"a")
    tasks = [
        make(),
        make(path=other),
        make(tokenizer=Byte()),
        make(tokenizer=Bpe(280)),
        make(tokenizer=Bpe(281)),
        make(length=8),
        make(val_fraction=0.3),
        make(val_windows=5),
    ]
    assert len({task.fingerprint for task in tasks}) == len(tasks)


def test_the_fingerprint_does_not_follow_where_things_lie(make, novel, tmp_path):
    moved = tmp_path / "moved.txt"
    moved.write_bytes(novel.read_bytes())
    assert make(path=moved, cache=str(tmp_path / "elsewhere")).fingerprint == make().fingerprint


def test_the_python_version_is_in_the_fingerprint_of_pydocs(tmp_path, monkeypatch):
    settings = {"length": 7, "val_fraction": 0.1, "val_windows": 3, "cache": str(tmp_path)}
    here = text.pydocs(tokenizer=Char(), **settings)
    monkeypatch.setattr("platform.python_version", lambda: "3.0.0")
    assert text.pydocs(tokenizer=Char(), **settings).fingerprint != here.fingerprint


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_may_prepare_at_once(make, tmp_path):
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(3), context.Queue()

    class Meeting(Byte):
        def fit(self, training, validation):
            gate.wait(60)  # so that all three are at it
            return super().fit(training, validation)

    def construct():
        task = make(tokenizer=Meeting())
        results.put((task.fingerprint, task.training.sum()))

    workers = [context.Process(target=construct) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = {results.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(found) == 1
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 1  # and nothing half-written is left


def test_an_unknown_character_in_a_prompt_is_named(task):
    with pytest.raises(ValueError, match=r"'Z' \(U\+005A, character 1\) .* data/tokenizer=byte"):
        task.encode("aZ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 1}, r"data\.length=1: a window has at least 2 tokens"),
        ({"length": "64"}, r"data\.length=64: a window has at least 2 tokens"),
        ({"val_fraction": 0}, r"data\.val_fraction=0: .* at most 0\.5"),
        ({"val_fraction": 0.6}, r"data\.val_fraction=0\.6: .* at most 0\.5"),
        ({"val_windows": 0}, r"data\.val_windows=0: .* at least 1, or null"),
        (
            {"length": 202},
            r"novel\.txt: the validation text has 202 tokens \(char\), .* takes 203; .* at least 1015 tokens",
        ),
        ({"length": 900}, r"novel\.txt: the training text has 807 tokens .* at least 4505 tokens"),
    ],
)
def test_bad_settings_are_refused_with_the_key_and_the_remedy(make, changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize(("length", "val_fraction"), [(7, 0.2), (7, 0.45), (6, 0.5), (11, 0.03)])
def test_a_text_as_long_as_the_message_asks_for_is_long_enough(make, tmp_path, length, val_fraction):
    path = tmp_path / "least.txt"
    path.write_text("ab")
    with pytest.raises(ValueError, match=r"at least \d+ tokens") as caught:
        make(path=path, length=length, val_fraction=val_fraction)
    asked = int(re.search(r"at least (\d+)", str(caught.value))[1])
    path.write_text("a" * asked)
    assert make(path=path, length=length, val_fraction=val_fraction).val_windows == 1


def test_byte_pairs_are_learned_once_for_a_training_text(make, novel, tmp_path, monkeypatch):
    first = make(tokenizer=Bpe(280))
    monkeypatch.setattr(Bpe, "fit", lambda *_: pytest.fail("learned again"))
    other = tmp_path / "other.txt"
    other.write_text(novel.read_text()[:-1] + "!")  # another validation text
    task = make(path=other, tokenizer=Bpe(280))
    assert np.array_equal(task.training, first.training)
    assert task.fingerprint != first.fingerprint


@pytest.mark.parametrize("tokenizer", [Char(), Byte(), Bpe(300)], ids=["char", "byte", "bpe"])
def test_a_long_text_is_encoded_in_pieces_and_is_the_same(make, tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr(Bpe, "piece", 100)
    whole = make(tokenizer=tokenizer)
    monkeypatch.setattr(text, "PIECE", 300)
    pieces = make(tokenizer=tokenizer, cache=str(tmp_path / "elsewhere"))
    assert np.array_equal(pieces.training, whole.training)
    assert np.array_equal(pieces.validation, whole.validation)


@pytest.mark.parametrize("tokenizer", [Char(), Byte(), Bpe(300)], ids=["char", "byte", "bpe"])
def test_tokens_and_targets_stand_for_the_bytes_of_their_text(make, novel, tokenizer):
    task, sizes = make(tokenizer=tokenizer, val_windows=5), tokenizer.sizes()
    assert sizes[task.validation].sum() == len(novel.read_text()[807:].encode())


def test_every_tokenizer_and_length_scores_the_same_bytes(make, novel):
    validation, scored = novel.read_text()[807:], {}
    for tokenizer in (Char(), Byte(), Bpe(300)):
        for length in (3, 8):
            task = make(tokenizer=tokenizer, length=length)
            batches = task.byte_batches(2)
            targets = torch.cat([batch["targets"] for batch in batches]).flatten().numpy()
            targets = targets[targets != IGNORE]
            text = "".join(task.decode(targets.tolist()))
            scored[tokenizer.unit, length] = task.val_text["sha256"], task.val_text["bytes"], text
            assert tokenizer.sizes()[targets].sum() == task.val_text["bytes"] == len(text.encode())
            assert all(batch["tokens"].shape[1] == length for batch in batches)
    assert len(set(scored.values())) == 1
    assert scored["char", 3][2] in validation


def test_another_validation_text_has_another_digest(make):
    assert make().val_text["sha256"] != make(val_fraction=0.3).val_text["sha256"]


@pytest.mark.parametrize("validation", ["", "x", "\N{PILE OF POO}"])
def test_a_validation_text_too_short_for_stretches_scores_no_bytes(tmp_path, validation):
    text._write_spans(validation, Byte(), tmp_path, np.uint8)
    assert json.loads((tmp_path / "spans.json").read_text()) == {
        "sha256": text.fingerprint(spans=[]), "bytes": 0, "tokens": [],
    }  # fmt: skip
    assert np.load(tmp_path / "spans.npy").shape == (0,)
