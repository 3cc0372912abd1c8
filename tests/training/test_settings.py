"""What a user says to the Trainer is followed, or refused before anything is trained; nothing vanishes."""

import inspect
import logging
import warnings

import pytest
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf

from attnlab.config import CONF
from attnlab.store import values
from attnlab.training import run, settings
from attnlab.training.preflight import check

torch.set_num_threads(1)
PROFILER = "{_target_: pytorch_lightning.profilers.SimpleProfiler, dirpath: %s, filename: profile}"
# one value each, not the default, of every setting of Lightning's that is left to the user
FOLLOWED = {
    "accelerator": "cpu",
    "accumulate_grad_batches": 2,
    "benchmark": False,
    "detect_anomaly": True,
    "deterministic": "warn",
    "devices": 1,
    "gradient_clip_algorithm": "value",
    "gradient_clip_val": 0.5,
    "inference_mode": False,
    "log_every_n_steps": 3,
    "max_steps": 5,
    "precision": "bf16-mixed",
    "profiler": {"_target_": "pytorch_lightning.profilers.PassThroughProfiler"},
    "strategy": "ddp",
    "sync_batchnorm": True,
}


@pytest.fixture
def made(monkeypatch, store):
    """`made(config)`: the Trainer that a run builds."""

    def call(config):
        found = []

        def fit(self, *_, **__):
            found.append(self)
            raise KeyError("enough")

        with monkeypatch.context() as patch:
            patch.setattr(pl.Trainer, "fit", fit)
            with pytest.raises(KeyError, match="enough"):
                run.run(store("run", config))
        return found[0]

    return call


def test_every_setting_of_the_trainer_is_followed_or_refused():
    known = set(inspect.signature(pl.Trainer).parameters)
    assert known == set(settings.REFUSED) | set(FOLLOWED)
    assert set(values.Trainer.model_fields) == set(FOLLOWED)


@pytest.mark.parametrize("key", settings.REFUSED)
def test_what_is_the_harness_own_is_refused_in_one_line_that_says_what_to_do(compose, key):
    with pytest.raises(ValueError, match=f"^trainer.{key}=3: ") as caught:
        check(compose(f"+trainer.{key}=3"))
    assert "\n" not in str(caught.value)


def test_a_setting_of_a_later_lightning_is_refused(compose, monkeypatch):
    monkeypatch.delitem(settings.REFUSED, "max_time")
    with pytest.raises(ValueError, match=r"^trainer.max_time=3: attnlab has no use for this setting"):
        check(compose("+trainer.max_time=3"))


def test_what_is_left_to_the_user_reaches_the_trainer(compose, made, tmp_path):
    trainer = made(
        compose(
            "+trainer.gradient_clip_algorithm=value",
            "trainer.gradient_clip_val=0.5",
            "trainer.accumulate_grad_batches=2",
            "+trainer.detect_anomaly=true",
            f"+trainer.profiler={PROFILER % tmp_path}",
        )
    )
    assert (trainer.gradient_clip_algorithm, trainer.gradient_clip_val) == ("value", 0.5)
    assert trainer.accumulate_grad_batches == 2
    assert trainer._detect_anomaly
    assert isinstance(trainer.profiler, pl.profilers.SimpleProfiler)


def test_a_profile_is_written_where_it_was_asked_for(compose, store, tmp_path):
    run.run(store("run", compose(f"+trainer.profiler={PROFILER % tmp_path}")))
    assert "run_training_batch" in (tmp_path / "fit-profile.txt").read_text()


def test_clipping_by_value_trains_another_model_than_clipping_by_norm(compose, store):
    clip = "trainer.gradient_clip_val=0.001"
    folders = [
        store("norm", compose(clip)),
        store("value", compose(clip, "+trainer.gradient_clip_algorithm=value")),
    ]
    for folder in folders:
        run.run(folder)
    norm, value = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert norm != value


