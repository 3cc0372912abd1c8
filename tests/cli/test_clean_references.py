"""What keeps a run from `clean`: reports wherever they lie, and commands that the store remembers."""

import shutil
from pathlib import Path

import pytest
import test_clean
from test_clean import here, report, run, stored, used

from attnlab.store import fingerprint

root = test_clean.root  # the fixture


def test_nested_reports_and_several_folders_of_them_keep_their_runs(root, tmp_path):
    ids = [stored(root, str(number)) for number in range(5)]
    report(Path("reports/2024/spring/one"), ids[0])
    report(Path("old/two"), ids[1])
    report(Path("linked/three"), ids[2])
    Path("reports/link").symlink_to(tmp_path / "linked")
    Path("reports/link/again").symlink_to(tmp_path / "linked")  # a circle
    used(root, "elsewhere", [], Path("third"), published=True)
    report(Path("third/other/four"), ids[3])
    run("--yes", "paths.reports=reports", "paths.reports=old")
    assert here(root) == set(ids[:4])


@pytest.mark.parametrize("text", ["", '{"schema": 3, "runs": [{"id": "', '{"runs": 5}', "\x00", "[" * 99999])
def test_an_unreadable_report_keeps_all_runs_that_it_could_list(root, capsys, text):
    ids = {stored(root, str(number)) for number in range(2)}
    report(Path("reports/deep/broken"), text=text)
    run("--yes")
    assert here(root) == ids
    path = Path("reports/deep/broken/report.json")
    assert f"kept: 2 since {path} cannot be read as a report" in capsys.readouterr().out


def test_an_unreadable_report_of_a_known_command_keeps_that_commands_runs(root, capsys):
    theirs, cited, other = (stored(root, name) for name in ("theirs", "cited", "other"))
    used(root, "mine", [theirs], published=True)
    report(Path("reports/mine"), text=f'{{"runs": [{{"id": "{cited}"')
    run("--yes")
    assert here(root) == {theirs, cited}
    assert "of mine: reports/mine/report.json cannot be read" in capsys.readouterr().out
    assert other not in here(root)


def test_a_report_json_of_another_program_keeps_nothing(root):
    stored(root, "single")
    report(Path("reports/coverage"), text='{"totals": 3}')
    run("--yes")
    assert here(root) == set()


def test_a_command_that_was_killed_before_its_report_keeps_its_runs_until_it_is_forgotten(root, capsys):
    name = stored(root, "one", "mine")
    used(root, "mine", [name, "0" * 16])
    run("--yes")
    assert here(root) == {name}
    assert "kept: 1 of mine, which was not finished (--forget mine)" in capsys.readouterr().out
    run("--yes", "--forget", "mine")
    assert here(root) == set()
    assert not list((root / "users").iterdir())


def test_a_command_that_runs_is_not_forgotten(root, capsys):
    name = stored(root, "one", "mine")
    used(root, "mine", [name], alive=True)
    run("--yes", "--forget", "mine")
    assert here(root) == {name}
    assert "it is not forgotten" in capsys.readouterr().out


def test_what_was_forgotten_stays_so_though_a_report_keeps_its_runs_for_now(root):
    name = stored(root, "one", "mine", fingerprint.sources(["attnlab.errors"]))
    used(root, "mine", [name])
    report(Path("reports/other"), name)
    run("--yes", "--forget", "mine")
    assert here(root) == {name}
    shutil.rmtree("reports/other")
    run("--yes")
    assert here(root) == set()


@pytest.mark.parametrize("gone", ["reports/mine", "reports"])
def test_a_published_report_keeps_its_commands_runs_until_it_is_deleted(root, gone):
    listed, tuning = stored(root, "listed", "mine"), stored(root, "of its grid", "mine")
    used(root, "mine", [listed, tuning], published=True)
    report(Path("reports/mine"), listed)
    run("--yes")
    assert here(root) == {listed, tuning}
    shutil.rmtree(gone)
    run("--yes")
    assert here(root) == set()
    assert not list((root / "users").iterdir())


def test_a_report_that_shows_other_runs_now_keeps_those_of_before_no_more(root):
    old, new = stored(root, "old", "mine"), stored(root, "new", "mine")
    used(root, "mine", [old], published=True)
    used(root, "mine", [new], published=True)
    report(Path("reports/mine"), new)
    run("--yes")
    assert here(root) == {new}


def test_reports_that_cannot_be_seen_from_here_keep_their_runs(root):
    name = stored(root, "one", "mine")
    used(root, "mine", [name], Path("/not/mounted/reports"), published=True)
    run("--yes")
    assert here(root) == {name}


def test_a_store_of_an_older_version_keeps_the_runs_of_experiments_that_nobody_remembers(root):
    today = fingerprint.sources(["attnlab.errors"])
    name = stored(root, "one", "of_my_own", today)
    unseen = stored(root, "two", "of_my_own", {**today, "a_module_of_mine": "0"})
    run("--yes")
    assert here(root) == {name, unseen}
    run("--yes", "--forget", "of_my_own")
    assert here(root) == set()


def test_what_cannot_be_read_of_the_stores_memory_keeps_all(root, capsys):
    name = stored(root, "single")
    (root / "users").mkdir()
    (root / "users" / "a.json").write_text("{")
    run("--yes")
    assert here(root) == {name}
    assert "kept: 1 since runs/users/a.json cannot be read" in capsys.readouterr().out
