"""Loggers, read back from their files: the same numbers, names and config in each."""

import csv
import itertools
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml
from processes import wait_until
from pytorch_lightning.loggers.logger import Logger
from stored_runs import make_spec
from wandb_files import read_history, read_run, read_summary

from attnlab.errors import InvalidConfig
from attnlab.store import config_groups, run_directories
from attnlab.store.guards import ownership, trust
from attnlab.store.run_schema import RunEstimate, Use
from attnlab.training import run as train
from attnlab.training.loggers import async_logger, logger_group, wandb_logger
from attnlab.training.loggers.logger_group import make_run_labels, to_folder_names

torch.set_num_threads(1)
# MLflow and TensorBoard warn, which would change the output.
pytestmark = pytest.mark.filterwarnings("ignore")
BATCH = 30


def read_csv(folder):
    scalars, files = {}, sorted(folder.glob("csv/version_*/metrics.csv"))
    for file in files:  # a resumed run has one version per start
        for row in csv.DictReader(file.open(newline="")):
            for name, value in row.items():
                if value and name != "step":
                    scalars.setdefault(name, []).append((int(row["step"]), float(value)))
    return scalars, yaml.safe_load((files[-1].parent / "hparams.yaml").read_text()), None


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = {file.parent for file in folder.glob("tensorboard/**/events.out.*")}
    accumulator = EventAccumulator(str(events), {"scalars": 0, "images": 0}).Reload()
    tags = accumulator.Tags()
    scalars = {  # the last step also appears with the hyperparameters
        name: [*dict.fromkeys((one.step, one.value) for one in accumulator.Scalars(name))]
        for name in tags["scalars"]
    }
    images = {(name, one.step) for name in tags["images"] for one in accumulator.Images(name)}
    return scalars, yaml.safe_load((events / "hparams.yaml").read_text()), images


def read_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient((folder.parent / "mlflow").absolute().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("attnlab").experiment_id])
    names = run.data.metrics
    scalars = {
        name: [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]
        for name in names
    }
    paths = [file.path.split("+") for file in client.list_artifacts(run.info.run_id, "images")]
    images = {(path[0].removeprefix("images/").replace("~", "/"), int(path[2])) for path in paths}
    assert run.info.run_name == run.data.params["name"]
    return scalars, run.data.params, images


def read_wandb(folder):
    scalars, images = {}, set()
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    for row in itertools.chain(*map(read_history, files)):  # a resumed run has one file per start
        step = int(row["trainer/global_step"])
        for name, value in row.items():
            if name.startswith("attention/"):
                images.add((name.split(".")[0], step))
            else:
                scalars.setdefault(name, []).append((step, json.loads(value)))
    assert {read_run(file).run_id for file in files} == {folder.name}
    summary = read_summary(files[-1])
    scalars["memory/peak"] = [
        (step, float(summary["memory/peak"])) for step in [scalars["train/loss"][-1][0]]
    ]
    return scalars, None, images


def param_if_installed(name, package):
    return pytest.param(name, marks=pytest.mark.skipif(not find_spec(package), reason=f"no {package} here"))


