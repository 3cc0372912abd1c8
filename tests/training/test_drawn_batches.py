"""Mistakes in a task's batches are found before training: one line with the task, row and value."""

from types import SimpleNamespace

import pytest
import torch

from attnlab.data.data_module import DataModule
from attnlab.data.task import IGNORE
from attnlab.data.text import TextTask
from attnlab.training import preflight
from attnlab.training.validation.drawn_batches import validate_batches

ROWS, LENGTH, WORDS, VAL_WINDOWS = 3, 5, 7, 4


def draw(count, generator):
    tokens = torch.randint(WORDS, (count, LENGTH), generator=generator)
    targets = tokens.roll(-1, 1)
    targets[:, -1] = IGNORE
    return {"tokens": tokens, "targets": targets, "condition": tokens % 2}


def build_data(change=lambda batch: batch, where="both", draw=draw, conditions=("class/0", "class/1")):
    """Build the data of a task whose batches `change` alters in training, validation or both."""

    def train_batch(seed, step, batch_size):
        batch = draw(batch_size, torch.Generator().manual_seed(100 * seed + step))
        return change(batch) if where in ("training", "both") else batch

    def val_batches(batch_size):
        batch = draw(VAL_WINDOWS, torch.Generator().manual_seed(99))
        batch = change(batch) if where in ("validation", "both") else batch
        return [
            {key: value[:3] for key, value in batch.items()},
            {key: value[3:] for key, value in batch.items()},
        ]

    task = SimpleNamespace(
        name="mine", length=LENGTH, vocab_size=WORDS, val_windows=VAL_WINDOWS, conditions=conditions,
        train_batch=train_batch, val_batches=val_batches,
    )  # fmt: skip
    return DataModule(lambda: task, batch_size=ROWS, val_batch_size=3, seed=2)


def set_value(key, row, position, value):
    def change(batch):
        changed = batch[key].clone()
        changed[row, position] = value
        return batch | {key: changed}

    return change


def test_a_correct_task_passes():
    validate_batches(build_data())
    validate_batches(build_data(lambda batch: batch | {"documents": batch["tokens"]}))
    # the class of a position that is not scored is not used
    validate_batches(build_data(set_value("condition", 0, LENGTH - 1, 50)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_value("tokens", 1, 2, WORDS),
         "row 1, position 2: token 7 is outside the vocabulary of 7 (0 to 6)"),
        (set_value("tokens", 0, 0, -1), "row 0, position 0: token -1 is outside the vocabulary"),
        (set_value("targets", 0, 3, -1),
         "row 0, position 3: target -1 is outside the vocabulary of 7 (0 to 6); a "
         "position that is not scored has the target -100 (IGNORE)"),
        (set_value("condition", 0, 1, 2),
         "row 0, position 1: condition 2 is no index into the 2 conditions of the "
         "task (class/0, class/1)"),
        (lambda b: b | {"targets": b["targets"][:, :-1]}, "targets has shape (3, 4), not (3, 5)"),
        (lambda b: b | {"targets": torch.full_like(b["targets"], IGNORE)}, "no position is scored"),
        (lambda b: {"toks": b["tokens"], "targets": b["targets"]},
         "it has no tokens (its keys: toks, targets)"),
        (lambda b: b | {"length": b["tokens"]},
         "unknown key 'length': use only tokens, targets, lengths,"),
        (lambda b: b | {"tokens": b["tokens"].int()}, "tokens is torch.int32: return an int64 tensor"),
        (lambda b: {key: x[:, :-1] for key, x in b.items()},
         "tokens has shape (3, 4): return rows of data.length=5"),
        (lambda b: b | {"lengths": torch.full((len(b["tokens"]),), 6)},
         "row 0: length 6 is no number of tokens"),
        (lambda b: b | {"lengths": torch.full((len(b["tokens"]),), 2)}, "row 0, position 2: target "),
        (lambda b: b | {"tokens": torch.randint(WORDS, b["tokens"].shape)},  # the global generator
         "differ: take all randomness from the generator"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["training", "validation"])
def test_a_mistake_is_one_line_with_its_place(change, message, where):
    with pytest.raises(ValueError, match=rf"^data \(mine\), {where}") as caught:
        validate_batches(build_data(change, where))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fewer_rows_than_asked_are_rejected():
    def draw_half(count, generator):
        return draw(count // 2 + 1, generator)

    with pytest.raises(ValueError, match=r"validation: 3 rows, but val_windows is 4"):
        validate_batches(build_data(draw=draw_half))
    with pytest.raises(ValueError, match=r"training batch 0: 2 rows, but data\.batch_size is 3"):
        validate_batches(build_data(lambda batch: {key: x[:2] for key, x in batch.items()}, "training"))


def test_classes_without_names_are_rejected():
    with pytest.raises(ValueError, match=r"condition \d is no index into the 0 conditions of .* \(none\)"):
        validate_batches(build_data(conditions=()))


def test_the_check_of_a_run_draws_batches(compose, monkeypatch):
    gather_windows = TextTask.gather_windows

    def shift(self, tokens, starts):
        batch = gather_windows(self, tokens, starts)
        return batch | {"tokens": batch["tokens"] + 1000}

    config = compose()
    preflight.check(config)
    monkeypatch.setattr(TextTask, "gather_windows", shift)
    with pytest.raises(ValueError, match=r"^data \(book\), validation batch 0: row 0, .*: token 1\d\d\d"):
        preflight.check(config)
