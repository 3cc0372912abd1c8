"""User callbacks: they run, are part of the run id, and are restored when a run is resumed."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from attnlab.measure.attention_maps import compute_attention_maps, encode_weights
from attnlab.measure.step_timing import load_trained_run
from attnlab.measure.text.probe_window import choose_probe_window
from attnlab.store import fingerprint
from attnlab.store.atomic_files import read_json
from attnlab.store.run_schema import RunEstimate
from attnlab.training import callbacks, run
from attnlab.training.preflight import check

torch.set_num_threads(1)
OWN = "++callbacks.mine={_target_: mine.Noise, size: 0.5}"
MODULE = """
import torch
from pathlib import Path
from attnlab.training.callbacks import StepCallback

class Noise(StepCallback):
    '''Adds to every weight a number of its own step, and counts the steps.'''
    def __init__(self, size):
        self.size, self.steps = size, 0
    def on_step_end(self, trainer, module):
        self.steps += 1
        with torch.no_grad():
            for weight in module.parameters():
                weight.add_(self.size / self.steps)
        Path(trainer.default_root_dir, 'steps').write_text(str(self.steps))
    def state_dict(self):
        return {'steps': self.steps}
    def load_state_dict(self, state):
        self.steps = state['steps']

class Unreadable(Noise):
    def state_dict(self):
        return {'steps': Noise}

class Stops(StepCallback):
    def on_step_end(self, trainer, module):
        trainer.should_stop = trainer.global_step == 3

class Picky(Noise):
    def __init__(self):
        raise KeyError('no size')
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A user's module with callbacks."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "mine.py"
    sys.modules.pop("mine", None)


@pytest.fixture
def train(compose, make_run_dir):
    """`train(name, *overrides)`: the folder of a finished run."""

    def call(name, *overrides):
        folder = make_run_dir(name, compose("trainer.max_steps=11", "sweep.checkpoint_every=3", *overrides))
        run.run(folder)
        return folder

    return call


def load_weights(folder):
    return load_file(folder / "model.safetensors")


def are_equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a | b)


def compute_id(config):
    source = fingerprint.hash_run_source(config, "attnlab.training.run")
    return fingerprint.compute_run_id(config, RunEstimate(), source)[0]


@pytest.mark.rare
def test_averaged_weights_are_validated_and_saved(train):
    plain = train("plain", "measure.every=4")
    last = train("last", "measure.every=4", "+callbacks=ema", "callbacks.ema.decay=0.0")
    mean = train("mean", "measure.every=4", "+callbacks=ema", "callbacks.ema.decay=0.5")
    assert are_equal(load_weights(plain), load_weights(last))  # an average with decay 0 is the last step
    assert not are_equal(load_weights(plain), load_weights(mean))
    losses = [read_json(folder / "run.json")["metrics"]["val/loss"] for folder in (plain, last, mean)]
    assert losses[0] == losses[1] != losses[2]


def test_the_last_attention_maps_are_those_of_averaged_weights(train):
    folder = train("mean", "+callbacks=ema", "callbacks.ema.decay=0.9", "optim.lr=0.05")
    _, model, _, data, _ = load_trained_run(folder)
    maps = compute_attention_maps(model, choose_probe_window(data))
    with np.load(folder / "attention.npz") as stored:
        assert stored["steps"][-1] == 11
        assert np.array_equal(stored["maps"][-1], encode_weights(maps.weights))


@pytest.mark.parametrize(
    "added",
    [
        ["+callbacks=ema", OWN],
        pytest.param(["+callbacks=ema"], marks=pytest.mark.rare),
        pytest.param([OWN], marks=pytest.mark.rare),
    ],
)
def test_a_resumed_run_with_callbacks_equals_an_uninterrupted_one(
    train, compose, make_run_dir, user_module, monkeypatch, added
):
    uninterrupted = train("whole", "model.dropout=0.1", *added)

    def stop(self, trainer, *_):
        if trainer.global_step == 8:
            raise KeyError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.ProgressWriter, "on_train_batch_end", stop)
        with pytest.raises(KeyError, match="power cut"):
            train("broken", "model.dropout=0.1", *added)
    [interrupted] = (each for each in uninterrupted.parent.iterdir() if each != uninterrupted)
    run.run(interrupted)
    assert are_equal(load_weights(uninterrupted), load_weights(interrupted))
    assert not are_equal(load_weights(uninterrupted), load_weights(train("plain", "model.dropout=0.1")))


