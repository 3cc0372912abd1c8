"""The folder of SLURM's scripts and pickles, and how a job without a result ended, read from its log."""

import pickle
from types import SimpleNamespace

import pytest

from attnlab.errors import InvalidConfig
from attnlab.sweep.launchers import slurm

TRACEBACK = """Traceback (most recent call last):
  File "submission.py", line 1, in process_job
    result = delayed.result()
{error}
srun: error: node7: task 0: Exited with exit code 1
"""
NO_DISK = "RuntimeError: node7 cannot access /disk/runs/a: put paths.runs on a disk that all nodes share"
TIMED_OUT = "submitit.core.utils.UncompletedJobError: Job not requeued because: timed-out too many times."


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (TRACEBACK.format(error=NO_DISK), NO_DISK),
        (TRACEBACK.format(error="ValueError: early") + TRACEBACK.format(error=TIMED_OUT), TIMED_OUT),
        ("slurmstepd: error: *** JOB 7 ON node7 CANCELLED ***\n", ""),
        (None, ""),
    ],
)
def test_exception_of_an_attempt_is_read_from_its_log_and_from_no_pickle(tmp_path, log, error):
    paths = SimpleNamespace(stderr=tmp_path / "7_0_log.err", result_pickle=tmp_path / "7_0_result.pkl")
    paths.result_pickle.write_bytes(pickle.dumps(("error", "forged")))
    if log is not None:
        paths.stderr.write_text(log)
    assert slurm._read_last_error(slurm.SlurmJob("7_0", tmp_path, paths)) == error


def test_default_folder_is_private_to_the_user_and_outside_the_store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    stores = [tmp_path / name for name in ("runs", "other")]
    folders = [slurm._make_submission_folder(store, None) for store in stores]
    assert folders[0] != folders[1]
    assert slurm._make_submission_folder(stores[0], None) == folders[0]
    for folder in folders:
        assert folder.is_relative_to(tmp_path / "state")
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("requested", "mode"), [("runs/slurm", 0o700), ("link", 0o700), ("open", 0o777), ("group", 0o770)]
)
def test_folder_that_others_may_write_to_is_refused(tmp_path, requested, mode):
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    if requested in ("open", "group"):
        (tmp_path / requested).mkdir()
        (tmp_path / requested).chmod(mode)
    with pytest.raises(InvalidConfig, match=r"hydra.launcher.folder=.*: choose a folder outside paths.runs"):
        slurm._make_submission_folder(tmp_path / "runs", str(tmp_path / requested))
