"""Loss by length: the same targets at every length, undefined beyond the model's positions."""

import json

import numpy as np
import pytest
import torch

from attnlab.measure import length_generalization
from attnlab.model.build import instantiate_config
from attnlab.training import run

torch.set_num_threads(1)


class ContextCounter(torch.nn.Module):
    """Its logits encode the number of tokens read, so a target's loss gives its context length."""

    positions = None

    def forward(self, tokens):
        context = torch.arange(1.0, tokens.shape[1] + 1).expand(tokens.shape)
        return torch.stack(
            (torch.zeros_like(context), context), -1
        )  # token 1 becomes more likely with the context


class ZerosTask:
    length, name = 8, "zeros"

    def spans(self, count, size):
        return torch.zeros(3, size + 1, dtype=torch.long)


def recover_contexts(multiple):
    """Return the context length of every target of a span of 16, from its loss log(1 + e^context)."""
    (first_row, *other_rows) = length_generalization._compute_span_losses(
        ContextCounter(), ZerosTask().spans(3, 16), round(8 * multiple)
    )
    assert all(torch.equal(first_row, other) for other in other_rows)
    return first_row.exp().sub(1).log().round().int().tolist()


@pytest.mark.parametrize(
    ("multiple", "expected"),
    [
        (1, [*range(1, 9), *range(1, 9)]),
        (1.25, [*range(1, 7), *range(1, 11)]),
        (1.5, [*range(1, 5), *range(1, 13)]),
        (2, [*range(1, 17)]),
    ],
)
def test_every_target_is_scored_once_with_its_window(multiple, expected):
    assert recover_contexts(multiple) == expected


def test_metrics_are_means_over_all_and_over_the_last_targets():
    losses = length_generalization.measure_length_losses(
        ContextCounter(), ZerosTask(), [1, 1.25, 2], torch.device("cpu")
    )

    def mean(values):
        return torch.tensor(values, dtype=torch.float64).exp().add(1).log().mean().item()

    assert losses == pytest.approx(
        {
            "length/1": mean(recover_contexts(1)),
            "length/last/1": mean([5.0, 6, 7, 8]),
            "length/1.25": mean(recover_contexts(1.25)),
            "length/last/1.25": mean([7.0, 8, 9, 10]),
            "length/2": mean(recover_contexts(2)),
            "length/last/2": mean([13.0, 14, 15, 16]),
            "length/excess/1.25": mean(recover_contexts(1.25)) - mean(recover_contexts(1)),
            "length/excess/2": mean(recover_contexts(2)) - mean(recover_contexts(1)),
        },
        abs=1e-5,
    )


@pytest.mark.parametrize(("position", "undefined"), [("learned", True), ("rope", False)])
def test_a_run_result_lists_undefined_lengths(compose, make_run_dir, position, undefined):
    overrides = [
        f"position={position}",
        "trainer.max_steps=2",
        "measure.lengths=[1,2]",
        "data.val_fraction=0.2",
    ]
    folder = make_run_dir("run", compose(*overrides))
    run.run(folder)
    record = json.loads((folder / "run.json").read_text())
    longer_metrics = {"length/2", "length/last/2", "length/excess/2"}
    assert set(record["undefined"]) == (longer_metrics if undefined else set())
    assert longer_metrics.isdisjoint(record["metrics"]) == undefined
    assert {"length/1", "length/last/1"} <= set(record["metrics"])
    known = record["estimate"]["metric_definitions"]
    definitions = [known[name] for name in (*record["metrics"], *record["undefined"])]
    assert {
        definition["table"] for definition in definitions if definition["name"].startswith("length/")
    } == {"Loss by length"}


def test_spans_are_validation_text_and_score_no_token_twice(compose):
    task = instantiate_config(compose("data.val_fraction=0.2")["data"]).task
    task.val_ids = np.arange(task.val_tokens)  # token ids are positions
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
        (["measure.lengths=[1,200]"], r"the longest window takes 3201"),
    ],
)
def test_unmeasurable_lengths_are_rejected(compose, overrides, message):
    with pytest.raises(ValueError, match=message):
        run.check(compose(*overrides))


def test_a_task_without_longer_windows_is_rejected():
    with pytest.raises(ValueError, match="needs a task with longer windows"):
        length_generalization.validate_lengths([1, 2], type("Task", (), {"name": "recall", "length": 8})())
