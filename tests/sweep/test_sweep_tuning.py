"""Tuned sweeps: cost, training order, committed rates and messages."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copy, copytree

import pytest
import yaml
from hydra.types import RunMode
from sampling import sample
from test_sweep_lr_tuning import SEARCHED, TUNE, make_toy_result, make_tuning_rounds  # noqa: F401 - a fixture
from toys import TOY, shipped_loader

from attnlab.config import CONF
from attnlab.errors import InvalidConfig
from attnlab.report.pages import report_files
from attnlab.report.schema import load_report
from attnlab.store import run_directories
from attnlab.store.run_schema import Failure, RunEstimate
from attnlab.sweep import engine, reporting
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.plan import plan_command
from attnlab.sweep.status import display, interim_status

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


class TokenCountChecker:
    """Stand-in for the checker that counts tokens without torch."""

    @staticmethod
    def check(config):
        data, trainer = config["data"], config["trainer"]
        return RunEstimate(tokens=trainer["max_steps"] * data["batch_size"] * data["length"])


@pytest.mark.rare
def test_tuning_tokens_stay_below_comparison_tokens_at_size_s():
    raw_experiments = {
        name: yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text()) for name in EXPERIMENTS
    }
    baselines = {name: raw["baseline"] for name, raw in raw_experiments.items() if raw.get("tune")}
    assert baselines
    for name, arm in sample(baselines.items(), 6):
        line = [f"+experiment={name}", "tuned=none", f"arms=[{arm}]", "claims=[]", "++unmatched=[]"]
        line += ["compute_calibration=null", "margin=1"]  # the checker defines no metric
        master = shipped_loader().load_configuration("config", line, RunMode.MULTIRUN)
        # all corpora have the same token counts
        plan, *_ = plan_command(line, Composer(shipped_loader(), master), TokenCountChecker())
        entry = plan.tuning.arms[arm]
        tokens_per_run, looks = plan.runs[0].estimate.tokens, plan.experiment.looks
        assert entry.comparison_tokens == tokens_per_run * len(plan.runs)
        assert entry.max_tokens == plan.tuning_runs[0].estimate.tokens * plan.tuning.grid.max_runs
        if plan.tuning.grid.share == 1:  # a task learned late: shorter training shows no difference
            assert 0 < entry.search_tokens < entry.max_tokens <= 1.5 * tokens_per_run * len(plan.runs), name
            continue
        seeds = looks[0] if isinstance(looks, list) else len(plan.runs)
        assert 0 < entry.search_tokens < entry.max_tokens <= tokens_per_run * seeds, (
            f"{name}, if it stops at its first interim analysis"
        )


def test_watch_continues_with_extended_plans(rounds, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(display.time, "sleep", lambda _seconds: None)
    plans = iter([*rounds[1:], rounds[-1]])

    def train(plan):
        for run in (*plan.tuning_runs, *(run for run in plan.runs if run.arm not in plan.untuned_arms)):
            run_directories.write_run_config(tmp_path, run)
            run_directories.write_run_result(tmp_path / run.id, make_toy_result(run))

    def extend(_plans):
        plan = next(plans)
        train(plan)
        return [plan]

    train(rounds[0])
    display.show_plans("watch", [rounds[0]], tmp_path, {}, extend)
    out = capsys.readouterr().out
    assert out.count("heads") == 1, "printed once: all runs had ended by then"
    assert "38 done" in out
    assert "tuning: 32 runs planned so far, at most 63" in out


def test_watch_ends_when_arm_stays_untuned(rounds, tmp_path, capsys):
    for run in rounds[0].tuning_runs:
        run_directories.write_run_config(tmp_path, run)
        lost = {"status": "killed", "metrics": {}, "failure": Failure(message="killed")}
        run_directories.write_run_result(tmp_path / run.id, make_toy_result(run, **lost))
    display.show_plans("watch", [rounds[0]], tmp_path, {}, lambda plans: plans)
    assert "one: its learning rate is unknown: no result at 0.2 with seed 7, 0.3" in capsys.readouterr().out


@pytest.fixture
def run_sweep(monkeypatch, tmp_path):
    """`run_sweep(plans, make_result)`: runs a sweep whose tuning extends the plan to each of `plans` in turn.

    Each run gets the result that `make_result` returns. Returns the exit status, and how many runs were
    trained each time.
    """
    train_counts = []

    def call(plans, make_result=make_toy_result):
        next_plans = iter(plans)

        def train(_self, runs, _plans):
            train_counts.append(len(runs))
            for run in runs:
                run_directories.write_run_config(tmp_path / "runs", run)
                run_directories.write_run_result(tmp_path / "runs" / run.id, make_result(run))
            return 0

        monkeypatch.setattr(engine._Sweep, "build_plans", lambda _self: [next(next_plans)])
        monkeypatch.setattr(engine._Sweep, "extend_plans", lambda _self, _plans: [next(next_plans)])
        monkeypatch.setattr(engine._Sweep, "launch_runs", train)
        monkeypatch.setattr(engine._Sweep, "time_arms", lambda *_: None)
        monkeypatch.setattr(reporting, "assemble_report", lambda *_: None)
        monkeypatch.setattr(reporting, "publish_report", lambda *_: None)
        monkeypatch.setattr(reporting, "combine_reports", lambda *_: [])
        folders = (tmp_path / "runs", tmp_path / "reports")
        return engine._Sweep([], None, None, {}, {"mode": "none"}, *folders, None, None).run(), train_counts

    return call


def test_sweep_extends_plan_until_all_rates_are_known(rounds, run_sweep):
    assert run_sweep(rounds) == (0, [12, 8, 12, 6])


def test_arm_with_lost_tuning_run_is_not_trained_and_sweep_fails(rounds, run_sweep, capsys):
    def make_lost_result(run):
        killed = {"status": "killed", "metrics": {}, "failure": Failure(message="killed")}
        return make_toy_result(run, **(killed if run.arm.startswith("one") else {}))

    def keep_rate_unknown(plan):
        return replace(
            plan, tuning=replace(plan.tuning, arms={**plan.tuning.arms, "one": rounds[0].tuning.arms["one"]})
        )

    status, train_counts = run_sweep([rounds[0], *map(keep_rate_unknown, rounds[1:])], make_lost_result)
    assert (status, train_counts[-1]) == (engine.FAILED, 4)
    out = capsys.readouterr().out
    assert "one not trained: its learning rate is unknown: no result at 0.2 with seed 7" in out
    assert "failed earlier" not in out, "no run of the comparison was tried"


def test_runs_of_untuned_arms_do_not_count_in_report(rounds, tmp_path, monkeypatch):
    reports = []
    monkeypatch.setattr(
        report_files, "write_report", lambda _folder, document, _runs: reports.append(document)
    )
    for run in rounds[0].runs:
        run_directories.write_run_config(tmp_path, run)
        run_directories.write_run_result(tmp_path / run.id, make_toy_result(run))
    reporting.publish_report(
        reporting.assemble_report(rounds[0], tmp_path, None, []), tmp_path, tmp_path / "reports"
    )
    assert reports[0].verdict.finished == 0
    reporting.publish_report(
        reporting.assemble_report(replace(rounds[0], tuning=None), tmp_path, None, []),
        tmp_path,
        tmp_path / "reports",
    )
    assert reports[1].verdict.finished == 6


def test_committed_tuned_file_is_read_by_defaults(plan_toy, rounds, tmp_path):
    def copy_conf(name):
        folder = Path(copytree(TOY / "conf", tmp_path / name))
        file = folder / "experiment" / "heads.yaml"
        head, rest = file.read_text().split("\n", 1)
        tune = TUNE.replace("=", ": ", 1).replace(":[", ": [")
        file.write_text(f"{head}\ndefaults:\n  - optional /tuned: heads\n{tune}\n{rest}")
        (folder / "tuned").mkdir()
        copy(CONF / "tuned" / "none.yaml", folder / "tuned")
        return folder

    line, before, after = "+experiment=heads", copy_conf("before"), copy_conf("after")
    [first] = plan_toy(line, conf=before)
    assert {run.id for run in first.tuning_runs} == {run.id for run in rounds[0].tuning_runs}
    rounds[-1].tuning.write_yaml(after / "tuned" / "heads.yaml", "heads")
    [plan] = plan_toy(line, conf=after)
    assert plan.tuning.committed
    assert (plan.tuning_runs, plan.untuned_arms, plan.changed, plan.title) == ([], [], (), "heads")
    assert {run.id for run in plan.runs} == {run.id for run in rounds[-1].runs}
    [tuned_again] = plan_toy(line, "tuned=none", conf=after)
    assert {run.id for run in tuned_again.tuning_runs} == {run.id for run in rounds[0].tuning_runs}
    [untuned] = plan_toy(line, "tune=null", conf=after)
    assert (untuned.tuning, untuned.tuning_runs) == (None, [])
    assert {run.config["optim"]["lr"] for run in untuned.runs} == {0.1}
    with pytest.raises(InvalidConfig, match=r"tuned=head: tuned/head\.yaml not found"):
        plan_toy(line, "tuned=head", conf=after)


def test_interim_analyses_continue_at_tuned_rates(plan_toy, rounds, tmp_path):
    results = {run.id: make_toy_result(run) for run in rounds[-1].tuning_runs}
    [plan] = plan_toy("+experiment=heads", TUNE, "looks=[2,4]", "seeds=null", lookup=results.get)
    assert not plan.untuned_arms
    assert {run.id for run in plan.tuning_runs} == results.keys(), (
        "the same runs, independent of the number of compared seeds"
    )
    assert {run.seed for run in plan.runs} == {0, 1, 2, 3}
    first_analysis = {run.id for run in interim_status.find_required_runs(plan, tmp_path)}
    assert first_analysis == {run.id for run in rounds[-1].runs}


@pytest.mark.rare
def test_sweep_tunes_rung_by_rung_and_report_shows_cost(attnlab):
    line = ("+experiment=heads", TUNE, "claims=[]", "arms=[two,four]", "match=none")
    status, out, err = attnlab(*line)
    assert status == 0, err
    rungs = [line.split()[0] for line in out.splitlines() if "runs (learning-rate tuning)" in line]
    assert rungs == ["0/12", "8/19", "15/25"], "the tuning runs so far and the 4 runs of the comparison"
    folder = next((attnlab.folder / "reports").glob("heads~*"))
    document = load_report(folder / "report.json")
    arms = {entry.arm: entry for entry in document.budget.tuning.arms}
    picked = {arm: row.lr for arm, entry in arms.items() for row in entry.rows if row.picked}
    assert picked == {"two": 0.4, "four": 0.8}
    for arm, entry in arms.items():
        assert {row.lr for row in entry.rows if row.median is not None} == set(SEARCHED[arm])
    tuning_tokens = document.budget.find_row("tuning_tokens")
    assert {cell.arm: cell.value for cell in tuning_tokens.cells} == {"two": 100, "four": 110}
    assert arms["two"].comparison_ratio == pytest.approx(100 / (2 * 30))
    assert not any("end of those tried" in warning for warning in document.warnings)
    assert len(attnlab.load_attempts()) == 21 + 4
    assert (folder / "tuned.yaml").exists()
    runs = attnlab.folder / "runs"
    result_file = next(run for run in runs.glob("*/run.json") if json.loads(run.read_text())["seed"] == 7)
    result_file.unlink()  # as after an interruption
    status, out, _ = attnlab(*line)
    assert (status, len(attnlab.load_attempts())) == (0, 21 + 4 + 1), "nothing is trained twice"
    assert "16/19 runs (learning-rate tuning)" in out
