"""What loggers beside W&B leave, read back from their files: the same numbers, names and config in each."""

import csv
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml
from pytorch_lightning.loggers.logger import Logger

from attnlab.store import runs
from attnlab.store.guards import marks
from attnlab.store.schema import RunSpec, Use
from attnlab.training import run as train
from attnlab.training.loggers import background, group
from attnlab.training.loggers.labels import folders, labels

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's and TensorBoard's own: a log would end with them
BATCH = 30


def read_csv(folder):
    scalars, files = {}, sorted(folder.glob("csv/version_*/metrics.csv"))
    for file in files:  # a run that goes on has a version for each time
        for row in csv.DictReader(file.open(newline="")):
            for name, value in row.items():
                if value and name != "step":
                    scalars.setdefault(name, []).append((int(row["step"]), float(value)))
    return scalars, yaml.safe_load((files[-1].parent / "hparams.yaml").read_text()), None


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = {file.parent for file in folder.glob("tensorboard/**/events.out.*")}
    found = EventAccumulator(str(events), {"scalars": 0, "images": 0}).Reload()
    tags = found.Tags()
    scalars = {  # the last step's are in the table of hyper-parameters too
        name: [*dict.fromkeys((one.step, one.value) for one in found.Scalars(name))]
        for name in tags["scalars"]
    }
    images = {(name, one.step) for name in tags["images"] for one in found.Images(name)}
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


def installed(name, package):
    return pytest.param(name, marks=pytest.mark.skipif(not find_spec(package), reason=f"no {package} here"))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Their imports take long where many do."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow sets it where it has been used
    monkeypatch.setattr(background, "DISK_SECONDS", 300.0)


READ = {"csv": read_csv, "tensorboard": read_tensorboard, "mlflow": read_mlflow}
LOGGERS = ["csv", installed("tensorboard", "tensorboard"), installed("mlflow", "mlflow")]


@pytest.fixture
def spec(compose):
    """`spec(overrides)`: a run's spec; its folder is in no store yet."""

    def make(*overrides):
        small = ("trainer.max_steps=6", "measure.every=3", "trainer.log_every_n_steps=2", "measure.maps=2")
        use = Use(
            experiment="exam",
            arm="gqa",
            axes={"data": "text", "data/tokenizer": "char", "heads": "gqa", "size": "debug"},
            commit="c0ffee",
        )
        return RunSpec(
            id="abcd0123abcd0123",
            config=compose(*small, *overrides),
            identity={"config": {"model": {"dim": 16}}, "versions": {"torch": "2.13"}},
            use=use,
        )

    return make


@pytest.mark.rare(sample=2)
@pytest.mark.parametrize("name", LOGGERS)
def test_a_run_leaves_its_numbers_and_its_config(spec, name, tmp_path, capfd):
    made = spec(f"logger=[{name},none]")
    runs.write_spec(tmp_path / "runs", made)
    folder = tmp_path / "runs" / made.id
    train.run(folder)
    assert "the run's records are on disk" not in capfd.readouterr().err
    scalars, told, images = READ[name](folder)
    batch = made.config["data"]["batch_size"] * made.config["data"]["length"]
    assert [step for step, _ in scalars["train/loss"]] == [2, 4, 6]
    assert [step for step, _ in scalars["val/loss"]] == [3, 6]
    assert {(step, tokens) for step, tokens in scalars["tokens"]} == {(n, n * batch) for n in (2, 3, 4, 6)}
    record = runs.record(folder)
    assert scalars["val/loss"][-1][1] == pytest.approx(record.metrics["val/loss"], rel=1e-5)
    assert scalars["memory/kv_bytes_per_token_live"] == [(6, 256)]
    assert told["name"] == labels(made)["name"] == "gqa/seed=0"
    assert (told["arm"], told["experiment"], told["size"]) == ("gqa", "exam", "debug")
    assert told["commit"] == "c0ffee"
    assert images is None or images == {(f"attention/layer{n}", step) for n in (0, 1) for step in (0, 6)}
    assert not (folder / "wandb").exists()


