"""What a run leaves for W&B, read back through wandb's own message classes from the offline file."""

import json

import pytest
import torch
from processes import wait_until
from wandb_files import history, records, summary_of
from wandb_server import Server

from attnlab.store import runs
from attnlab.store.schema import RunSpec, Use
from attnlab.sweep.execute.pool import WORKER
from attnlab.sweep.execute.process import enter
from attnlab.sweep.execute.slots import Slot
from attnlab.sweep.plan.checks import warm
from attnlab.training import run as train
from attnlab.training.loggers import mirror, wandb

torch.set_num_threads(1)


def test_an_offline_run_holds_losses_memory_config_and_images(compose, store, capfd):
    small = ("trainer.max_steps=6", "measure.every=3", "trainer.log_every_n_steps=2")
    config = compose("logger=wandb", "logger.patience=60", *small)  # its import takes long where many do
    folder = store("abcd0123abcd0123", config)
    use = Use(experiment="exam", arm="gqa", axes={"heads": "gqa", "size": "debug"}, commit="c0ffee")
    identity = {"config": {"model": {"dim": 16}}, "versions": {"torch": "2.13"}}
    spec = RunSpec(id=folder.name, config=config, identity=identity, use=use)
    runs.write_spec(folder.parent, spec)
    train.run(folder)
    assert "W&B" not in capfd.readouterr().err  # else it says why something is missing below
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    found = list(records(file))
    (run,) = [record.run for record in found if record.WhichOneof("record_type") == "run"][:1]
    assert (run.run_id, run.run_group, run.job_type) == ("abcd0123abcd0123", "exam", "gqa")
    assert {"exam", "gqa"} <= set(run.tags)
    told = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert told["model"] == {"dim": 16}
    assert told["axes"] == {"heads": "gqa", "size": "debug"}
    assert (told["arm"], told["experiment"], told["size"]) == ("gqa", "exam", "debug")
    assert (told["commit"], told["versions"]) == ("c0ffee", {"torch": "2.13"})
    axes = [record.metric for record in found if record.WhichOneof("record_type") == "metric"]
    assert {(axis.glob_name, axis.step_metric) for axis in axes} >= {("*", "tokens")}
    rows = history(file)
    batch = config["data"]["batch_size"] * config["data"]["length"]
    seen = [int(row["tokens"]) for row in rows if "val/loss" in row]
    assert seen == [3 * batch, 6 * batch]
    seen = [int(row["tokens"]) for row in rows if "train/loss" in row]
    assert seen == [2 * batch, 4 * batch, 6 * batch]
    losses = [float(row["val/loss"]) for row in rows if "val/loss" in row]
    assert len(losses) == 2
    assert all(0 < loss < 10 for loss in losses)
    assert any("train/loss" in row for row in rows)
    images = {key for row in rows for key in row if key.startswith("attention/layer")}
    assert {key.split(".")[0] for key in images} == {"attention/layer0", "attention/layer1"}
    assert list(folder.glob("wandb/offline-run-*/files/media/images/attention/*.png"))
    summary = summary_of(file)
    assert float(summary["memory/kv_bytes_per_token_live"]) == 256
    assert float(summary["val/loss"]) == losses[-1]


@pytest.fixture
def worker(compose, store):
    """`worker(url)`: a run's worker whose mirror would be at `url`; its folder and its process."""

    def start(url):
        small = ["trainer.max_steps=6", "measure.every=3", "logger=wandb", "logger.mode=online"]
        folder = store("abcd0123abcd0124", compose(*small, "logger.patience=2"))
        slot = Slot(0, None, 1)
        settings = {"WANDB_BASE_URL": url, "WANDB_API_KEY": "x" * 40, "WANDB_SERVICE": ""}
        child = warm("attnlab.training.run", 1, ["wandb", "pandas"]).Process(
            target=enter,
            args=(WORKER, [str(folder)], folder / "log.txt", {**slot.environment(), **settings}),
        )
        child.start()
        return folder, child

    return start


def test_a_run_asks_no_server_for_anything_and_notes_what_is_to_be_sent(worker):
    with Server() as server:
        folder, process = worker(server.url)
        process.join(60)
        assert process.exitcode == 0
    assert (server.operations, server.runs, server.rows) == ([], [], {})
    assert "W&B " not in (folder / "log.txt").read_text()
    said = (folder / "wandb" / "unsent.txt").read_text()
    assert said.startswith("W&B has not been sent all of this run yet. It is on disk")
    assert said.endswith(f"send it: wandb sync {folder}/wandb/*run-*\n")
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    record = json.loads((folder / "run.json").read_text())
    losses = [float(row["val/loss"]) for row in history(file) if "val/loss" in row]
    assert len(losses) == 2
    assert losses[-1] == pytest.approx(record["metrics"]["val/loss"])
    assert float(summary_of(file)["memory/kv_bytes_per_token_live"]) == 256


def test_training_never_waits_for_its_mirror(compose, store, monkeypatch):
    folder, early = store("abcd0123abcd0126", compose("logger=wandb", "trainer.max_steps=2")), []

    def open_late(self, folder, **run):
        try:
            wait_until((folder / "run.json").exists)
        except AssertionError:
            early.append("the run waits for its mirror")
        raise ConnectionError("no luck")

    monkeypatch.setattr(wandb.Wandb, "open", open_late)
    train.run(folder)
    assert early == []


def test_a_run_that_fails_leaves_a_failed_run_in_its_mirror(compose, store, monkeypatch):
    folder = store("abcd0123abcd0127", compose("logger=wandb", "trainer.max_steps=2"))

    def stop(*_):
        raise KeyError("it broke")

    monkeypatch.setattr(train, "measure", stop)
    monkeypatch.setattr(mirror, "LEAVING_SECONDS", 60.0)  # two steps may be sooner than W&B's import
    with pytest.raises(KeyError):
        train.run(folder)
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    assert [record.exit.exit_code for record in records(file) if record.HasField("exit")] == [1]


SETTINGS = {
    "mode": "offline",
    "project": "p",
    "entity": None,
    "report": False,
    "workspace": False,
    "patience": 2,
}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mode": "onlin"}, "logger.mode must be offline, online or disabled, got onlin"),
        ({"patience": 0}, "logger.patience must be more than 0 seconds"),
        ({"workspace": True}, "logger.workspace=true needs a W&B server, and the mode is offline"),
    ],
)
def test_settings_that_cannot_hold_are_refused_before_training(compose, settings, told):
    with pytest.raises(ValueError, match=told):
        wandb.Wandb(**SETTINGS | settings)
    config = compose("logger=wandb")
    with pytest.raises(ValueError, match=told):
        train.check(config | {"logger": config["logger"] | settings})


def test_a_mode_that_the_environment_sets_is_refused_by_its_name(compose, monkeypatch):
    config = compose("logger=wandb")
    monkeypatch.setenv("WANDB_MODE", "onlin")
    with pytest.raises(
        ValueError, match=r"logger.mode must be .*, and WANDB_MODE=onlin replaces it: set WANDB"
    ):
        train.check(config)


def test_a_workspace_report_without_its_package_is_refused_before_training(monkeypatch):
    monkeypatch.setattr(wandb, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'attnlab\[workspace\]'"):
        wandb.Wandb(**SETTINGS | {"mode": "online", "workspace": True})


def test_no_logger_leaves_no_folder(compose, store):
    folder = store("abcd0123abcd0125", compose("trainer.max_steps=2"))
    train.run(folder)
    assert not (folder / "wandb").exists()