def test_a_user_callback_runs_at_every_step(train, user_module):
    folder = train("own", OWN, "trainer.accumulate_grad_batches=2")
    assert (folder / "steps").read_text() == "11"


def test_callbacks_settings_and_source_are_part_of_the_id(compose, user_module):
    plain, ema, own, louder = (
        compute_id(compose(*line)) for line in ([], ["+callbacks=ema"], [OWN], [OWN.replace("0.5", "0.7")])
    )
    user_module.write_text(MODULE + "CHANGED = True\n")
    edited = compute_id(compose(OWN))
    assert len({plain, ema, own, louder, edited}) == 5
    assert compute_id(compose()) == plain


def test_null_removes_a_callback(train):
    out = train("out", "+callbacks=ema", "callbacks.ema=null")
    assert are_equal(load_weights(out), load_weights(train("plain")))


def test_an_unreadable_callback_state_stops_the_run_at_its_first_checkpoint(train, user_module):
    with pytest.raises(ValueError, match="a callback's state cannot be read from a checkpoint") as caught:
        train("unreadable", "++callbacks.mine={_target_: mine.Unreadable, size: 0.5}")
    assert "\n" not in str(caught.value)


def test_a_run_that_a_callback_stops_early_fails(train, user_module):
    with pytest.raises(RuntimeError, match="ended at step 3 of 11, stopped by a callback"):
        train("short", "++callbacks.mine={_target_: mine.Stops}")


REFUSED = {
    "no mapping": (["+callbacks.mine=3"], "callbacks.mine=3 is not a callback: use"),
    "no target": (["++callbacks.mine={size: 1}"], "callbacks.mine={'size': 1} is not a callback: use"),
    "no callback": (
        ["++callbacks.mine={_target_: torch.nn.Identity}"],
        "callbacks.mine._target_=torch.nn.Identity builds a Identity, which is not a pytorch_lightning",
    ),
    "an argument too many": ([OWN.replace("size", "sise")], "callbacks.mine: .*'sise'"),
    "a constructor that raises": (["++callbacks.mine={_target_: mine.Picky}"], "callbacks.mine: 'no size'"),
    "checkpoints": (
        ["++callbacks.kept={_target_: pytorch_lightning.callbacks.ModelCheckpoint}"],
        "callbacks.kept: attnlab saves checkpoints itself: set sweep.checkpoint_every",
    ),
    "early stopping": (
        ["++callbacks.early={_target_: pytorch_lightning.callbacks.EarlyStopping, monitor: loss}"],
        "callbacks.early: every run completes trainer.max_steps",
    ),
    "two of one class": (
        [OWN, "++callbacks.other={_target_: mine.Noise, size: 1}"],
        "trainer: Found more than one stateful callback of type `Noise`",
    ),
    "beside a measurement": (
        ["+callbacks=ema", "measurement={_target_: attnlab.measure.studies.cache_bytes.CacheBytes}"],
        "measurement runs do not train, so callbacks have no effect",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_callbacks_are_rejected_in_one_line(compose, user_module, case):
    overrides, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        check(compose(*overrides))
    assert "\n" not in str(caught.value)


def test_a_list_of_callbacks_is_rejected(compose):
    with pytest.raises(ValueError, match="callbacks must map names to"):
        check({**compose(), "callbacks": [{"_target_": "pytorch_lightning.Callback"}]})


def test_the_result_stores_the_callbacks(train):
    record = json.loads((train("ema", "+callbacks=ema") / "run.json").read_text())
    assert record["config"]["callbacks"]["ema"]["decay"] == 0.99


def test_progress_times_exclude_the_first_step(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(callbacks.time, "time", lambda: now[0])
    writer, module = (
        callbacks.ProgressWriter(tmp_path / "progress.json"),
        SimpleNamespace(last_loss=torch.tensor(2.5)),
    )
    for step, now[0] in ((5, 100.0), (6, 103.0), (9, 112.0)):
        writer.on_step_end(SimpleNamespace(global_step=step, max_steps=20, is_global_zero=True), module)
    assert read_json(tmp_path / "progress.json") == {
        "step": 9, "max_steps": 20, "loss": 2.5, "time": 112.0, "timed_steps": 4, "timed_seconds": 12.0,
    }  # fmt: skip
