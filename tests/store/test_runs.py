import json

import pytest

from attnlab.errors import Refused
from attnlab.store import runs
from attnlab.store.schema import Estimate, Failure, RunSpec

DONE = {"schema": 2, "status": "done", "seed": 0, "config": {}, "metrics": {"val/loss": 1.5}}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "0123456789abcdef"
    estimate = Estimate(data={"name": "toy"}, parameters=7)
    runs.write_spec(tmp_path, RunSpec(id=folder.name, config={"seed": 3}, estimate=estimate))
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
        {"metrics": {"val/loss": "1.5"}},
        {"head_score": {}},
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
    put(run, schema=1)
    with pytest.raises(Refused, match="schema 1, this version reads 2"):
        runs.record(run)


def test_a_failure_is_a_record_with_the_step_and_the_last_lines(run):
    (run / "log.txt").write_text("".join(f"line {i}\n" for i in range(30)))
    (run / "progress.json").write_text('{"step": 11}')
    runs.write_failure(run, "crashed", "it broke", started=0.0)
    record = runs.record(run)
    assert record.status == "crashed"
    assert record.failure == Failure(
        message="it broke", step=11, tail=tuple(f"line {i}" for i in range(10, 30))
    )
    assert (record.seed, record.estimate.data["name"], record.estimate.parameters) == (3, "toy", 7)


def test_what_is_wrong_with_a_record_is_said(run):
    put(run, seed="three")
    assert "seed: Input should be a valid integer" in runs.fault(run)


def test_a_spec_is_read_as_it_was_written(run):
    spec = runs.spec(run)
    again = spec.but(use=spec.use.model_copy(update={"split": 2, "overrides": ("a=1",)}))
    runs.write_spec(run.parent, again)
    assert runs.spec(run) == again
    assert runs.split(run) == 2


@pytest.mark.parametrize(
    ("text", "said"), [("{", "cut short"), ('{"schema": 2, "id": "a"}', "config: Field required")]
)
def test_a_spec_that_cannot_be_read_is_refused_in_one_line(run, text, said):
    (run / "spec.json").write_text(text)
    with pytest.raises(Refused, match=said) as refused:
        runs.spec(run)
    assert "\n" not in str(refused.value)


def test_an_unwritable_store_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be written"):
        runs.refuse_unwritable(tmp_path / "file" / "runs")
