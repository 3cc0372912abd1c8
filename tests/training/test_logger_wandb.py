"""A run's W&B run, read back from its offline file, whatever W&B's server and service do."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import wait_until
from wandb_files import history, records, run_of, server, summary_of

from attnlab.store import runs
from attnlab.store.schema import RunSpec, Use
from attnlab.training import run as train
from attnlab.training.loggers import group, notes, stored, wandb

torch.set_num_threads(1)
TINY = ("trainer.max_steps=6", "measure.every=3", "trainer.log_every_n_steps=2", "logger=wandb")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No variable of W&B's but those that a test sets; its service ends with the test."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv(notes.COMMAND, "a-command")
    yield
    import wandb as client

    try:
        client.teardown()
    except Exception:  # its process may have been killed
        client.setup()


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


def files(folder):
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.rare
@pytest.mark.parametrize("kind", ["mute", "closed", "refusing"])
def test_a_server_that_cannot_be_had_costs_its_patience_once(compose, store, monkeypatch, capfd, kind):
    folders = [
        store(f"abcd0123abcd012{n}", compose(*TINY, "logger.mode=online", "logger.patience=3"))
        for n in (4, 5)
    ]
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    with server(kind) as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        train.run(folders[0])
        first = capfd.readouterr().err
        assert notes.offline_reason(folders[0].parent)
        train.run(folders[1])
    assert first.count("W&B went offline: ") == 1
    assert "W&B" not in capfd.readouterr().err, "the second run asked the server again"
    for folder in folders:
        record = json.loads((folder / "run.json").read_text())
        (file,) = files(folder)
        losses = [float(row["val/loss"]) for row in history(file) if "val/loss" in row]
        assert losses[-1] == pytest.approx(record["metrics"]["val/loss"])
        assert len(losses) == 2
        assert float(summary_of(file)["memory/kv_bytes_per_token_live"]) == 256
    notes.end_command(folders[0].parent)
    assert notes.offline_reason(folders[0].parent) == ""


def test_without_a_login_a_run_is_offline_and_says_so(compose, store, monkeypatch, capfd, tmp_path):
    folder = store("abcd0123abcd0124", compose(*TINY, "logger.mode=online", "logger.patience=3"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with server("closed") as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        train.run(folder)
    assert "W&B went offline: No API key configured" in capfd.readouterr().err
    assert files(folder)


def test_training_never_waits_for_wandb(compose, store, monkeypatch):
    folder, early = store("abcd0123abcd0126", compose("logger=wandb", "trainer.max_steps=2")), []

    def open_late(self, folder, root, **run):
        try:
            wait_until((folder / "run.json").exists)
        except AssertionError:
            early.append("the run waits for W&B")
        raise ConnectionError("no luck")

    monkeypatch.setattr(wandb.Wandb, "open", open_late)
    train.run(folder)
    assert early == []


@pytest.mark.rare
def test_a_killed_service_costs_a_line_and_the_run_is_logged_again(compose, store, monkeypatch, capfd):
    folder = store("abcd0123abcd0128", compose(*TINY))

    def kill(*given, **options):
        wait_until(lambda: "val/loss" in notes.read(folder, "wandb").get("last", {}))
        tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        for pid in " ".join(task.read_text() for task in tasks).split():
            if b"wandb-core" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
        return measure(*given, **options)

    measure = train.measure
    monkeypatch.setattr(train, "measure", kill)
    train.run(folder)
    said = capfd.readouterr().err
    assert runs.record(folder).done
    assert said.count("W&B gave up") == 1, said
    assert not notes.read(folder, "wandb").get("done")
    task = {"folders": [str(folder)], "logger": runs.spec(folder).config["logger"], "tags": {}}
    line = [sys.executable, "-m", "attnlab.training.loggers.stored", json.dumps(task)]
    own = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    subprocess.run(line, check=True, timeout=120, env=own)  # as a sweep starts it
    (file,) = files(folder)
    assert [int(row["trainer/global_step"]) for row in history(file) if "val/loss" in row] == [3, 6]
    assert "memory/kv_bytes_per_token_live" in summary_of(file)


def test_a_logger_added_after_training_logs_the_stored_results(compose, store):
    folder, group = store("abcd0123abcd0129", compose(*TINY[:-1])), compose("logger=wandb")["logger"]
    train.run(folder)
    assert not files(folder)
    stored.log(folder, group, "exam")
    (file,) = files(folder)
    rows = history(file)
    batch = compose()["data"]["batch_size"] * compose()["data"]["length"]
    assert [int(row["tokens"]) for row in rows if "train/loss" in row] == [2 * batch, 4 * batch, 6 * batch]
    assert any(key.startswith("attention/layer0") for row in rows for key in row)
    record = runs.record(folder)
    assert float(summary_of(file)["val/loss"]) == pytest.approx(record.metrics["val/loss"])
    stored.log(folder, group, "exam")
    assert files(folder) == [file], "what W&B has was logged again"


def test_the_tag_of_a_second_experiment_is_added_without_rows(compose, store):
    folder = store("abcd0123abcd012a", compose(*TINY))
    train.run(folder)
    for tag in ("second", "second", "third"):
        stored.log(folder, compose("logger=wandb")["logger"], tag)
    tags = {frozenset(run_of(file).tags): len(history(file)) for file in files(folder)}
    assert set(tags) == {
        frozenset({"exam", "mha"}),
        frozenset({"exam", "mha", "second"}),
        frozenset({"exam", "mha", "second", "third"}),
    }
    assert sorted(tags.values())[:2] == [0, 0]
    assert {run_of(file).run_id for file in files(folder)} == {folder.name}


@pytest.mark.parametrize(
    ("variables", "written", "found"),
    [
        ({}, [], ("attnlab", "", "exam")),
        ({"WANDB_PROJECT": "p", "WANDB_ENTITY": "e", "WANDB_RUN_GROUP": "g"}, [], ("p", "e", "g")),
        ({"WANDB_PROJECT": "p", "WANDB_ENTITY": "e"}, ["project=q", "entity=f"], ("q", "f", "exam")),
    ],
)
def test_variables_of_the_environment_win_over_defaults_and_not_over_what_is_written(
    compose, store, monkeypatch, variables, written, found
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = compose(*TINY, *[f"logger.{key}" for key in written])
    folder = store("abcd0123abcd012b", config)
    log = wandb.Wandb.of(config["logger"]).logger(
        folder, None, id=folder.name, group="exam", name="mha/seed=0"
    )
    log.end({}, 0)
    run = run_of(files(folder)[0])
    assert (run.project, run.entity, run.run_group) == found


def test_labels_of_the_environment_stand_beside_those_that_tell_runs_apart(tmp_path, monkeypatch):
    given = {
        "WANDB_NAME": "mine", "WANDB_TAGS": "x, y", "WANDB_NOTES": "why", "WANDB_RUN_ID": "one-for-all",
        "WANDB_RESUME": "must", "WANDB_DIR": str(tmp_path / "there"),
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "there").mkdir()
    folder = tmp_path / "runs" / "abcd0123abcd012c"
    folder.mkdir(parents=True)
    log = wandb.Wandb(**SETTINGS).logger(folder, None, id=folder.name, name="gqa/seed=0", tags=["exam"])
    log.end({}, 0)
    (file,) = (tmp_path / "there" / "wandb").glob("offline-run-*/*.wandb")
    run = run_of(file)
    assert (run.run_id, run.display_name, run.notes) == (folder.name, "mine gqa/seed=0", "why")
    assert set(run.tags) == {"exam", "x", "y"}
    assert notes.pending(folder) == [file.parent]
    assert (
        notes.sync_command(folder.parent, [file.parent]) == f"wandb sync {tmp_path}/there/wandb/offline-run-*"
    )


@pytest.mark.parametrize(
    ("written", "variables", "mode"),
    [
        ("dryrun", {}, "offline"), ("run", {}, "online"), ("shared", {}, "shared"),
        ("online", {"WANDB_MODE": "dryrun"}, "offline"), ("offline", {"WANDB_MODE": "run"}, "online"),
        ("online", {"WANDB_MODE": "disabled"}, "disabled"),
        ("disabled", {"WANDB_MODE": "online"}, "disabled"),
        ("online", {"WANDB_DISABLED": "true"}, "disabled"),
    ],
)  # fmt: skip
def test_modes_have_wandbs_names_and_the_environment_wins(monkeypatch, written, variables, mode):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wandb.Wandb(**SETTINGS | {"mode": written}).mode == mode


def test_a_run_that_goes_on_repeats_no_step(tmp_path):
    folder = tmp_path / "runs" / "abcd0123abcd012d"
    folder.mkdir(parents=True)
    for steps, code in ((range(1, 5), 1), (range(3, 7), 0)):
        log = wandb.Wandb(**SETTINGS).logger(folder, 10, id=folder.name, name="gqa/seed=0")
        for step in steps:
            log.log_metrics({"train/loss": 10.0 - step}, step=step)
        log.end({}, code)
        second = int(time.time())
        wait_until(lambda now=second: int(time.time()) > now)  # W&B names its folders by the second
    found = [[int(row["trainer/global_step"]) for row in history(file)] for file in files(folder)]
    assert found == [[1, 2, 3, 4], [5, 6]]
    assert {run_of(file).run_id for file in files(folder)} == {folder.name}


def test_a_run_that_fails_leaves_a_failed_run_in_wandb(compose, store, monkeypatch):
    folder = store("abcd0123abcd0127", compose("logger=wandb", "trainer.max_steps=2"))

    def stop(*_):
        raise KeyError("it broke")

    monkeypatch.setattr(train, "measure", stop)
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
        ({"mode": "onlin"}, "logger.mode must be online, offline, shared or disabled, got onlin"),
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


def test_an_online_run_is_opened_with_its_id_and_bounds(tmp_path, monkeypatch):
    import wandb as client

    folder, given = tmp_path / "runs" / "abcd0123abcd012e", {}
    real = client.init

    def init(**arguments):
        given.update(arguments)
        return real(**arguments | {"mode": "offline"})

    monkeypatch.setattr(client, "init", init)
    settings = SETTINGS | {"mode": "online", "patience": 7.0}
    run = wandb.Wandb(**settings).open(folder, folder.parent, id=folder.name, name="gqa/seed=0")
    run.finish()
    assert (given["mode"], given["id"], given["resume"]) == ("online", folder.name, "allow")
    assert (given["settings"].init_timeout, given["settings"].finish_timeout) == (7.0, 7.0)


def test_uploads_that_take_too_long_are_noted_and_the_command_goes_offline(tmp_path):
    folder = tmp_path / "runs" / "abcd0123abcd012f"

    def give_up(**_):
        raise TimeoutError

    for number in (1, 2):  # a run that went on from a checkpoint has two folders
        files_folder = folder / "wandb" / f"run-{number}-{folder.name}" / "files"
        files_folder.mkdir(parents=True)
        settings = SimpleNamespace(finish_timeout=2.0)
        run = SimpleNamespace(dir=str(files_folder), offline=False, settings=settings, finish=give_up)
        wandb.finish(run, 0, folder)
    assert sorted(path.name for path in notes.pending(folder)) == [
        f"run-{number}-{folder.name}" for number in (1, 2)
    ]
    assert "took longer than 2 s" in notes.offline_reason(folder.parent)


def test_incomplete_keys_of_wandb_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^logger has no project: use 'logger=\[wandb,csv\]'"):
        group.validate({"mode": "offline"})