@pytest.fixture(autouse=True)
def long_logger_timeout(monkeypatch):
    """Allow slow imports when many tests run at once."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow sets it when used
    monkeypatch.setattr(async_logger, "DISK_SECONDS", 300.0)


READERS = {"csv": read_csv, "tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb}
LOGGERS = ["csv", param_if_installed("tensorboard", "tensorboard"), param_if_installed("mlflow", "mlflow")]


@pytest.fixture
def make_run_config(compose):
    """`make_run_config(*overrides)`: a run config that is in no store yet."""

    def make(*overrides):
        small = ("trainer.max_steps=6", "measure.every=3", "trainer.log_every_n_steps=2", "measure.maps=2")
        use = Use(
            experiment="exam",
            arm="gqa",
            axes={"data": "text", "data/tokenizer": "char", "heads": "gqa", "size": "debug"},
            commit="c0ffee",
        )
        config = compose(*small, *overrides)
        trust.declare_names([config])
        return make_spec(config, estimate=RunEstimate.model_validate(train.check(config)), use=use)

    return make


@pytest.mark.rare(sample=2)
@pytest.mark.parametrize("name", LOGGERS)
def test_a_run_logs_its_metrics_and_config(make_run_config, name, tmp_path, capfd):
    run_config = make_run_config(f"logger=[{name},none]")
    run_directories.write_run_config(tmp_path / "runs", run_config)
    folder = tmp_path / "runs" / run_config.id
    train.run(folder)
    assert "the run's results are on disk" not in capfd.readouterr().err
    scalars, labels, images = READERS[name](folder)
    batch = run_config.config["data"]["batch_size"] * run_config.config["data"]["length"]
    assert [step for step, _ in scalars["train/loss"]] == [2, 4, 6]
    assert [step for step, _ in scalars["val/loss"]] == [3, 6]
    assert {(step, tokens) for step, tokens in scalars["tokens"]} == {(n, n * batch) for n in (2, 3, 4, 6)}
    result = run_directories.load_run_result(folder)
    assert scalars["val/loss"][-1][1] == pytest.approx(result.metrics["val/loss"], rel=1e-5)
    assert scalars["memory/kv_bytes_per_token_live"] == [(6, 256)]
    assert labels["name"] == make_run_labels(run_config)["name"] == "gqa/seed=0"
    assert (labels["arm"], labels["experiment"], labels["size"]) == ("gqa", "exam", "debug")
    assert labels["commit"] == "c0ffee"
    assert images is None or images == {(f"attention/layer{n}", step) for n in (0, 1) for step in (0, 6)}
    assert not (folder / "wandb").exists()


@pytest.mark.parametrize("name", [*LOGGERS, "wandb"])
def test_a_resumed_run_logs_no_point_twice(make_run_config, name, tmp_path):
    run_config = make_run_config(f"logger={name}")
    folder = tmp_path / "runs" / run_config.id
    run_config = run_config.with_changes(
        estimate=run_config.estimate.model_copy(update={"batch_tokens": BATCH})
    )
    folder.mkdir(parents=True)
    picture = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for steps, code in ((range(1, 5), 1), (range(3, 7), 0), (range(5, 7), 0)):
        (logger,) = logger_group.open_loggers(run_config.config["logger"], run_config, folder)
        for step in steps:
            logger.log_metrics({"train/loss": 10.0 - step}, step=step)
            logger.log_metrics({"val/loss": 20.0 - step}, step=step) if step % 3 == 0 else None
            logger.log_image("attention/layer0", [picture], step=step, caption=[""])
        logger.close({} if code else {"memory/peak": 7.0}, code)
        second = int(time.time())
        if name == "wandb":  # it names its folders by the second
            wait_until(lambda now=second: int(time.time()) > now)
    scalars, _, images = READERS[name](folder)
    assert scalars["train/loss"] == [(step, 10.0 - step) for step in range(1, 7)]
    assert scalars["val/loss"] == [(step, 20.0 - step) for step in (3, 6)]
    assert scalars["memory/peak"] == [(6, 7.0)]
    assert images is None or images == {("attention/layer0", step) for step in range(1, 7)}


class UserLogger(Logger):
    """A user-defined logger that stores its rows."""

    rows: ClassVar[list] = []

    def __init__(self, flavor):
        super().__init__()
        self.flavor = flavor

    name, version = "mine", None

    def log_hyperparams(self, params):
        pass

    def log_metrics(self, metrics, step):
        self.rows.append((self.flavor, step, dict(metrics)))


def test_each_of_several_loggers_gets_all_metrics(make_run_config, tmp_path):
    run_config = make_run_config(
        "logger=[csv,wandb]", "logger.mode=offline", "+logger.mine._target_=test_loggers.UserLogger",
        "+logger.mine.flavor=sour", "trainer.max_steps=2",
    )  # fmt: skip
    train.check(run_config.config)
    folder = tmp_path / "runs" / run_config.id
    run_directories.write_run_config(tmp_path / "runs", run_config)
    train.run(folder)
    assert ("sour", 2) in [(flavor, step) for flavor, step, row in UserLogger.rows if "train/loss" in row]
    assert [step for step, _ in read_csv(folder)[0]["train/loss"]] == [2]
    assert list(folder.glob("wandb/offline-run-*-*/*.wandb"))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["logger=csv", "+logger.mine._target_=collections.OrderedDict"],
            r"mine._target_=.* is not a pytorch",
        ),
        (
            ["logger=csv", "+logger.mine._target_=test_loggers.UserLogger"],
            r"logger.mine: .*missing a required argument: 'flavor'",
        ),
        (
            ["logger=csv", "+logger._target_=test_loggers.UserLogger"],
            r"give a custom logger a name, as in \+log",
        ),
        (["logger=csv", "+logger.speed=3"], r"logger.speed=3 is not a logger"),
        (["logger=csv", "+logger.mode=offline"], r"^logger has no project: use 'logger=\[wandb,csv\]'"),
        (["logger=tensorboard"], r"pip install 'attnlab\[tensorboard\]'"),
        (["logger=mlflow"], r"pip install 'attnlab\[mlflow\]'"),
        (
            ["logger=wandb", "logger.workspace=true"],
            "logger.workspace=true needs a W&B server, but the mode is",
        ),
        (["logger=wandb", "logger.workspace=true", "logger.mode=online"], r"'attnlab\[workspace\]'"),
        (
            ["logger=wandb", "WANDB_MODE=onlin"],
            r"logger.mode must be .*, and WANDB_MODE=onlin replaces it: set",
        ),
    ],
)
def test_invalid_loggers_are_rejected_before_training(make_run_config, monkeypatch, overrides, expected):
    for module in (logger_group, wandb_logger):
        monkeypatch.setattr(module, "find_spec", lambda _: None)  # no extra is installed
    if overrides[-1].startswith("WANDB_MODE="):
        monkeypatch.setenv(*overrides.pop().split("="))
    with pytest.raises(ValueError, match=expected):
        train.check(make_run_config(*overrides).config)


def test_an_unknown_mode_is_rejected_where_a_config_is_composed():
    with pytest.raises(
        InvalidConfig, match=r"logger.mode must be online, offline, shared or disabled, got onlin"
    ):
        config_groups.validate_groups({"logger": {"mode": "onlin"}}, ["logger"])


def test_an_unwritable_log_costs_the_run_one_line(make_run_config, tmp_path, capfd):
    run_config = make_run_config("logger=csv", "trainer.max_steps=2")
    run_directories.write_run_config(tmp_path / "runs", run_config)
    folder = tmp_path / "runs" / run_config.id
    (folder / "csv").write_text("in its way")
    train.run(folder)
    assert run_directories.load_run_result(folder).is_done
    assert capfd.readouterr().err.startswith("CSVLogger stopped (")


def test_removing_a_run_removes_its_logs_and_keeps_foreign_files(tmp_path):
    run = tmp_path / "0123456789abcdef"
    folder = run / "tensorboard"
    own = [
        folder / "exam" / "gqa" / "seed=0" / name for name in ("events.out.tfevents.1.host", "hparams.yaml")
    ]
    for file in (*own, folder / "exam" / "notes.txt"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert ownership.remove_run(run) == ["tensorboard"]
    assert [path for path in run.rglob("*") if path.is_file()] == [folder / "exam" / "notes.txt"]


def test_names_become_safe_folder_names():
    assert to_folder_names("gqa rope/seed=0") == ["gqa rope", "seed=0"]
    assert to_folder_names("data.path=/etc/../x/seed=1") == ["data.path=_etc_.._x", "seed=1"]
    assert to_folder_names("../seed=0") == ["seed=0"]
    assert to_folder_names(None) == []
    assert Path(*to_folder_names("..\\..\\a/seed=0")).parts == ("_.._a", "seed=0")
