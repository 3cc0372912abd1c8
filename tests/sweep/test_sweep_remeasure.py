"""Remeasurement of finished runs after an edit of measuring code."""

import pytest

from attnlab.store import run_directories


@pytest.mark.rare
def test_edited_measuring_code_remeasures_finished_runs_once_without_training(attnlab):
    status, _, errors = attnlab("heads=two", "seed=0,1")
    assert status == 0, errors
    attempts = attnlab.load_attempts()
    for path in (attnlab.folder / "runs").glob("*/run.json"):
        record = run_directories.load_run_result(path.parent)
        run_directories.write_run_result(
            path.parent, record.model_copy(update={"measured_by": {"loss": "an earlier digest"}})
        )
    status, out, errors = attnlab("heads=two", "seed=0,1")
    assert status == 0, errors
    assert "0 to train, 2 to be measured again because the measuring code changed" in out
    assert attnlab.load_attempts() == attempts
    assert len((attnlab.folder / "measured").read_text().splitlines()) == 2
    status, out, _ = attnlab("heads=two", "seed=0,1")
    assert "2 done, 0 to train\n" in out
    assert len((attnlab.folder / "measured").read_text().splitlines()) == 2
