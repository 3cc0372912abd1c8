"""A sweep with a faulty W&B server, and the printed command that uploads the runs left on disk."""

import subprocess
import sys
from pathlib import Path

import pytest
from wandb_files import read_history, start_faulty_server

from attnlab.training.loggers import logger_notes

SWEEP = ("+experiment=heads", "arms=[two,one]", "seeds=[0,1]", "claims=[]", "sweep.train=logging_trainer")
LOSSES = [n / 10 for n in range(20)]


def format_logger_overrides(**settings):
    defaults = {"mode": "online", "project": "toys", "entity": None, "report": False, "workspace": False}
    values = {**defaults, "patience": 6, **settings}
    return [f"++logger.{key}={'null' if value is None else value}" for key, value in values.items()]


def dry_run_command(command, folder):
    """Run the printed command in a shell in `folder`, as a dry run without upload."""
    path = f"export PATH={Path(sys.executable).parent}:$PATH; "
    dry = command.replace("wandb sync", "wandb sync --dry-run")
    done = subprocess.run(path + dry, shell=True, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def read_losses(folder):
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    return [float(row["val/loss"]) for row in read_history(file) if "val/loss" in row]


@pytest.mark.rare
def test_printed_command_uploads_every_run_of_the_sweep(attnlab):
    status, out, err = attnlab(*SWEEP, *format_logger_overrides(mode="offline"))
    assert status == 0, err
    (last,) = [text for text in out.splitlines() if text.startswith("W&B: ")]
    message, _, command = last.partition("; upload with: ")
    assert message == "W&B: 5 runs on disk only"  # four runs and the report
    assert command == "wandb sync runs/*/wandb/offline-run-*"
    assert "Would sync 5 run(s)" in dry_run_command(command, attnlab.folder)
    folders = [path.parent for path in attnlab.folder.glob("runs/*/run.json")]
    assert len(folders) == 4
    assert all(read_losses(folder) == LOSSES for folder in folders)


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("kind", ["mute", "closed", "refusing"])
def test_faulty_server_delays_a_sweep_once_and_runs_can_be_uploaded(attnlab, kind):
    attnlab.environment |= {"WANDB_API_KEY": "x" * 40}
    with start_faulty_server(kind) as url:
        attnlab.environment["WANDB_BASE_URL"] = url
        process = attnlab.start(*SWEEP, "sweep.slots=1", *format_logger_overrides())
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    logs = [path.read_text() for path in attnlab.folder.glob("runs/*/log.txt")]
    assert sum("W&B went offline: " in log for log in logs) == 1, logs
    (last,) = [text for text in out.splitlines() if text.startswith("W&B: ")]
    message, _, command = last.partition("; upload with: ")
    assert message.startswith("W&B: 5 runs on disk only (")
    assert "Would sync 5 run(s)" in dry_run_command(command, attnlab.folder)
    for record in attnlab.folder.glob("runs/*/run.json"):
        assert read_losses(record.parent) == LOSSES
    assert not list(attnlab.folder.glob("runs/wandb/*.offline"))


def test_pending_uploads_include_interrupted_and_offline_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    root, late = Path("runs"), Path("runs/aa/wandb/run-20260101_000000-aa").absolute()
    for folder in (late, Path("runs/bb/wandb/offline-run-20260101_000000-bb")):
        folder.mkdir(parents=True)
        (folder / f"run-{folder.name[-2:]}.wandb").touch()
    logger_notes.update_note(root / "aa", "wandb", upload=[str(late)])
    message = logger_notes.format_pending_uploads(root, ["aa", "bb", "cc"])
    command = f"wandb sync --include-online runs/*/wandb/offline-run-* {late}"
    assert message == f"W&B: 2 runs on disk only; upload with: {command}"
    assert "Would sync 2 run(s)" in dry_run_command(command, tmp_path)
    for folder in (late, Path("runs/bb/wandb/offline-run-20260101_000000-bb")):
        (folder / "run.wandb.synced").touch()
    assert logger_notes.format_pending_uploads(root, ["aa", "bb", "cc"]) == ""
