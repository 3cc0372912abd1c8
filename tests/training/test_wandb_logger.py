"""W&B runs, read back from their offline files, with a working or faulty server and service."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import wait_until
from wandb_files import read_history, read_records, read_run, read_summary, start_faulty_server

from attnlab.measure.measurement import MeasurementResult
from attnlab.store import run_directories
from attnlab.store.run_schema import Use
from attnlab.training import run as train
from attnlab.training.loggers import finished_runs, logger_group, logger_notes, wandb_logger

torch.set_num_threads(1)
TINY = ("trainer.max_steps=6", "measure.every=3", "trainer.log_every_n_steps=2", "logger=wandb")


@pytest.fixture(autouse=True)
def clean_wandb_environment(monkeypatch):
    """Remove all W&B variables except those that a test sets; stop its service after the test."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv(logger_notes.COMMAND_VARIABLE, "a-command")
    yield
    import wandb as client

    try:
        client.teardown()
    except Exception:  # its process may have been killed
        client.setup()


def test_an_offline_run_holds_losses_memory_config_and_images(compose, make_run_dir, capfd):
    config = compose(*TINY, "logger.patience=60")  # its import takes long where many do
    folder = make_run_dir("abcd0123abcd0123", config)
    use = Use(experiment="exam", arm="gqa", axes={"heads": "gqa", "size": "debug"}, commit="c0ffee")
    spec = run_directories.load_run_config(folder).with_changes(use=use)
    run_directories.write_run_config(folder.parent, spec)
    train.run(folder)
    assert "W&B" not in capfd.readouterr().err  # else it says why something is missing below
    (file,) = list_wandb_files(folder)
    run = read_run(file)
    assert (run.run_id, run.run_group, run.job_type) == (folder.name, "exam", "gqa")
    assert {"exam", "gqa"} <= set(run.tags)
    logged_config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert logged_config["model"]["dim"] == config["model"]["dim"]
    expected = {"arm": "gqa", "experiment": "exam", "size": "debug", "axes": use.axes, "commit": "c0ffee"}
    assert expected | {"versions": spec.identity["versions"]} == {
        key: logged_config[key] for key in (*expected, "versions")
    }
    assert ("*", "tokens") in list_axes(file)
    rows = read_history(file)
    batch = config["data"]["batch_size"] * config["data"]["length"]
    for name, steps in {
        "val/loss": [3, 6],
        "train/loss": [2, 4, 6],
        "attention/layer1": [0, 2, 4, 6],
    }.items():
        assert list_tokens(rows, name) == [step * batch for step in steps]
    losses = [float(row["val/loss"]) for row in rows if "val/loss" in row]
    assert all(0 < loss < 10 for loss in losses)
    assert list(folder.glob("wandb/offline-run-*/files/media/images/attention/*.png"))
    summary = read_summary(file)
    assert float(summary["memory/kv_bytes_per_token_live"]) == 256
    result = run_directories.load_run_result(folder)
    assert float(summary["memory/peak_rss_bytes"]) == result.memory["peak_rss_bytes"] > 0
    assert float(summary["val/loss"]) == losses[-1]


def list_tokens(rows, name):
    """Return the tokens of the rows with a metric, or with the pictures of a layer."""
    return [int(row["tokens"]) for row in rows if any(key.split(".")[0] == name for key in row)]


def list_axes(file):
    axes = [record.metric for record in read_records(file) if record.WhichOneof("record_type") == "metric"]
    return {(axis.glob_name, axis.step_metric) for axis in axes}