REFUSED = {
    "a list of callbacks": (
        ["+trainer.callbacks=[{_target_: pytorch_lightning.Callback}]"],
        r"trainer.callbacks: add them as \+callbacks=NAME",
    ),
    "a name near another": (
        ["+trainer.detect_anomalies=true"],
        r"trainer.detect_anomalies: the Trainer has no such setting \(nearest: detect_anomaly\)",
    ),
    "an algorithm that is none": (
        ["+trainer.gradient_clip_algorithm=volume"],
        "trainer.gradient_clip_algorithm must be norm, value or null, got volume",
    ),
    "a precision that is none": (
        ["trainer.precision=31-true"],
        "trainer.precision must be 32-true, bf16-mixed, bf16-true or 64-true .*, got 31-true",
    ),
    "a negative clip": (["trainer.gradient_clip_val=-1"], "trainer.gradient_clip_val must be a number of at"),
    "no accumulation": (["trainer.accumulate_grad_batches=0"], "accumulate_grad_batches must be a whole"),
    "no interval": (["trainer.log_every_n_steps=0"], "trainer.log_every_n_steps must be a whole number"),
    "determinism": (["+trainer.deterministic=maybe"], "deterministic must be true, false, warn or null"),
    "a sharded model": (["+trainer.strategy=fsdp"], "trainer.strategy must be auto, ddp or"),
    "a profiler without a file": (["+trainer.profiler=simple"], "trainer.profiler must be {_target_: "),
    "another class": (
        ["trainer._target_=builtins.dict"],
        "trainer._target_=builtins.dict is no pytorch_lightning.Trainer",
    ),
    "a key of measure": (["+measure.evry=3"], r"measure.evry: measure has no such key \(nearest: every\)"),
    "a key of sweep": (["+sweep.max_tme=3"], r"sweep.max_tme: sweep has no such key \(nearest: max_time\)"),
    "a group": (
        ["+calbacks=ema"],
        r"^calbacks: nothing reads a key of that name \(nearest: callbacks, claims\); values that",
    ),
    "a key without its group": (["+weight_decay=0.1"], "^weight_decay: nothing reads a key of that name"),
    "a key of decode": (["+decode.compiled=true"], r"decode has no such key \(nearest: compile\)"),
    "a key of paths": (["+paths.rums=x"], r"paths.rums: paths has no such key \(nearest: runs\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_followed_is_refused_in_one_line(compose, case):
    overrides, told = REFUSED[case]
    with pytest.raises(ValueError, match=told) as caught:
        check(compose(*overrides))
    assert "\n" not in str(caught.value)


def test_a_setting_in_the_environment_is_refused_by_who_plans_and_who_trains(compose, store, monkeypatch):
    monkeypatch.setenv("PL_TRAINER_LIMIT_TRAIN_BATCHES", "3")
    with pytest.raises(ValueError, match="PL_TRAINER_LIMIT_TRAIN_BATCHES is set, and would change runs"):
        check(compose())
    with pytest.raises(ValueError, match="PL_TRAINER_LIMIT_TRAIN_BATCHES is set, and would change runs"):
        run.run(store("run", compose()))


def test_a_check_leaves_the_process_as_it_was(compose):
    level, filters = logging.getLogger("pytorch_lightning").level, list(warnings.filters)
    check(compose("+trainer.deterministic=true", "+trainer.benchmark=true", "+trainer.strategy=ddp"))
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    assert (logging.getLogger("pytorch_lightning").level, list(warnings.filters)) == (level, filters)


def test_lightning_is_quiet_within_and_as_it_was_after(caplog):
    log = logging.getLogger("pytorch_lightning")
    before = log.level
    with pytest.raises(KeyError), settings.quiet():
        leave(log)
    assert log.level == before
    assert not caplog.records


def leave(log):
    log.warning("a tip")
    warnings.warn("The `srun` command is available on your system", stacklevel=1)
    raise KeyError


@pytest.mark.parametrize("group", ["measure", "sweep", "paths", "decode"])
def test_every_key_that_ships_is_known(compose, group):
    assert set(compose()[group]) <= settings._declared()[group]


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "experiment").glob("*.yaml")))
def test_every_key_of_an_experiment_that_ships_is_known(name):
    keys = set(OmegaConf.load(CONF / "experiment" / f"{name}.yaml"))
    assert keys - {"defaults"} <= set(settings._declared())


def test_values_of_ones_own_are_free_under_protocol(compose):
    check(compose("+protocol.width=24", "model.dim='${protocol.width}'"))


@pytest.mark.parametrize("added", ["++sweep.show=plan", "++sweep.train=attnlab.training.run"])
def test_keys_that_no_file_shows_are_known(compose, added):
    check(compose(added))