@pytest.mark.parametrize("name", LOGGERS)
def test_a_run_that_goes_on_writes_no_point_twice(spec, name, tmp_path):
    folder, made = tmp_path / "runs" / "abcd0123abcd0123", spec(f"logger={name}")
    made = made.but(estimate=made.estimate.model_copy(update={"batch_tokens": BATCH}))
    folder.mkdir(parents=True)
    picture = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for steps, code in ((range(1, 5), 1), (range(3, 7), 0), (range(5, 7), 0)):
        (logger,) = group.open_loggers(made.config["logger"], made, folder)
        for step in steps:
            logger.log_metrics({"train/loss": 10.0 - step}, step=step)
            logger.log_metrics({"val/loss": 20.0 - step}, step=step) if step % 3 == 0 else None
            logger.log_image("attention/layer0", [picture], step=step, caption=[""])
        logger.end({} if code else {"memory/peak": 7.0}, code)
    scalars, _, images = READ[name](folder)
    assert scalars["train/loss"] == [(step, 10.0 - step) for step in range(1, 7)]
    assert scalars["val/loss"] == [(step, 20.0 - step) for step in (3, 6)]
    assert scalars["memory/peak"] == [(6, 7.0)]
    assert images is None or images == {("attention/layer0", step) for step in range(1, 7)}


def test_several_loggers_are_a_list_and_each_has_all(spec, tmp_path):
    made = spec("logger=[csv,wandb]", "logger.mode=offline")
    assert {"csv", "mode", "project"} <= made.config["logger"].keys()
    opened = group.open_loggers(made.config["logger"], made, tmp_path)
    assert len(opened) == 2
    for logger in opened:
        logger.log_metrics({"train/loss": 1.0}, step=1)
        logger.end({}, 0)
    assert read_csv(tmp_path)[0]["train/loss"] == [(1, 1.0)]
    assert list(tmp_path.glob("wandb/offline-run-*-abcd0123abcd0123/*.wandb"))


class Mine(Logger):
    """A logger of a user's own, which keeps what it gets."""

    kept: ClassVar[list] = []

    def __init__(self, flavor):
        super().__init__()
        self.flavor = flavor

    name, version = "mine", None

    def log_hyperparams(self, params):
        pass

    def log_metrics(self, metrics, step):
        self.kept.append((self.flavor, step, dict(metrics)))


def test_a_logger_of_a_users_own_gets_the_rows(spec, tmp_path):
    made = spec("+logger.mine._target_=test_loggers.Mine", "+logger.mine.flavor=sour", "trainer.max_steps=2")
    train.check(made.config)
    runs.write_spec(tmp_path / "runs", made)
    train.run(tmp_path / "runs" / made.id)
    assert ("sour", 2) in [(flavor, step) for flavor, step, row in Mine.kept if "train/loss" in row]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["+logger.mine._target_=collections.OrderedDict"], r"mine._target_=.* is no pytorch_lightning"),
        (
            ["+logger.mine._target_=test_loggers.Mine"],
            r"logger.mine: .*missing a required argument: 'flavor'",
        ),
        (["+logger._target_=test_loggers.Mine"], r"give a logger of your own a name, as in \+logger.mine"),
        (["+logger.speed=3"], r"logger.speed=3 is no logger"),
    ],
)
def test_what_is_no_logger_is_refused_before_training(spec, overrides, told):
    with pytest.raises(ValueError, match=told):
        train.check(spec("logger=csv", *overrides).config)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_one_that_is_not_installed_is_refused_before_training_and_names_its_extra(spec, name, monkeypatch):
    monkeypatch.setattr(group, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=rf"pip install 'attnlab\[{name}\]'"):
        train.check(spec(f"logger={name}").config)


def test_a_log_that_cannot_be_written_costs_the_run_a_line(spec, tmp_path, capfd):
    made = spec("logger=csv", "trainer.max_steps=2")
    runs.write_spec(tmp_path / "runs", made)
    folder = tmp_path / "runs" / made.id
    (folder / "csv").write_text("in its way")
    train.run(folder)
    assert runs.record(folder).done
    assert capfd.readouterr().err.startswith("CSVLogger gave up (")


def test_removing_a_run_removes_its_logs_and_leaves_what_is_somebody_elses(tmp_path):
    run = tmp_path / "0123456789abcdef"
    folder = run / "tensorboard"
    own = [
        folder / "exam" / "gqa" / "seed=0" / name for name in ("events.out.tfevents.1.host", "hparams.yaml")
    ]
    for file in (*own, folder / "exam" / "notes.txt"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert marks.remove(run) == ["tensorboard"]
    assert [path for path in run.rglob("*") if path.is_file()] == [folder / "exam" / "notes.txt"]


def test_a_name_is_folders_wherever_it_points():
    assert folders("gqa rope/seed=0") == ["gqa rope", "seed=0"]
    assert folders("data.path=/etc/../x/seed=1") == ["data.path=_etc_.._x", "seed=1"]
    assert folders("../seed=0") == ["seed=0"]
    assert folders(None) == []
    assert Path(*folders("..\\..\\a/seed=0")).parts == ("_.._a", "seed=0")
