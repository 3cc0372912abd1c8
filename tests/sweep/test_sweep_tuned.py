"""Tuned sweeps: what they cost and train, what is committed, and what is told on the way."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copy, copytree

import pytest
import yaml
from hydra.types import RunMode
from sampling import sample
from test_sweep_lr_grid import SEARCHED, TUNE, planned_rounds, toy_record  # noqa: F401 - a fixture
from toys import TOY, shipped

from attnlab.config import CONF
from attnlab.errors import Refused
from attnlab.report.pages import files
from attnlab.report.schema import load
from attnlab.store import runs as store
from attnlab.store.schema import Estimate, Failure
from attnlab.sweep import engine, reporting
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.plan import plan as plans_of
from attnlab.sweep.status import looks, show

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


class Stub:
    """Answers for a shipped config what a cost is made of, without torch."""

    @staticmethod
    def check(config):
        data, trainer = config["data"], config["trainer"]
        return Estimate(tokens=trainer["max_steps"] * data["batch_size"] * data["length"])


@pytest.mark.rare
def test_tuning_costs_no_shipped_experiment_more_than_its_comparison_at_size_s():
    files = {name: yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text()) for name in EXPERIMENTS}
    declared = {name: file["baseline"] for name, file in files.items() if file.get("tune")}
    assert declared
    for name, arm in sample(declared.items(), 6):
        line = [f"+experiment={name}", "tuned=none", f"arms=[{arm}]", "claims=[]", "++unmatched=[]"]
        line += ["exchange=null", "margin=1"]  # the stub declares no metric
        master = shipped().load_configuration("config", line, RunMode.MULTIRUN)
        plan = plans_of(line, Composer(shipped(), master), Stub())[0]  # of each text alike
        entry = plan.tuned.arms[arm]
        each, looks = plan.runs[0].estimate.tokens, plan.experiment.looks
        assert entry.comparison == each * len(plan.runs)
        assert entry.most == plan.grid[0].estimate.tokens * plan.tuned.grid.most
        if plan.tuned.grid.share == 1:  # a task that is found late, where nothing less tells
            assert 0 < entry.tokens < entry.most <= 1.5 * each * len(plan.runs), name
            continue
        seeds = looks[0] if isinstance(looks, list) else len(plan.runs)
        assert 0 < entry.tokens < entry.most <= each * seeds, f"{name}, where it ends after its first look"


def test_watching_goes_on_with_what_tuning_brings(rounds, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(show.time, "sleep", lambda _seconds: None)
    coming = iter([*rounds[1:], rounds[-1]])

    def train(plan):
        for run in (*plan.grid, *(run for run in plan.runs if run.arm not in plan.untuned)):
            store.write_spec(tmp_path, run)
            store.write_record(tmp_path / run.id, toy_record(run))

    def again(_plans):
        plan = next(coming)
        train(plan)
        return [plan]

    train(rounds[0])
    show.show("watch", [rounds[0]], tmp_path, {}, again)
    out = capsys.readouterr().out
    assert out.count("heads") == 1, "drawn once: all had ended by then"
    assert "38 done" in out
    assert "tuning takes 32 runs as far as they are known, and at most 63" in out


def test_watching_ends_where_an_arm_stays_untuned(rounds, tmp_path, capsys):
    for run in rounds[0].grid:
        store.write_spec(tmp_path, run)
        lost = {"status": "killed", "metrics": {}, "failure": Failure(message="killed")}
        store.write_record(tmp_path / run.id, toy_record(run, **lost))
    show.show("watch", [rounds[0]], tmp_path, {}, lambda plans: plans)
    assert "one: its learning rate is not known: no result at 0.2 with seed 7, 0.3" in capsys.readouterr().out


@pytest.fixture
def commanded(monkeypatch, tmp_path):
    """`commanded(plans, record)`: carries out plans, one after the other as tuning extends them; a run has
    the record that is given for it. The exit status, and how many runs were trained each time.
    """
    trained = []

    def call(plans, record=toy_record):
        coming = iter(plans)

        def train(_self, todo, _plans):
            trained.append(len(todo))
            for run in todo:
                store.write_spec(tmp_path / "runs", run)
                store.write_record(tmp_path / "runs" / run.id, record(run))
            return 0

        monkeypatch.setattr(engine._Sweep, "planned", lambda _self: [next(coming)])
        monkeypatch.setattr(engine._Sweep, "extended", lambda _self, _plans: [next(coming)])
        monkeypatch.setattr(engine._Sweep, "trained", train)
        monkeypatch.setattr(engine._Sweep, "timed", lambda *_: None)
        monkeypatch.setattr(reporting, "built", lambda *_: None)
        monkeypatch.setattr(reporting, "publish", lambda *_: None)
        monkeypatch.setattr(reporting, "together", lambda *_: [])
        folders = (tmp_path / "runs", tmp_path / "reports")
        return engine._Sweep([], None, None, {}, {"mode": "none"}, *folders, None, None).run(), trained

    return call


def test_a_command_trains_a_rung_and_extends_its_plan_until_every_rate_is_known(rounds, commanded):
    assert commanded(rounds) == (0, [12, 8, 12, 6])


def test_an_arm_whose_rate_a_machine_lost_is_not_trained_and_the_command_fails(rounds, commanded, capsys):
    def lost(run):
        killed = {"status": "killed", "metrics": {}, "failure": Failure(message="killed")}
        return toy_record(run, **(killed if run.arm.startswith("one") else {}))

    def rated(plan):
        return replace(
            plan, tuned=replace(plan.tuned, arms={**plan.tuned.arms, "one": rounds[0].tuned.arms["one"]})
        )

    status, trained = commanded([rounds[0], *map(rated, rounds[1:])], lost)
    assert (status, trained[-1]) == (engine.FAILED, 4)
    out = capsys.readouterr().out
    assert "one is not trained: its learning rate is not known: no result at 0.2 with seed 7" in out
    assert "failed before" not in out, "no run of the comparison was tried"


def test_a_run_at_the_lowest_rate_is_none_of_an_arm_whose_rate_is_not_known(rounds, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(files, "write", lambda _folder, document, _runs: written.append(document))
    for run in rounds[0].runs:
        store.write_spec(tmp_path, run)
        store.write_record(tmp_path / run.id, toy_record(run))
    reporting.publish(reporting.built(rounds[0], tmp_path, None, []), tmp_path, tmp_path / "reports")
    assert written[0].verdict.finished == 0
    reporting.publish(
        reporting.built(replace(rounds[0], tuned=None), tmp_path, None, []), tmp_path, tmp_path / "reports"
    )
    assert written[1].verdict.finished == 6


def test_what_was_tuned_is_committed_in_a_file_that_the_experiments_defaults_name(planned, rounds, tmp_path):
    def conf(name):
        folder = Path(copytree(TOY / "conf", tmp_path / name))
        file = folder / "experiment" / "heads.yaml"
        head, rest = file.read_text().split("\n", 1)
        tune = TUNE.replace("=", ": ", 1).replace(":[", ": [")
        file.write_text(f"{head}\ndefaults:\n  - optional /tuned: heads\n{tune}\n{rest}")
        (folder / "tuned").mkdir()
        copy(CONF / "tuned" / "none.yaml", folder / "tuned")
        return folder

    line, before, after = "+experiment=heads", conf("before"), conf("after")
    [first] = planned(line, conf=before)
    assert {run.id for run in first.grid} == {run.id for run in rounds[0].grid}
    rounds[-1].tuned.write(after / "tuned" / "heads.yaml", "heads")
    [plan] = planned(line, conf=after)
    assert plan.tuned.committed
    assert (plan.grid, plan.untuned, plan.changed, plan.title) == ([], [], (), "heads")
    assert {run.id for run in plan.runs} == {run.id for run in rounds[-1].runs}
    [anew] = planned(line, "tuned=none", conf=after)
    assert {run.id for run in anew.grid} == {run.id for run in rounds[0].grid}
    [untuned] = planned(line, "tune=null", conf=after)
    assert (untuned.tuned, untuned.grid) == (None, [])
    assert {run.config["optim"]["lr"] for run in untuned.runs} == {0.1}
    with pytest.raises(Refused, match=r"tuned=head: there is no tuned/head\.yaml"):
        planned(line, "tuned=head", conf=after)


def test_looks_go_on_at_the_rates_that_were_found(planned, rounds, tmp_path):
    records = {run.id: toy_record(run) for run in rounds[-1].grid}
    [plan] = planned("+experiment=heads", TUNE, "looks=[2,4]", "seeds=null", lookup=records.get)
    assert not plan.untuned
    assert {run.id for run in plan.grid} == records.keys(), "the same runs, however many seeds are compared"
    assert {run.seed for run in plan.runs} == {0, 1, 2, 3}
    first = {run.id for run in looks.needed(plan, tmp_path)}
    assert first == {run.id for run in rounds[-1].runs}


@pytest.mark.rare
def test_a_sweep_trains_rung_by_rung_once_and_its_report_shows_and_charges_it(attnlab):
    line = ("+experiment=heads", TUNE, "claims=[]", "arms=[two,four]", "match=none")
    status, out, err = attnlab(*line)
    assert status == 0, err
    rungs = [line.split(": ")[1] for line in out.splitlines() if line.startswith("tuning the learning rate")]
    assert rungs == ["8 runs to train", "7 runs to train", "6 runs to train"]
    folder = next((attnlab.folder / "reports").glob("heads~*"))
    document = load(folder / "report.json")
    arms = {entry.arm: entry for entry in document.budget.tuning.arms}
    picked = {arm: row.lr for arm, entry in arms.items() for row in entry.rows if row.picked}
    assert picked == {"two": 0.4, "four": 0.8}
    for arm, entry in arms.items():
        assert {row.lr for row in entry.rows if row.median is not None} == set(SEARCHED[arm])
    spent = document.budget.row("tuning_tokens")
    assert {cell.arm: cell.value for cell in spent.cells} == {"two": 100, "four": 110}
    assert arms["two"].of_comparison == pytest.approx(100 / (2 * 30))
    assert not any("end of those tried" in warning for warning in document.warnings)
    assert len(attnlab.trained()) == 21 + 4
    assert (folder / "tuned.yaml").exists()
    runs = attnlab.folder / "runs"
    part = next(run for run in runs.glob("*/run.json") if json.loads(run.read_text())["seed"] == 7)
    part.unlink()  # as if it had been interrupted
    status, out, _ = attnlab(*line)
    assert (status, len(attnlab.trained())) == (0, 21 + 4 + 1), "nothing is trained twice"
    assert "tuning the learning rate: 1 runs to train" in out
