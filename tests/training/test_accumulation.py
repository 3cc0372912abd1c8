"""Gradient accumulation and micro-batches train like one batch with all their examples."""

import json

import pyarrow.parquet as pq
import pytest
import torch

from attnlab.measure import step_timing
from attnlab.store import run_directories
from attnlab.store.atomic_files import read_json
from attnlab.training import callbacks, remeasure, run
from attnlab.training.language_model import LanguageModel

torch.set_num_threads(1)
NAMES = "bo\nal\nmaximiliane\nu\nida\nann-sophie\nzo\nwilhelmina\nea\nte\nkonstantin\nli\n"  # unequal lengths
STEPS = 5


@pytest.fixture
def prepare_names_run_dir(compose, make_run_dir, tmp_path):
    """`prepare_names_run_dir(name, batches, split)`: a run directory in float64 on names."""

    def prepare(name: str, batches: int, split: int):
        file = tmp_path / "names.txt"
        file.write_text(NAMES)
        line = (
            "data=names", f"data.path={file}", "data.batch_size=4", "trainer.precision=64-true",
            "trainer.accelerator=cpu", "trainer.log_every_n_steps=1", "measure.maps=0",
            "sweep.checkpoint_every=2", f"trainer.max_steps={STEPS}",
            f"trainer.accumulate_grad_batches={batches}",
        )  # fmt: skip
        folder = make_run_dir(name, compose(*line))
        spec = read_json(folder / "spec.json")
        (folder / "spec.json").write_text(json.dumps({**spec, "use": {**spec["use"], "split": split}}))
        return folder

    return prepare


@pytest.fixture
def full_batch_losses(monkeypatch):
    """Compare the gradient of each optimizer step with that of one full batch; collect the losses by step.

    The batches of a step must differ in their numbers of scored targets.
    """
    losses, counts = {}, []

    def compare(self, optimizer):
        data, step = self.trainer.datamodule, self.trainer.global_step
        batches = self.trainer.accumulate_grad_batches // data.micro_batches
        parts = [
            data.task.train_batch(data.seed, step * batches + n, data.batch_size) for n in range(batches)
        ]
        counts.append([int((part["targets"] >= 0).sum()) for part in parts])
        full_batch = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        loss = self.losses(full_batch).sum() / (full_batch["targets"] >= 0).sum()
        parameters = list(self.model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-15)
        losses[step + 1] = loss.item()

    monkeypatch.setattr(LanguageModel, "on_before_optimizer_step", compare)
    yield losses
    assert all(len(count) == 1 for count in counts) or any(len({*count}) > 1 for count in counts)


@pytest.mark.rare(sample=3)
@pytest.mark.parametrize(("batches", "split"), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 4), (3, 2)])
def test_accumulated_gradient_and_loss_equal_one_full_batch(
    prepare_names_run_dir, full_batch_losses, batches, split
):
    folder = prepare_names_run_dir("run", batches, split)
    run.run(folder)
    rows = pq.read_table(folder / "curves.parquet").to_pylist()
    curve = {row["step"]: row["value"] for row in rows if row["name"] == "train/loss"}
    assert [*full_batch_losses] == [*range(1, STEPS + 1)]
    assert curve == pytest.approx(full_batch_losses, rel=1e-6)  # losses are summed in float32


def test_a_resumed_run_accumulates_the_same_batches(prepare_names_run_dir, full_batch_losses, monkeypatch):
    folder = prepare_names_run_dir("run", 3, 2)

    def stop(self, trainer, module):
        if trainer.global_step == 3:
            raise KeyError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.ProgressWriter, "on_step_end", stop)
        with pytest.raises(KeyError, match="power cut"):
            run.run(folder)
    first = dict(full_batch_losses)
    full_batch_losses.clear()
    run.run(folder)
    assert [*first] == [1, 2, 3]
    assert [*full_batch_losses] == [3, 4, 5], "it goes on from the checkpoint after step 2"
    assert full_batch_losses[3] == first[3]


def test_measurements_take_no_more_rows_than_a_training_pass(prepare_names_run_dir, monkeypatch):
    """So that a run which fits into memory only in parts of a batch can be measured."""
    rows = []
    compute_losses = LanguageModel.losses

    def record_rows(self, batch, *auxiliary):
        rows.append(len(batch["tokens"]))
        return compute_losses(self, batch, *auxiliary)

    monkeypatch.setattr(LanguageModel, "losses", record_rows)
    monkeypatch.setattr(step_timing, "interleave_calls", lambda works: {name: [1.0] for name in works})
    folder = prepare_names_run_dir("run", 1, 2)
    run.run(folder)
    after_training = [2] * (2 * STEPS + 1)
    assert rows == after_training
    result = run_directories.load_run_result(folder)
    run_directories.write_run_result(folder, result.model_copy(update={"measured_by": {}}))
    run_config = run_directories.load_run_config(folder)
    outdated = run_config.estimate.model_copy(update={"measured_by": {"memory": "current"}})
    run_directories.write_run_config(folder.parent, run_config.with_changes(estimate=outdated))
    remeasure.measure_again(folder)
    assert rows == [*after_training, 2]
    step_timing.measure_timings({"arm": folder})
    assert rows == [*after_training, 2, 2, 2], "a timed step has two passes"
