"""File digests and the seal detect missing, truncated or changed files and edited results."""

import json

import pytest

from attnlab.errors import InvalidConfig
from attnlab.store import file_names, run_directories
from attnlab.store.guards import digests
from attnlab.store.run_schema import RunResult


@pytest.fixture
def run_folder(tmp_path):
    """The folder of a finished run with all its files."""
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    for name in digests.RUN_FILES:
        (folder / name).write_text(f"this is {name}")
    result = RunResult(
        id=folder.name, status="done", seed=0, config={"seed": 0, "a": [1, 2.5, None]},
        metrics={"val/loss": 1.5}, by_position={"val/loss": [None, 0.1]},
        files=digests.hash_run_files(folder),
    )  # fmt: skip
    run_directories.write_run_result(folder, result)
    return folder


def delete_file(path):
    path.unlink()


def truncate_file(path):
    path.write_bytes(path.read_bytes()[:5])


def flip_bit(path):
    content = path.read_bytes()
    path.write_bytes(content[:3] + bytes([content[3] ^ 1]) + content[4:])


@pytest.mark.parametrize("name", digests.RUN_FILES)
@pytest.mark.parametrize("damage", [delete_file, truncate_file, flip_bit])
def test_a_missing_truncated_or_changed_file_is_reported(run_folder, name, damage):
    result = run_directories.load_run_result(run_folder)
    assert digests.find_broken_files(run_folder, result) == {}
    damage(run_folder / name)
    fault = "is missing" if damage is delete_file else "is truncated or was changed after the run wrote it"
    assert digests.find_broken_files(run_folder, result) == {name: fault}
    assert (
        digests.find_broken_files(run_folder, result, [other for other in digests.RUN_FILES if other != name])
        == {}
    )


def test_large_files_are_skipped_above_a_limit(run_folder):
    flip_bit(run_folder / file_names.WEIGHTS_FILE)
    assert (
        digests.find_broken_files(run_folder, run_directories.load_run_result(run_folder), max_bytes=5) == {}
    )
    delete_file(run_folder / file_names.WEIGHTS_FILE)
    assert list(
        digests.find_broken_files(run_folder, run_directories.load_run_result(run_folder), max_bytes=5)
    ) == [file_names.WEIGHTS_FILE]


@pytest.mark.parametrize(
    ("key", "value"),
    [("metrics", {"val/loss": 1.4}), ("seed", 1), ("config", {}), ("files", {}), ("seconds", 3.0)],
)
def test_an_edited_result_is_not_trusted_and_its_fields_are_named(run_folder, key, value):
    content = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps({**content, key: value}))
    assert run_directories.load_run_result(run_folder) is None
    assert not run_directories.is_done(run_folder)
    assert (
        run_directories.describe_result_fault(run_folder)
        == f"{run_folder / 'run.json'} was edited after the run wrote it: {key}"
    )
    result, changed = run_directories.load_edited_result(run_folder)
    assert (result.to_dict()[key], changed) == (value, [key])


def test_layout_of_json_does_not_break_the_seal(run_folder):
    content = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps(dict(sorted(content.items())), indent=4))
    assert run_directories.is_done(run_folder)
    assert run_directories.load_edited_result(run_folder) == (None, [])


def test_rewriting_a_result_seals_it_and_keeps_the_file_digests(run_folder):
    result = run_directories.load_run_result(run_folder)
    flip_bit(run_folder / file_names.WEIGHTS_FILE)
    run_directories.write_run_result(run_folder, result.model_copy(update={"metrics": {"val/loss": 1.25}}))
    again = run_directories.load_run_result(run_folder)
    assert again.metrics == {"val/loss": 1.25}
    assert list(digests.find_broken_files(run_folder, again)) == [file_names.WEIGHTS_FILE]


def test_a_result_without_digests_is_accepted(run_folder):
    content = json.loads((run_folder / "run.json").read_text())
    old = {key: value for key, value in content.items() if key not in ("files", "seal")}
    (run_folder / "run.json").write_text(json.dumps({**old, "metrics": {"val/loss": 1.0}}))
    flip_bit(run_folder / file_names.WEIGHTS_FILE)
    assert run_directories.is_done(run_folder)
    assert digests.find_broken_files(run_folder, run_directories.load_run_result(run_folder)) == {}


def test_a_finished_run_stays_finished_if_retraining_fails(run_folder):
    run_directories.set_aside_result(run_folder)
    assert run_directories.load_run_result(run_folder) is None
    run_directories.write_failure(run_folder, "crashed", "it broke", 0.0)
    assert run_directories.load_run_result(run_folder).metrics == {"val/loss": 1.5}
    assert not (run_folder / run_directories.PREVIOUS_RESULT_FILE).exists()


def test_an_edited_result_of_another_schema_is_rejected(run_folder):
    content = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps({**content, "schema": 1}))
    with pytest.raises(InvalidConfig, match="schema 1"):
        run_directories.load_edited_result(run_folder)