def list_wandb_files(folder):
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.rare
@pytest.mark.parametrize("kind", ["mute", "closed", "refusing", "without a login"])
def test_an_unreachable_server_costs_its_timeout_once(
    compose, make_run_dir, monkeypatch, capfd, tmp_path, kind
):
    folders = [
        make_run_dir(f"abcd0123abcd012{n}", compose(*TINY, "logger.mode=online", "logger.patience=3"))
        for n in (4, 5)
    ]
    if kind == "without a login":
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    else:
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    with start_faulty_server("closed" if kind == "without a login" else kind) as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        train.run(folders[0])
        first = capfd.readouterr().err
        assert logger_notes.read_offline_reason(folders[0].parent)
        train.run(folders[1])
    assert first.count("W&B went offline: ") == 1
    assert ("No API key configured" in first) == (kind == "without a login")
    assert "W&B" not in capfd.readouterr().err, "the second run asked the server again"
    for folder in folders:
        result = run_directories.load_run_result(folder)
        (file,) = list_wandb_files(folder)
        losses = [float(row["val/loss"]) for row in read_history(file) if "val/loss" in row]
        assert losses[-1] == pytest.approx(result.metrics["val/loss"])
        assert len(losses) == 2
        assert float(read_summary(file)["memory/kv_bytes_per_token_live"]) == 256
    logger_notes.clear_offline(folders[0].parent)
    assert logger_notes.read_offline_reason(folders[0].parent) == ""


def test_training_does_not_wait_for_wandb(compose, make_run_dir, monkeypatch):
    folder, early = make_run_dir("abcd0123abcd0126", compose("logger=wandb", "trainer.max_steps=2")), []

    def open_late(self, folder, root, **run):
        try:
            wait_until((folder / "run.json").exists)
        except AssertionError:
            early.append("the run waits for W&B")
        raise ConnectionError("no luck")

    monkeypatch.setattr(wandb_logger.WandbSettings, "open_run", open_late)
    train.run(folder)
    assert early == []


@pytest.mark.rare
def test_after_a_killed_service_the_run_is_logged_again(compose, make_run_dir, monkeypatch, capfd):
    folder = make_run_dir("abcd0123abcd0128", compose(*TINY))

    def kill(*given, **options):
        wait_until(lambda: "val/loss" in logger_notes.read_note(folder, "wandb").get("last", {}))
        tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        for pid in " ".join(task.read_text() for task in tasks).split():
            if b"wandb-core" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
        return measure(*given, **options)

    measure = train.measure_final_metrics
    monkeypatch.setattr(train, "measure_final_metrics", kill)
    train.run(folder)
    error = capfd.readouterr().err
    assert run_directories.load_run_result(folder).is_done
    assert error.count("W&B stopped") == 1, error
    assert not logger_notes.read_note(folder, "wandb").get("done")
    task = {
        "folders": [str(folder)],
        "logger": run_directories.load_run_config(folder).config["logger"],
        "tags": {},
    }
    line = [sys.executable, "-m", "attnlab.training.loggers.finished_runs", json.dumps(task)]
    own = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    subprocess.run(line, check=True, timeout=120, env=own)  # as a sweep starts it
    (file,) = list_wandb_files(folder)
    assert [int(row["trainer/global_step"]) for row in read_history(file) if "val/loss" in row] == [3, 6]
    assert "memory/kv_bytes_per_token_live" in read_summary(file)


def test_a_logger_added_after_training_logs_the_stored_results(compose, make_run_dir):
    folder, group = make_run_dir("abcd0123abcd0129", compose(*TINY[:-1])), compose("logger=wandb")["logger"]
    train.run(folder)
    assert not (folder / "wandb").exists()
    finished_runs.log_finished_run(folder, group, "exam")
    (file,) = list_wandb_files(folder)
    rows = read_history(file)
    batch = compose()["data"]["batch_size"] * compose()["data"]["length"]
    assert list_tokens(rows, "train/loss") == [2 * batch, 4 * batch, 6 * batch]
    assert list_tokens(rows, "attention/layer0") == [0, 2 * batch, 4 * batch, 6 * batch]
    result = run_directories.load_run_result(folder)
    assert float(read_summary(file)["val/loss"]) == pytest.approx(result.metrics["val/loss"])
    finished_runs.log_finished_run(folder, group, "exam")
    assert list_wandb_files(folder) == [file], "what W&B has was logged again"
    for tag in ("second", "second", "third"):
        finished_runs.log_finished_run(folder, group, tag)
    assert {read_run(later).run_id for later in list_wandb_files(folder)} == {folder.name}
    rows_by_tags = {
        frozenset(read_run(later).tags): len(read_history(later)) for later in list_wandb_files(folder)
    }
    tags = frozenset({"exam", "mha"})
    assert rows_by_tags == {tags: len(rows), tags | {"second"}: 0, tags | {"second", "third"}: 0}


