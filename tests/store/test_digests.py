"""A file that is missing, cut or flipped and an edited record are found out; old records are as they are."""

import json

import pytest

from attnlab.errors import Refused
from attnlab.store import runs
from attnlab.store.guards import digests
from attnlab.store.schema import RunRecord


@pytest.fixture
def run(tmp_path):
    """The folder of a finished run with all its files."""
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    for name in digests.FILES:
        (folder / name).write_text(f"this is {name}")
    record = RunRecord(
        id=folder.name, status="done", seed=0, config={"seed": 0, "a": [1, 2.5, None]},
        metrics={"val/loss": 1.5}, by_position={"val/loss": [None, 0.1]}, files=digests.of_files(folder),
    )  # fmt: skip
    runs.write_record(folder, record)
    return folder


def missing(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:5])


def flipped(path):
    content = path.read_bytes()
    path.write_bytes(content[:3] + bytes([content[3] ^ 1]) + content[4:])


@pytest.mark.parametrize("name", digests.FILES)
@pytest.mark.parametrize("spoil", [missing, cut, flipped])
def test_a_file_that_is_missing_cut_or_flipped_is_named(run, name, spoil):
    record = runs.record(run)
    assert digests.broken(run, record) == {}
    spoil(run / name)
    told = "is missing" if spoil is missing else "is not what the run wrote: cut short or changed"
    assert digests.broken(run, record) == {name: told}
    assert digests.broken(run, record, [other for other in digests.FILES if other != name]) == {}


def test_large_files_are_read_only_where_that_is_asked(run):
    flipped(run / digests.WEIGHTS)
    assert digests.broken(run, runs.record(run), most=5) == {}
    missing(run / digests.WEIGHTS)
    assert list(digests.broken(run, runs.record(run), most=5)) == [digests.WEIGHTS]


@pytest.mark.parametrize(
    ("key", "value"),
    [("metrics", {"val/loss": 1.4}), ("seed", 1), ("config", {}), ("files", {}), ("seconds", 3.0)],
)
def test_an_edited_record_is_not_trusted_and_its_fields_are_named(run, key, value):
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, key: value}))
    assert runs.record(run) is None
    assert not runs.is_done(run)
    assert runs.fault(run) == f"{run / 'run.json'} was edited after the run wrote it: {key}"
    record, changed = runs.edited(run)
    assert (record.plain()[key], changed) == (value, [key])


def test_a_record_laid_out_otherwise_is_the_same_record(run):
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(dict(sorted(content.items())), indent=4))
    assert runs.is_done(run)
    assert runs.edited(run) == (None, [])


def test_whoever_rewrites_a_record_seals_it_and_keeps_the_files_digests(run):
    record = runs.record(run)
    flipped(run / digests.WEIGHTS)
    runs.write_record(run, record.model_copy(update={"metrics": {"val/loss": 1.25}}))
    again = runs.record(run)
    assert again.metrics == {"val/loss": 1.25}
    assert list(digests.broken(run, again)) == [digests.WEIGHTS]


def test_an_old_record_is_taken_as_it_is(run):
    content = json.loads((run / "run.json").read_text())
    old = {key: value for key, value in content.items() if key not in ("files", "seal")}
    (run / "run.json").write_text(json.dumps({**old, "metrics": {"val/loss": 1.0}}))
    flipped(run / digests.WEIGHTS)
    assert runs.is_done(run)
    assert digests.broken(run, runs.record(run)) == {}


def test_a_finished_run_that_could_not_be_trained_again_stays_finished(run):
    runs.set_aside(run)
    assert runs.record(run) is None
    runs.write_failure(run, "crashed", "it broke", 0.0)
    assert runs.record(run).metrics == {"val/loss": 1.5}
    assert not (run / runs.BEFORE).exists()


def test_a_record_of_another_schema_is_refused_as_before(run):
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, "schema": 1}))
    with pytest.raises(Refused, match="schema 1"):
        runs.edited(run)
