"""A run records what its parts do with validation data, and the loss that its final weights have."""

import sys

import pytest
import torch

from attnlab.report.verdicts.comparability import ROUNDING
from attnlab.store.atomic_files import read_json
from attnlab.training import callbacks, run
from attnlab.training.validation_watch import CHANGED_BATCHES, CHANGED_WEIGHTS, OTHER_READS

torch.set_num_threads(1)
MODULE = """
import torch
import pytorch_lightning as pl
from attnlab.training.language_model import LanguageModel

def train_on(module, batch):
    with torch.inference_mode(False), torch.enable_grad():
        batch = {key: value.clone() for key, value in batch.items()}
        module.losses(batch).mean().backward()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        module.zero_grad()

class EndOfBatch(pl.Callback):
    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        train_on(module, batch)
class Collects(pl.Callback):
    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        self.batch = batch
class AtStart(pl.Callback):
    def on_train_start(self, trainer, module):
        for batch in trainer.datamodule.val_dataloader():
            train_on(module, batch)
class AtSteps(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.val_dataloaders:
            train_on(module, next(iter(trainer.val_dataloaders)))
class OfList(pl.Callback):
    def on_train_end(self, trainer, module):
        train_on(module, trainer.datamodule.val_batches[0])
class Easier(pl.Callback):
    def on_train_start(self, trainer, module):
        trainer.datamodule.val_batches[0]["targets"][:] = 1
class Rewrites(pl.Callback):
    def on_validation_end(self, trainer, module):
        module.validation_results["loss"] -= 1
class Replaces(pl.Callback):
    def on_train_end(self, trainer, module):
        with torch.no_grad():
            for weight in module.parameters():
                weight.mul_(1.5)
class Average(pl.Callback):
    def on_validation_start(self, trainer, module):
        self.own = [weight.detach().clone() for weight in module.parameters()]
        self.set(module, [weight * 0.9 for weight in self.own])
    def on_validation_end(self, trainer, module):
        self.set(module, self.own)
    def on_train_end(self, trainer, module):
        self.set(module, [weight * 0.9 for weight in module.parameters()])
    def set(self, module, weights):
        with torch.no_grad():
            for weight, value in zip(module.parameters(), weights):
                weight.copy_(value)
class Trains(LanguageModel):
    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        train_on(self, batch)
class Smooths(LanguageModel):
    def logits(self, batch, auxiliary=None):
        return super().logits(batch, auxiliary) * 0.5
"""


@pytest.fixture
def train(compose, make_run_dir, tmp_path, monkeypatch):
    """`train(name, *overrides)`: the result of a run with parts of the module `mine`."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(name, *overrides):
        settings = ["trainer.max_steps=11", "measure.every=4", "sweep.checkpoint_every=3"]
        folder = make_run_dir(name, compose(*settings, *overrides))
        run.run(folder)
        return read_json(folder / "run.json")

    yield call
    sys.modules.pop("mine", None)


def has_its_loss(result):
    loss, recomputed = result["metrics"]["val/loss"], result["recomputed"]["val/loss"]
    return abs(loss - recomputed) <= ROUNDING * max(1.0, recomputed)


def use(name):
    return f"++callbacks.mine={{_target_: mine.{name}}}"


@pytest.mark.parametrize(
    ("override", "interference"),
    [
        (
            use("EndOfBatch"),
            ["EndOfBatch.on_validation_batch_end receives validation batches", CHANGED_WEIGHTS],
        ),
        (use("Collects"), ["Collects.on_validation_batch_start receives validation batches"]),
        (use("AtStart"), [OTHER_READS]),
        (use("AtSteps"), [OTHER_READS]),
        (use("OfList"), [OTHER_READS]),
        (use("Easier"), [OTHER_READS, CHANGED_BATCHES]),
        ("optim._target_=mine.Trains", [CHANGED_WEIGHTS]),
    ],
)
def test_use_of_validation_data_is_recorded(train, override, interference):
    assert train("used", override)["interference"] == interference


@pytest.mark.parametrize("override", [use("Rewrites"), use("Replaces"), "optim._target_=mine.Smooths"])
def test_a_loss_that_the_final_weights_do_not_have_is_recorded(train, override):
    result = train("changed", override, "measure.every=11")
    assert not has_its_loss(result)
    assert result["interference"] == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["measure.every=100"],
        [use("Average"), "measure.every=11"],
        ["+callbacks=ema"],
        ["model.dropout=0.3", "trainer.accumulate_grad_batches=2"],
        ["trainer.precision=bf16-mixed"],
        pytest.param(["trainer.precision=bf16-true"], marks=pytest.mark.rare),
        pytest.param(["mask=indexed_tokens"], marks=pytest.mark.rare),
        pytest.param(["model=gated_delta"], marks=pytest.mark.rare),
    ],
)
def test_other_runs_use_validation_data_for_validation_alone(train, overrides):
    result = train("plain", *overrides)
    assert has_its_loss(result)
    assert result["interference"] == []


def test_a_resumed_run_keeps_the_record_and_counts_its_reads_anew(train, monkeypatch):
    def stop(self, trainer, *_):
        if trainer.global_step == 8:
            raise KeyError("power cut")

    for override, interference in ((use("AtStart"), [OTHER_READS]), ("model.dropout=0.1", [])):
        name = "used" if interference else "plain"
        with monkeypatch.context() as patch:
            patch.setattr(callbacks.ProgressWriter, "on_train_batch_end", stop)
            with pytest.raises(KeyError, match="power cut"):
                train(name, override)
        result = train(name, override)
        assert result["resumed"]
        assert result["interference"] == interference
        assert has_its_loss(result)
