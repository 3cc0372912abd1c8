"""Callbacks that a user adds: they run, they are part of the run's id, and a resumed run has them too."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from attnlab.store import fingerprint
from attnlab.store.files import read_json
from attnlab.store.schema import Estimate
from attnlab.training import callbacks, run
from attnlab.training.preflight import check

torch.set_num_threads(1)
OWN = "++callbacks.mine={_target_: mine.Noise, size: 0.5}"
MINE = """
import torch
from pathlib import Path
from attnlab.training.callbacks import OnStep

class Noise(OnStep):
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

class Stops(OnStep):
    def on_step_end(self, trainer, module):
        trainer.should_stop = trainer.global_step == 3

class Picky(Noise):
    def __init__(self):
        raise KeyError('no size')
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's own."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "mine.py"
    sys.modules.pop("mine", None)


@pytest.fixture
def train(compose, store):
    """`train(name, *overrides)`: the folder of a finished run."""

    def call(name, *overrides):
        folder = store(name, compose("trainer.max_steps=11", "sweep.checkpoint_every=3", *overrides))
        run.run(folder)
        return folder

    return call


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a | b)


def identity(config):
    source = fingerprint.source(config, "attnlab.training.run")
    return fingerprint.identify(config, Estimate(), source)[0]


@pytest.mark.rare
def test_the_average_of_the_weights_is_what_is_validated_and_kept(train):
    plain = train("plain", "measure.every=4")
    last = train("last", "measure.every=4", "+callbacks=ema", "callbacks.ema.decay=0.0")
    mean = train("mean", "measure.every=4", "+callbacks=ema", "callbacks.ema.decay=0.5")
    assert same(weights(plain), weights(last))  # an average that keeps nothing is the last step
    assert not same(weights(plain), weights(mean))
    loss = {
        folder.name: read_json(folder / "run.json")["metrics"]["val/loss"] for folder in (plain, last, mean)
    }
    assert loss["plain"] == loss["last"] != loss["mean"]


@pytest.mark.parametrize(
    "added",
    [
        ["+callbacks=ema", OWN],
        pytest.param(["+callbacks=ema"], marks=pytest.mark.rare),
        pytest.param([OWN], marks=pytest.mark.rare),
    ],
)
def test_a_run_killed_in_the_middle_ends_with_the_bits_of_an_undisturbed_one(
    train, compose, store, mine, monkeypatch, added
):
    whole = train("whole", "model.dropout=0.1", *added)

    def stop(self, trainer, *_):
        if trainer.global_step == 8:
            raise KeyError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.Heartbeat, "on_train_batch_end", stop)
        with pytest.raises(KeyError, match="power cut"):
            train("broken", "model.dropout=0.1", *added)
    broken = whole.with_name("broken")
    run.run(broken)
    assert same(weights(whole), weights(broken))
    assert not same(weights(whole), weights(train("plain", "model.dropout=0.1")))


def test_a_callback_of_ones_own_takes_part_in_every_step(train, mine):
    folder = train("own", OWN, "trainer.accumulate_grad_batches=2")
    assert (folder / "steps").read_text() == "11"


def test_a_callback_its_settings_and_its_source_are_part_of_the_id(compose, mine):
    plain, ema, own, louder = (
        identity(compose(*line)) for line in ([], ["+callbacks=ema"], [OWN], [OWN.replace("0.5", "0.7")])
    )
    mine.write_text(MINE + "CHANGED = True\n")
    edited = identity(compose(OWN))
    assert len({plain, ema, own, louder, edited}) == 5
    assert identity(compose()) == plain


def test_null_takes_a_callback_out(train):
    out = train("out", "+callbacks=ema", "callbacks.ema=null")
    assert same(weights(out), weights(train("plain")))


def test_a_state_that_no_checkpoint_can_give_back_stops_the_run_at_its_first_one(train, mine):
    with pytest.raises(ValueError, match="a callback's state cannot be read from a checkpoint") as caught:
        train("unreadable", "++callbacks.mine={_target_: mine.Unreadable, size: 0.5}")
    assert "\n" not in str(caught.value)


def test_a_run_that_a_callback_ends_early_is_no_run(train, mine):
    with pytest.raises(RuntimeError, match="ended at step 3 of 11, stopped by a callback"):
        train("short", "++callbacks.mine={_target_: mine.Stops}")


REFUSED = {
    "no mapping": (["+callbacks.mine=3"], "callbacks.mine=3: a callback is given as"),
    "no target": (["++callbacks.mine={size: 1}"], "callbacks.mine={'size': 1}: a callback is given as"),
    "no callback": (
        ["++callbacks.mine={_target_: torch.nn.Identity}"],
        "callbacks.mine._target_=torch.nn.Identity makes a Identity, which is no pytorch_lightning.Callback",
    ),
    "an argument too many": ([OWN.replace("size", "sise")], "callbacks.mine: .*'sise'"),
    "a constructor that raises": (["++callbacks.mine={_target_: mine.Picky}"], "callbacks.mine: 'no size'"),
    "checkpoints": (
        ["++callbacks.kept={_target_: pytorch_lightning.callbacks.ModelCheckpoint}"],
        "callbacks.kept: attnlab saves checkpoints itself: set sweep.checkpoint_every",
    ),
    "early stopping": (
        ["++callbacks.early={_target_: pytorch_lightning.callbacks.EarlyStopping, monitor: loss}"],
        "callbacks.early: a run takes all of its trainer.max_steps",
    ),
    "two of one class": (
        [OWN, "++callbacks.other={_target_: mine.Noise, size: 1}"],
        "trainer: Found more than one stateful callback of type `Noise`",
    ),
    "beside a measurement": (
        ["+callbacks=ema", "measurement={_target_: attnlab.measure.studies.cache_bytes.CacheBytes}"],
        "callbacks look at a training, and a measurement trains nothing",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_callback_for_a_run_is_refused_in_one_line_before_it(compose, mine, case):
    overrides, told = REFUSED[case]
    with pytest.raises(ValueError, match=told) as caught:
        check(compose(*overrides))
    assert "\n" not in str(caught.value)


def test_a_list_of_callbacks_is_refused(compose):
    with pytest.raises(ValueError, match="callbacks maps names to"):
        check({**compose(), "callbacks": [{"_target_": "pytorch_lightning.Callback"}]})


def test_what_the_record_keeps_of_the_config_names_the_callbacks(train):
    record = json.loads((train("ema", "+callbacks=ema") / "run.json").read_text())
    assert record["config"]["callbacks"]["ema"]["decay"] == 0.99


def test_the_progress_record_times_the_steps_after_the_first_one(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(callbacks.time, "time", lambda: now[0])
    beat, module = (
        callbacks.Heartbeat(tmp_path / "progress.json"),
        SimpleNamespace(last_loss=torch.tensor(2.5)),
    )
    for step, now[0] in ((5, 100.0), (6, 103.0), (9, 112.0)):
        beat.on_step_end(SimpleNamespace(global_step=step, max_steps=20, is_global_zero=True), module)
    assert read_json(tmp_path / "progress.json") == {
        "step": 9, "max_steps": 20, "loss": 2.5, "time": 112.0, "timed_steps": 4, "timed_seconds": 12.0,
    }  # fmt: skip
