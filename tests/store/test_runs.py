import json

import pytest

from attnlab.errors import Refused
from attnlab.store import runs

DONE = {
    "schema": 1, "status": "done", "seed": 0, "config": {}, "failure": None, "data": {}, "budget": {},
    "environment": {}, "metrics": {"val/loss": 1.5},
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "0123456789abcdef"
    runs.write_spec(folder, config={"seed": 3}, figures={"data": {"name": "toy"}, "parameters": 7}, use={})
    return folder


def put(folder, **changes):
    (folder / "run.json").write_text(json.dumps({**DONE, "id": folder.name, **changes}))


def test_a_run_is_done_when_its_record_validates(run):
    assert not runs.is_done(run)
    put(run)
    assert runs.is_done(run)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "fedcba9876543210"},
        {"status": "fine"},
        {"metrics": {}},
        {"metrics": {"val/loss": float("nan")}},
        {"metrics": {"val/loss": None}},
    ],
)
def test_a_record_that_does_not_validate_is_no_record(run, changes):
    put(run, **changes)
    assert runs.record(run) is None


def test_a_record_cut_in_half_is_no_record(run):
    put(run)
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text[: len(text) // 2])
    assert runs.record(run) is None


def test_a_store_of_another_schema_is_refused(run):
    put(run, schema=2)
    with pytest.raises(Refused, match="schema 2, this version reads 1"):
        runs.record(run)


def test_a_failure_is_a_record_with_the_step_and_the_last_lines(run):
    (run / "log.txt").write_text("".join(f"line {i}\n" for i in range(30)))
    (run / "progress.json").write_text('{"step": 11}')
    runs.write_failure(run, "crashed", "it broke", started=0.0)
    record = runs.record(run)
    assert record["status"] == "crashed"
    assert record["failure"] == {
        "message": "it broke",
        "step": 11,
        "tail": [f"line {i}" for i in range(10, 30)],
    }
    assert (record["seed"], record["data"]["name"], record["budget"]["parameters"]) == (3, "toy", 7)


def test_an_unwritable_store_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be written"):
        runs.refuse_unwritable(tmp_path / "file" / "runs")