@pytest.mark.parametrize("path", ["while it runs", "from its files"])
def test_series_of_a_measurement_run_have_an_axis_of_their_own(compose, make_run_dir, path):
    measurement = "measurement={_target_: test_wandb_logger.SeriesMeasurement}"
    group = compose("logger=wandb")["logger"]
    live = path == "while it runs"
    folder = make_run_dir("abcd0123abcd012f", compose(measurement, "logger=wandb" if live else "logger=none"))
    train.run(folder)
    finished_runs.log_finished_run(folder, group, "exam")
    (file,) = list_wandb_files(folder)
    rows = read_history(file)
    series = {int(row["trainer/global_step"]): float(row["growth"]) for row in rows if "growth" in row}
    assert series == {64: 2.0, 128: 4.0}
    assert not any("tokens" in row for row in rows)
    assert ("*", "trainer/global_step") in list_axes(file)


class SeriesMeasurement:
    """A measurement with a series."""

    def __call__(self, module, data, device):
        return MeasurementResult({"slope": 2.0}, series={"growth": {64: 2.0, 128: 4.0}})


@pytest.mark.parametrize(
    ("variables", "configured", "expected"),
    [
        ({}, [], ("attnlab", "", "exam")),
        ({"WANDB_PROJECT": "p", "WANDB_ENTITY": "e", "WANDB_RUN_GROUP": "g"}, [], ("p", "e", "g")),
        ({"WANDB_PROJECT": "p", "WANDB_ENTITY": "e"}, ["project=q", "entity=f"], ("q", "f", "exam")),
    ],
)
def test_environment_variables_override_defaults_but_not_config_keys(
    compose, make_run_dir, monkeypatch, variables, configured, expected
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = compose(*TINY, *[f"logger.{key}" for key in configured])
    folder = make_run_dir("abcd0123abcd012b", config)
    labels = {"id": folder.name, "group": "exam", "name": "mha/seed=0"}
    settings = wandb_logger.WandbSettings.from_group(config["logger"])
    logger_group.open_wandb_logger(settings, folder, None, labels).close({}, 0)
    run = read_run(list_wandb_files(folder)[0])
    assert (run.project, run.entity, run.run_group) == expected


def test_environment_labels_are_added_to_those_of_the_run(tmp_path, monkeypatch):
    variables = {
        "WANDB_NAME": "mine", "WANDB_TAGS": "x, y", "WANDB_NOTES": "why", "WANDB_RUN_ID": "one-for-all",
        "WANDB_RESUME": "must", "WANDB_DIR": str(tmp_path / "there"),
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "there").mkdir()
    folder = tmp_path / "runs" / "abcd0123abcd012c"
    folder.mkdir(parents=True)
    labels = {"id": folder.name, "name": "gqa/seed=0", "tags": ["exam"]}
    settings = wandb_logger.WandbSettings(**SETTINGS)
    logger_group.open_wandb_logger(settings, folder, None, labels).close({}, 0)
    (file,) = (tmp_path / "there" / "wandb").glob("offline-run-*/*.wandb")
    run = read_run(file)
    assert (run.run_id, run.display_name, run.notes) == (folder.name, "mine gqa/seed=0", "why")
    assert set(run.tags) == {"exam", "x", "y"}
    assert logger_notes.find_pending_uploads(folder) == [file.parent]
    assert (
        logger_notes.format_sync_command(folder.parent, [file.parent])
        == f"wandb sync {tmp_path}/there/wandb/offline-run-*"
    )


@pytest.mark.parametrize(
    ("configured", "variables", "mode"),
    [
        ("dryrun", {}, "offline"), ("run", {}, "online"), ("shared", {}, "shared"),
        ("online", {"WANDB_MODE": "dryrun"}, "offline"), ("offline", {"WANDB_MODE": "run"}, "online"),
        ("online", {"WANDB_MODE": "disabled"}, "disabled"),
        ("disabled", {"WANDB_MODE": "online"}, "disabled"),
        ("online", {"WANDB_DISABLED": "true"}, "disabled"),
    ],
)  # fmt: skip
def test_the_environment_overrides_the_mode(monkeypatch, configured, variables, mode):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wandb_logger.WandbSettings.from_group(SETTINGS | {"mode": configured}).mode == mode


def test_a_failed_run_is_failed_in_wandb(compose, make_run_dir, monkeypatch):
    folder = make_run_dir("abcd0123abcd0127", compose("logger=wandb", "trainer.max_steps=2"))

    def stop(*_):
        raise KeyError("it broke")

    monkeypatch.setattr(train, "measure_final_metrics", stop)
    with pytest.raises(KeyError):
        train.run(folder)
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    assert [record.exit.exit_code for record in read_records(file) if record.HasField("exit")] == [1]


SETTINGS = {
    "mode": "offline",
    "project": "p",
    "entity": None,
    "report": False,
    "workspace": False,
    "patience": 2,
}


def test_an_online_run_is_opened_with_its_id_and_timeouts(tmp_path, monkeypatch):
    import wandb as client

    folder, init_arguments = tmp_path / "runs" / "abcd0123abcd012e", {}
    real = client.init

    def init(**arguments):
        init_arguments.update(arguments)
        return real(**arguments | {"mode": "offline"})

    monkeypatch.setattr(client, "init", init)
    settings = SETTINGS | {"mode": "online", "patience": 7.0}
    run = wandb_logger.WandbSettings(**settings).open_run(
        folder, folder.parent, id=folder.name, name="gqa/seed=0"
    )
    run.finish()
    assert (init_arguments["mode"], init_arguments["id"], init_arguments["resume"]) == (
        "online",
        folder.name,
        "allow",
    )
    assert (init_arguments["settings"].init_timeout, init_arguments["settings"].finish_timeout) == (7.0, 7.0)


def test_slow_uploads_are_recorded_and_the_command_goes_offline(tmp_path):
    folder = tmp_path / "runs" / "abcd0123abcd012f"

    def give_up(**_):
        raise TimeoutError

    for number in (1, 2):  # a run that went on from a checkpoint has two folders
        files_folder = folder / "wandb" / f"run-{number}-{folder.name}" / "files"
        files_folder.mkdir(parents=True)
        settings = SimpleNamespace(finish_timeout=2.0)
        run = SimpleNamespace(dir=str(files_folder), offline=False, settings=settings, finish=give_up)
        wandb_logger.finish_run(run, 0, folder)
    assert sorted(path.name for path in logger_notes.find_pending_uploads(folder)) == [
        f"run-{number}-{folder.name}" for number in (1, 2)
    ]
    assert "took longer than 2 s" in logger_notes.read_offline_reason(folder.parent)


@pytest.mark.parametrize("content", ["[1]", '{"wandb": 3}', '{"wandb": [1]}'])
def test_invalid_note_counts_as_empty(tmp_path, content):
    (tmp_path / logger_notes.NOTE_FILE).write_text(content)
    assert logger_notes.find_pending_uploads(tmp_path) == []
    logger_notes.update_note(tmp_path, "wandb", done=True)
    assert logger_notes.read_note(tmp_path, "wandb") == {"done": True}
