"""A sweep puts on record what it declares before it compares, and its report cites that."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_sweep_declared import GOOD
from toys import TOY

from attnlab.cli.verbs import compare
from attnlab.errors import Refused
from attnlab.report.pages import files
from attnlab.report.schema import load
from attnlab.store import fingerprint, runs
from attnlab.store.guards import declared, marks
from attnlab.store.schema import RunRecord
from attnlab.sweep import engine, reporting
from attnlab.sweep.plan.plan import Plan

EDITS = [("margin: 0.5", "margin: 0.6"), ("seeds: [0]", "seeds: [0, 1]"), ("old: 0.5}", "old: 0.6}")]
PLANS: dict[tuple[bool, bool], Plan] = {}
TUNE = "tune={lr:[0.2,0.4],seeds:[7,8,9],widen:0}"


@pytest.fixture
def reported(monkeypatch, tmp_path):
    """`reported(plan)`: what a command over a plan declares, then its report; every run is then done."""
    written = []
    monkeypatch.setattr(files, "write", lambda _folder, document, _runs: written.append(document))

    def call(plan):
        root = tmp_path / "runs"
        entry = reporting.declare(plan, root, ["+experiment=mine"])
        for run in plan.runs:
            finish(root, run)
        reporting.publish(reporting.built(plan, root, None, [], entry), root, tmp_path / "reports")
        return written[-1]

    return call


def done(run):
    metrics = {"val/loss": 2.0 + run.seed, "train/loss": 1.0}
    return RunRecord(id=run.id, status="done", seed=run.seed, config=run.config, metrics=metrics)


def finish(root, run):
    runs.write_spec(root, run)
    runs.write_record(root / run.id, done(run))


def written(folder, name, text):
    """A search path of its own with an experiment file in it: what was read of a path is kept."""
    where = Path(tempfile.mkdtemp(dir=folder))
    (where / "experiment").mkdir()
    (where / "experiment" / f"{name}.yaml").write_text(text)
    return where


@pytest.fixture
def mine(planned, tmp_path):
    """`mine()`: the plan of a user's own experiment file; `mine(edited=True)`: once seeds, margin and a claim
    in it were changed. Made once for all tests.
    """

    def call(edited=False, tracked=False):
        if (edited, tracked) not in PLANS:
            text = GOOD
            for old, new in EDITS if edited else ():
                assert old in text
                text = text.replace(old, new, 1)
            where = written(tmp_path, "mine", text)
            git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
            for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "edited"]) if tracked else ():
                subprocess.run([*git, *words], cwd=where, check=True)
            [PLANS[edited, tracked]] = planned(f"hydra.searchpath=['file://{where}']", "+experiment=mine")
        return PLANS[edited, tracked]

    return call


@pytest.fixture
def compared(planned, tmp_path):
    """`compared(...)`: the plan of `compare "heads=two" "heads=four" ...`."""

    def call(*words):
        experiment, left = compare.declare([["heads=two"], ["heads=four"]], words)
        where = written(tmp_path, experiment["name"], compare.yaml(experiment))
        line = (f"+experiment={experiment['name']}", *left, "++sweep.command=compare")
        [plan] = planned(f"hydra.searchpath=['file://{where}']", *line)
        return plan

    return call


@pytest.mark.parametrize("tracked", [True, False])
def test_a_file_that_was_edited_after_its_results_is_exploratory(mine, reported, tracked):
    assert not reported(mine()).verdict.exploratory
    found = reported(mine(edited=True, tracked=tracked))
    [line] = found.verdict.departures
    assert "after 2 pairs of results were known of what was declared on" in line
    for said in (
        "margin: first 0.5, now 0.6",
        "seeds: first 0, now 0, 1",
        "claims: first one against two, val/loss: difference below 0.5, "
        "now one against two, val/loss: difference below 0.6",
    ):
        assert said in line
    assert found.verdict.exploratory
    assert all(claim.exploratory for claim in found.verdict.claims)


def test_a_file_that_is_edited_before_any_result_is_as_good_as_new(mine, reported, tmp_path):
    reporting.declare(mine(), tmp_path / "runs", [])
    found = reported(mine(edited=True))
    assert not found.verdict.exploratory
    assert (found.declared.known, found.declared.pairs) == (0, 4)


def test_compare_keeps_its_standing_with_every_seed_more_and_loses_it_with_another_margin(
    compared, reported, tmp_path
):
    for seeds in ("seed=0,1,2", "seed=range(8)"):
        found = reported(compared(seeds))
        assert not found.verdict.exploratory
        assert found.experiment.looks == "anytime"
    [entry] = declared.entries(tmp_path / "runs")
    log = (tmp_path / "runs" / marks.LOG).read_text().splitlines()
    assert found.declared == entry
    assert found.declared.plain() == json.loads(log[0])
    assert not [run.id for run in found.runs if run.id in log[0]], "`clean` would keep it"
    found = reported(compared("seed=range(8)", "margin=0.04"))
    assert "after 8 pairs of results were known" in found.verdict.departures[0]
    assert "margin: first 5 % of training, now 0.04" in found.verdict.departures[0]


def test_what_was_changed_is_told_before_anything_is_trained_and_so_is_a_broken_line(
    mine, reported, tmp_path, capsys
):
    reported(mine())
    with (tmp_path / "runs" / marks.LOG).open("a") as file:
        file.write("{\n")
    capsys.readouterr()
    reporting.declare(mine(edited=True), tmp_path / "runs", [])
    out, err = capsys.readouterr()
    assert out.startswith("mine is EXPLORATORY: on 20")
    assert err.rstrip().endswith("declarations.jsonl: broken and passed over: line 4")


def test_a_recipe_is_an_arms_config_whatever_its_seeds_and_the_code(planned, monkeypatch):
    more = ("arms=[two,four,seeded,child]", "claims=[]")
    [plan] = planned("+experiment=heads", *more, "seed=1,2")
    [seeds] = planned("+experiment=heads", *more, "seed=5,6")
    assert seeds.recipes == plan.recipes
    assert len(set(plan.recipes.values())) == len(plan.recipes) == 4
    [narrow] = planned("+experiment=heads", *more, "seed=1,2", "arm_overrides.four=['heads=one']")
    assert {arm for arm in plan.recipes if narrow.recipes[arm] != plan.recipes[arm]} == {"four"}
    monkeypatch.setattr(fingerprint, "source", lambda *_: {"attnlab.model": "another version"})
    [other] = planned("+experiment=heads", *more, "seed=1,2")
    assert not {run.id for run in other.runs} & {run.id for run in plan.runs}
    assert other.recipes == plan.recipes


def test_a_grid_that_is_finished_later_is_no_change(planned, tmp_path):
    root = tmp_path / "runs"
    grid, arms = {}, {}
    while new := [
        run
        for run in planned("+experiment=heads", TUNE, "match=none", lookup=grid.get)[0].grid
        if run.id not in grid
    ]:
        grid |= {run.id: done(run) for run in new}
        arms |= {run.id: run.arm for run in new}
    part = {id: record for id, record in grid.items() if not arms[id].startswith("one")}
    for found, unknown in ((part, ["one"]), (grid, [])):
        [plan] = planned("+experiment=heads", TUNE, "match=none", lookup=found.get)
        entry = reporting.declare(plan, root, [])
        assert [arm for arm, recipe in entry.content.recipes.items() if recipe is None] == unknown
        for run in plan.runs:
            if run.arm not in unknown:
                finish(root, run)
    assert len(declared.entries(root)) == 2
    assert entry.known == 2, "two and four, at both seeds"
    assert not entry.departures


@pytest.fixture
def sweep(mine, monkeypatch, tmp_path):
    """A sweep of one plan that trains nothing; `order` tells what was done, and how long the log was."""
    log, order = tmp_path / "runs" / marks.LOG, []

    def noted(name, answer=None):
        def call(*_, **__):
            order.append((name, len(log.read_text().splitlines()) if log.is_file() else 0))
            return answer

        return call

    plan = mine()
    monkeypatch.setattr(engine._Sweep, "planned", lambda _self: [plan])
    monkeypatch.setattr(engine._Sweep, "tuned", lambda _self, plans: (noted("tuned")(), (plans, 0))[1])
    monkeypatch.setattr(engine._Sweep, "trained", noted("trained", 0))
    monkeypatch.setattr(engine._Sweep, "timed", noted("timed"))
    monkeypatch.setattr(reporting, "built", noted("report"))
    monkeypatch.setattr(reporting, "together", lambda *_: [])
    monkeypatch.setattr(reporting, "publish", lambda *_: None)
    return engine._Sweep(
        [], None, None, {}, {"mode": "none"}, tmp_path / "runs", tmp_path / "reports", None, None
    ), order  # fmt: skip


def test_it_is_declared_once_after_the_grid_and_before_the_comparison(sweep):
    command, order = sweep
    command.run()
    assert order == [("tuned", 0), ("trained", 2), ("timed", 2), ("report", 2)]


def test_a_sweep_that_is_interrupted_in_its_grid_reports_what_it_declares_all_the_same(sweep, monkeypatch):
    command, order = sweep

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._Sweep, "tuned", interrupted)
    assert command.run() == engine.INTERRUPTED
    assert order == [("report", 2)]


@pytest.mark.parametrize(("worth", "compared", "status"), [(0.25, 6, 0), (-0.25, 0, engine.FAILED)])
def test_what_training_is_worth_is_trained_before_anything_is_declared_or_compared(
    sweep, planned, monkeypatch, tmp_path, worth, compared, status
):
    [plan] = planned("+experiment=heads", "exchange={seeds:[200,201,202]}", "margin={training:5%}")
    (command, _), root, order = sweep, tmp_path / "runs", []

    def trained(_self, todo, _plans):
        order.append((len(todo), {run.seed >= 200 for run in todo}, bool(declared.entries(root))))
        for run in todo:
            gain = worth * (1 + run.seed % 7 / 100) if "twice" in run.arm else 0
            runs.write_spec(root, run)
            loss = {"val/loss": 2 + run.seed - gain}
            runs.write_record(root / run.id, done(run).model_copy(update={"metrics": loss}))
        return 0

    monkeypatch.setattr(engine._Sweep, "planned", lambda _self: [plan])
    monkeypatch.setattr(engine._Sweep, "trained", trained)
    assert command.run() == status
    assert order == [(6, {True}, False), (compared, {False} if compared else set(), True)]
    [entry] = declared.entries(root)
    assert (entry.content.nats["5 % of training"] is not None) == bool(compared)


def test_without_a_log_that_can_be_written_nothing_starts(sweep, tmp_path):
    command, order = sweep
    (tmp_path / "runs" / marks.LOG).mkdir(parents=True)
    with pytest.raises(Refused, match="what is declared cannot be put on record"):
        command.run()
    assert not order
    assert not list((tmp_path / "runs").glob("users/*"))


def test_a_command_without_an_experiment_declares_nothing(sweep, planned, monkeypatch, tmp_path):
    command, order = sweep
    plans = planned("heads=four")
    monkeypatch.setattr(engine._Sweep, "planned", lambda _self: plans)
    command.run()
    assert order == [("tuned", 0), ("trained", 0)]
    assert not (tmp_path / "runs" / marks.LOG).exists()


@pytest.mark.rare
def test_a_comparison_from_its_command_line_to_a_report_that_cites_it(attnlab):
    def command(*words):
        line = [sys.executable, "-m", "attnlab", "compare", "heads=two", "heads=four", *words]
        line += ["--config-path", str(TOY / "conf")]
        done = subprocess.run(
            line, cwd=attnlab.folder, env=attnlab.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return load(attnlab.folder / "reports/two_vs_four/report.json")

    reports = [command("seed=0,1,2"), command("seed=range(5)"), command("seed=range(5)", "margin=0.04")]
    assert [report.verdict.exploratory for report in reports] == [False, False, True]
    entries = declared.entries(attnlab.folder / "runs")
    assert [reports[0].declared, reports[2].declared] == entries
    assert reports[1].declared == entries[0]
    page = (attnlab.folder / "reports/two_vs_four/report.md").read_text()
    assert f"entry {entries[1].hash[:16]}" in page


@pytest.mark.rare
def test_a_log_that_cannot_be_written_is_one_line_and_status_2(attnlab):
    (attnlab.folder / "runs" / marks.LOG).mkdir(parents=True)
    status, _, err = attnlab("+experiment=heads")
    assert status == 2
    assert err.startswith("attnlab: runs/declarations.jsonl: ")
    assert err.count("\n") == 1
    assert not attnlab.trained()
