"""A sweep and W&B's server: a bad one delays it once, and the printed command uploads what stayed on disk."""

import subprocess
import sys
from pathlib import Path

import pytest
from wandb_files import history, server

from attnlab.training.loggers import notes

SWEEP = ("+experiment=heads", "arms=[two,one]", "seeds=[0,1]", "claims=[]", "sweep.train=logging_trainer")
LOSSES = [n / 10 for n in range(20)]


def line(**settings):
    given = {"mode": "online", "project": "toys", "entity": None, "report": False, "workspace": False}
    given = {**given, "patience": 6, **settings}
    return [f"++logger.{key}={'null' if value is None else value}" for key, value in given.items()]


def give_printed(command, folder):
    """Runs the printed command in a shell, from the working directory, without an upload."""
    path = f"export PATH={Path(sys.executable).parent}:$PATH; "
    dry = command.replace("wandb sync", "wandb sync --dry-run")
    done = subprocess.run(path + dry, shell=True, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def losses(folder):
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    return [float(row["val/loss"]) for row in history(file) if "val/loss" in row]


@pytest.mark.rare
def test_the_closing_line_uploads_every_run_of_the_sweep(attnlab):
    status, out, err = attnlab(*SWEEP, *line(mode="offline"))
    assert status == 0, err
    (last,) = [one for one in out.splitlines() if one.startswith("W&B: ")]
    told, _, command = last.partition("; upload with: ")
    assert told == "W&B: 5 runs on disk only"  # one is the report's
    assert command == "wandb sync runs/*/wandb/offline-run-*"
    assert "Would sync 5 run(s)" in give_printed(command, attnlab.folder)
    folders = [path.parent for path in attnlab.folder.glob("runs/*/run.json")]
    assert len(folders) == 4
    assert all(losses(folder) == LOSSES for folder in folders)


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("kind", ["mute", "closed", "refusing"])
def test_a_bad_server_delays_a_sweep_once_and_everything_can_be_uploaded(attnlab, kind):
    attnlab.environment |= {"WANDB_API_KEY": "x" * 40}
    with server(kind) as url:
        attnlab.environment["WANDB_BASE_URL"] = url
        process = attnlab.start(*SWEEP, "sweep.slots=1", *line())
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    logs = [path.read_text() for path in attnlab.folder.glob("runs/*/log.txt")]
    assert sum("W&B went offline: " in log for log in logs) == 1, logs
    (last,) = [one for one in out.splitlines() if one.startswith("W&B: ")]
    told, _, command = last.partition("; upload with: ")
    assert told.startswith("W&B: 5 runs on disk only (")
    assert "Would sync 5 run(s)" in give_printed(command, attnlab.folder)
    for record in attnlab.folder.glob("runs/*/run.json"):
        assert losses(record.parent) == LOSSES
    assert not list(attnlab.folder.glob("runs/wandb/*.offline"))


def test_a_run_whose_upload_did_not_end_is_named_with_the_offline_ones(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    root, late = Path("runs"), Path("runs/aa/wandb/run-20260101_000000-aa").absolute()
    for folder in (late, Path("runs/bb/wandb/offline-run-20260101_000000-bb")):
        folder.mkdir(parents=True)
        (folder / f"run-{folder.name[-2:]}.wandb").touch()
    notes.update(root / "aa", "wandb", upload=[str(late)])
    said = notes.closing_line(root, ["aa", "bb", "cc"])
    command = f"wandb sync --include-online runs/*/wandb/offline-run-* {late}"
    assert said == f"W&B: 2 runs on disk only; upload with: {command}"
    assert "Would sync 2 run(s)" in give_printed(command, tmp_path)
    for folder in (late, Path("runs/bb/wandb/offline-run-20260101_000000-bb")):
        (folder / "run.wandb.synced").touch()
    assert notes.closing_line(root, ["aa", "bb", "cc"]) == ""
