"""An edit of measuring code trains nothing: the sweep measures again, once, and says so."""

import pytest

from attnlab.store import runs


@pytest.mark.rare
def test_a_finished_run_whose_measuring_code_was_edited_is_measured_again_and_not_trained(attnlab):
    status, _, errors = attnlab("heads=two", "seed=0,1")
    assert status == 0, errors
    trained = attnlab.trained()
    for path in (attnlab.folder / "runs").glob("*/run.json"):
        record = runs.record(path.parent)
        runs.write_record(
            path.parent, record.model_copy(update={"measured_by": {"loss": "an earlier digest"}})
        )
    status, out, errors = attnlab("heads=two", "seed=0,1")
    assert status == 0, errors
    assert "0 to train, 2 to be measured again, by code that was changed" in out
    assert attnlab.trained() == trained
    assert len((attnlab.folder / "measured").read_text().splitlines()) == 2
    status, out, _ = attnlab("heads=two", "seed=0,1")
    assert "2 done, 0 to train\n" in out
    assert len((attnlab.folder / "measured").read_text().splitlines()) == 2
