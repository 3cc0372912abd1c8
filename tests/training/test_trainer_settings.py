"""Trainer settings are applied, or rejected before training; none is ignored."""

import inspect
import logging
import warnings

import pytest
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf

from attnlab.config import CONF
from attnlab.store import config_groups
from attnlab.training import run, trainer_settings
from attnlab.training.preflight import check

torch.set_num_threads(1)
PROFILER = "{_target_: pytorch_lightning.profilers.SimpleProfiler, dirpath: %s, filename: profile}"
# A non-default value of every Lightning setting that users may set.
ALLOWED_SETTINGS = {
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
def build_trainer(monkeypatch, make_run_dir):
    """`build_trainer(config)`: the Trainer that a run builds."""

    def call(config):
        trainers = []

        def fit(self, *_, **__):
            trainers.append(self)
            raise KeyError("enough")

        with monkeypatch.context() as patch:
            patch.setattr(pl.Trainer, "fit", fit)
            with pytest.raises(KeyError, match="enough"):
                run.run(make_run_dir("run", config))
        return trainers[0]

    return call


def test_every_trainer_setting_is_allowed_or_rejected():
    known = set(inspect.signature(pl.Trainer).parameters)
    assert known == set(trainer_settings.REJECTED_SETTINGS) | set(ALLOWED_SETTINGS)
    assert set(config_groups.TrainerGroup.model_fields) == set(ALLOWED_SETTINGS)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", trainer_settings.REJECTED_SETTINGS)
def test_harness_settings_are_rejected_in_one_line_with_a_remedy(compose, key):
    with pytest.raises(ValueError, match=f"^trainer.{key}=3: ") as caught:
        check(compose(f"+trainer.{key}=3"))
    assert "\n" not in str(caught.value)


def test_an_unknown_lightning_setting_is_rejected(compose, monkeypatch):
    monkeypatch.delitem(trainer_settings.REJECTED_SETTINGS, "max_time")
    with pytest.raises(ValueError, match=r"^trainer.max_time=3: attnlab does not use this setting"):
        check(compose("+trainer.max_time=3"))


def test_allowed_settings_reach_the_trainer(compose, build_trainer, tmp_path):
    trainer = build_trainer(
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


def test_a_profile_is_written_to_the_given_folder(compose, make_run_dir, tmp_path):
    run.run(make_run_dir("run", compose(f"+trainer.profiler={PROFILER % tmp_path}")))
    assert "run_training_batch" in (tmp_path / "fit-profile.txt").read_text()


def test_clipping_by_value_trains_another_model_than_clipping_by_norm(compose, make_run_dir):
    clip = "trainer.gradient_clip_val=0.001"
    folders = [
        make_run_dir("norm", compose(clip)),
        make_run_dir("value", compose(clip, "+trainer.gradient_clip_algorithm=value")),
    ]
    for folder in folders:
        run.run(folder)
    norm, value = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert norm != value


INVALID = {
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
    "no accumulation": (["trainer.accumulate_grad_batches=0"], "accumulate_grad_batches must be an integer"),
    "no interval": (["trainer.log_every_n_steps=0"], "trainer.log_every_n_steps must be an integer"),
    "determinism": (["+trainer.deterministic=maybe"], "deterministic must be true, false, warn or null"),
    "a sharded model": (
        ["+trainer.strategy=fsdp"],
        r"trainer.strategy must be auto, ddp or .* \(FSDP and tensor parallelism are not supported: a run",
    ),
    "a profiler without a file": (["+trainer.profiler=simple"], "trainer.profiler must be {_target_: "),
    "another class": (
        ["trainer._target_=builtins.dict"],
        "trainer._target_=builtins.dict is not a pytorch_lightning.Trainer",
    ),
    "a key of measure": (["+measure.evry=3"], r"measure.evry: measure has no such key \(nearest: every\)"),
    "a key of sweep": (["+sweep.max_tme=3"], r"sweep.max_tme: sweep has no such key \(nearest: max_time\)"),
    "a group": (
        ["+calbacks=ema"],
        r"^calbacks: there is no such key \(nearest: callbacks, claims\); put values that",
    ),
    "a key without its group": (["+weight_decay=0.1"], "^weight_decay: there is no such key"),
    "a key of decode": (["+decode.compiled=true"], r"decode has no such key \(nearest: compile\)"),
    "a key of paths": (["+paths.rums=x"], r"paths.rums: paths has no such key \(nearest: runs\)"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_settings_are_rejected_in_one_line(compose, case):
    overrides, message = INVALID[case]
    with pytest.raises(ValueError, match=message) as caught:
        check(compose(*overrides))
    assert "\n" not in str(caught.value)


def test_settings_in_the_environment_are_rejected_by_check_and_training(compose, make_run_dir, monkeypatch):
    monkeypatch.setenv("PL_TRAINER_LIMIT_TRAIN_BATCHES", "3")
    with pytest.raises(
        ValueError, match="PL_TRAINER_LIMIT_TRAIN_BATCHES is set, but run ids do not include it"
    ):
        check(compose())
    with pytest.raises(
        ValueError, match="PL_TRAINER_LIMIT_TRAIN_BATCHES is set, but run ids do not include it"
    ):
        run.run(make_run_dir("run", compose()))


def test_a_check_leaves_the_process_unchanged(compose):
    level, filters = logging.getLogger("pytorch_lightning").level, list(warnings.filters)
    check(compose("+trainer.deterministic=true", "+trainer.benchmark=true", "+trainer.strategy=ddp"))
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    assert (logging.getLogger("pytorch_lightning").level, list(warnings.filters)) == (level, filters)


def test_silencing_lightning_is_undone_afterwards(caplog):
    log = logging.getLogger("pytorch_lightning")
    before = log.level
    with pytest.raises(KeyError), trainer_settings.silence_lightning():
        warn_and_raise(log)
    assert log.level == before
    assert not caplog.records


def warn_and_raise(log):
    log.warning("a tip")
    warnings.warn("The `srun` command is available on your system", stacklevel=1)
    raise KeyError


@pytest.mark.parametrize("group", ["measure", "sweep", "paths", "decode"])
def test_every_shipped_key_is_known(compose, group):
    assert set(compose()[group]) <= trainer_settings._collect_known_keys()[group]


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "experiment").glob("*.yaml")))
def test_every_key_of_a_shipped_experiment_is_known(name):
    keys = set(OmegaConf.load(CONF / "experiment" / f"{name}.yaml"))
    assert keys - {"defaults"} <= set(trainer_settings._collect_known_keys())


def test_any_key_is_allowed_under_protocol(compose):
    check(compose("+protocol.width=24", "model.dim='${protocol.width}'"))


@pytest.mark.parametrize(
    "added", ["++sweep.show=plan", "++sweep.work={max_runs: 1}", "++sweep.train=attnlab.training.run"]
)
def test_hidden_keys_are_known(compose, added):
    check(compose(added))
