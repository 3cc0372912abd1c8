"""Loss by length: the same targets at every length, undefined where there is no position."""

import json

import numpy as np
import pytest
import torch

from attnlab.measure import length
from attnlab.model.build import make
from attnlab.training import run

torch.set_num_threads(1)


class Count(torch.nn.Module):
    """Its logits say how many tokens it has read: the loss of a target tells the context that it had."""

    positions = None

    def forward(self, tokens):
        context = torch.arange(1.0, tokens.shape[1] + 1).expand(tokens.shape)
        return torch.stack((torch.zeros_like(context), context), -1)  # token 1 is the likelier, the longer


class Zeros:
    length, name = 8, "zeros"

    def spans(self, count, size):
        return torch.zeros(3, size + 1, dtype=torch.long)


def contexts(multiple):
    """The context of every target of a span of 16, from its loss log(1 + e^context)."""
    (row, *others) = length._losses(Count(), Zeros().spans(3, 16), round(8 * multiple))
    assert all(torch.equal(row, other) for other in others)
    return row.exp().sub(1).log().round().int().tolist()


@pytest.mark.parametrize(
    ("multiple", "expected"),
    [
        (1, [*range(1, 9), *range(1, 9)]),
        (1.25, [*range(1, 7), *range(1, 11)]),
        (1.5, [*range(1, 5), *range(1, 13)]),
        (2, [*range(1, 17)]),
    ],
)
def test_every_target_is_scored_once_with_the_window_before_it(multiple, expected):
    assert contexts(multiple) == expected


def test_the_metrics_are_means_over_all_and_over_the_last_targets():
    found = length.losses(Count(), Zeros(), [1, 1.25, 2], torch.device("cpu"))

    def mean(values):
        return torch.tensor(values, dtype=torch.float64).exp().add(1).log().mean().item()

    assert found == pytest.approx(
        {
            "length/1": mean(contexts(1)),
            "length/last/1": mean([5.0, 6, 7, 8]),
            "length/1.25": mean(contexts(1.25)),
            "length/last/1.25": mean([7.0, 8, 9, 10]),
            "length/2": mean(contexts(2)),
            "length/last/2": mean([13.0, 14, 15, 16]),
            "length/excess/1.25": mean(contexts(1.25)) - mean(contexts(1)),
            "length/excess/2": mean(contexts(2)) - mean(contexts(1)),
        },
        abs=1e-5,
    )


@pytest.mark.parametrize(("position", "undefined"), [("learned", True), ("rope", False)])
def test_a_run_says_where_its_loss_is_undefined(compose, store, position, undefined):
    overrides = [
        f"position={position}",
        "trainer.max_steps=2",
        "measure.lengths=[1,2]",
        "data.val_fraction=0.2",
    ]
    folder = store("run", compose(*overrides))
    run.run(folder)
    record = json.loads((folder / "run.json").read_text())
    beyond = {"length/2", "length/last/2", "length/excess/2"}
    assert set(record["undefined"]) == (beyond if undefined else set())
    assert beyond.isdisjoint(record["metrics"]) == undefined
    assert {"length/1", "length/last/1"} <= set(record["metrics"])
    said = [record["declared"][name] for name in (*record["metrics"], *record["undefined"])]
    assert {one["table"] for one in said if one["name"].startswith("length/")} == {"Loss by length"}


def test_spans_are_validation_text_and_score_no_token_twice(compose):
    task = make(compose("data.val_fraction=0.2")["data"]).task
    task.validation = np.arange(task.val_tokens)  # every token its own place
    spans = task.spans(5, 97)
    assert (spans.diff() == 1).all()
    assert spans.min() == 0
    assert spans.max() == task.val_tokens - 1
    assert spans[:, 1:].unique().numel() == 5 * 97
    assert len(task.spans(99, 97)) == (task.val_tokens - 1) // 97


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["measure.lengths=[0.5]"], r"measure\.lengths must be a list of multiples"),
        (["measure.lengths=[1,200]"], r"the longest takes 3201"),
    ],
)
def test_lengths_that_cannot_be_measured_are_refused(compose, overrides, message):
    with pytest.raises(ValueError, match=message):
        run.check(compose(*overrides))


def test_a_task_without_longer_windows_is_refused():
    with pytest.raises(ValueError, match="no running text"):
        length.check([1, 2], type("Task", (), {"name": "recall", "length": 8})())
