"""Interim analyses in a sweep: an arm gets further seeds only while a claim about it is pending."""

import os
import signal

import pytest
from processes import wait_until

from attnlab.report.schema import load_report
from attnlab.store import run_directories
from attnlab.sweep.execute import worker
from attnlab.sweep.status import display, interim_status

CLAIMS = (
    "claims=[{says: four heads cost less than a half, arm: four, is: below, threshold: 0.5},"
    "{says: one head costs nothing, arm: one, is: below, threshold: %s}]"
)


@pytest.fixture
def plan_with_analyses(plan_toy, tmp_path, monkeypatch):
    """`plan_with_analyses(threshold)`: a plan with analyses at 2, 4 and 6 seeds, and its training function.

    The function trains the runs required by now and returns their arms and seeds.
    """
    monkeypatch.chdir(tmp_path)

    def call(threshold):
        [plan] = plan_toy(
            "+experiment=heads",
            CLAIMS % threshold,
            "match=none",
            "controlled=[]",
            "looks=[2,4,6]",
            "seeds=null",
        )
        root = tmp_path / "runs"

        def train():
            new = [
                run
                for run in interim_status.find_required_runs(plan, root)
                if run_directories.load_run_result(root / run.id) is None
            ]
            for run in new:
                run_directories.write_run_config(root, run)
                assert worker.train_run(root / run.id) == 0
            return sorted((run.arm, run.seed) for run in new)

        return plan, train

    return call


def test_only_arms_with_pending_claims_get_more_seeds(plan_with_analyses):
    plan, train = plan_with_analyses(threshold=-0.038)
    assert plan.experiment.seeds == [0, 1, 2, 3, 4, 5]
    assert train() == [(arm, seed) for arm in ("four", "one", "two") for seed in (0, 1)]
    assert train() == [(arm, seed) for arm in ("one", "two") for seed in (2, 3)]
    assert train() == [(arm, seed) for arm in ("one", "two") for seed in (4, 5)]
    assert train() == []


def test_interim_analysis_waits_for_all_its_runs(plan_with_analyses, tmp_path):
    plan, train = plan_with_analyses(threshold=-0.038)
    train()
    train()
    folder = tmp_path / "runs" / next(run.id for run in plan.runs if (run.arm, run.seed) == ("one", 3))
    record = (folder / "run.json").read_bytes()
    (folder / "run.json").unlink()
    assert [
        (run.arm, run.seed)
        for run in interim_status.find_required_runs(plan, tmp_path / "runs")
        if run.seed > 3
    ] == []
    (folder / "run.json").write_bytes(record)
    assert train() == [(arm, seed) for arm in ("one", "two") for seed in (4, 5)]


def load_open_states(plan, root):
    """Map (arm, seed) of each unfinished run to its state."""
    states = interim_status.load_plan_states(plan, root)
    return {(run.arm, run.seed): str(states[run.id]) for run in plan.runs if states[run.id].status != "done"}


def test_run_states_name_the_interim_analysis_that_needs_them(plan_with_analyses, tmp_path):
    plan, train = plan_with_analyses(threshold=-0.038)
    root = tmp_path / "runs"
    before = load_open_states(plan, root)
    assert {before[arm, 1] for arm in ("one", "two", "four")} == {"to train"}
    assert before["four", 2] == "later  at interim analysis 2 of 3, if the claim is still inconclusive"
    assert interim_status.describe_claim_standings(plan, root)[0].endswith(
        ": pending: interim analysis 1 of 3 at 2 seeds"
    )
    train()
    after = load_open_states(plan, root)
    assert {after["four", seed] for seed in (2, 3, 4, 5)} == {"not needed  no claim about its arm is pending"}
    assert after["one", 3] == after["two", 3] == "to train"
    assert after["one", 4] == "later  at interim analysis 3 of 3, if the claim is still inconclusive"
    assert interim_status.describe_claim_standings(plan, root) == [
        "claim 1, four heads cost less than a half: SUPPORTED, stopped at interim analysis 1 of 3",
        "claim 2, one head costs nothing: INCONCLUSIVE, after 1 of 3 interim analyses, "
        "pending: interim analysis 2 of 3 at 4 seeds",
    ]
    summary = "interim analysis 1 of 3: 1 of 2 claims decided"
    assert interim_status.summarize_claim_standings(plan, root) == summary
    assert display._has_unfinished_runs([plan], root)


def test_watch_ends_with_the_required_runs(plan_with_analyses, tmp_path, monkeypatch):
    plan, train = plan_with_analyses(threshold=50)
    assert display._has_unfinished_runs([plan], tmp_path / "runs")
    train()
    assert not display._has_unfinished_runs([plan], tmp_path / "runs")
    monkeypatch.delattr(interim_status, "_decide_claims")  # so that standings come from the cache
    assert len(load_open_states(plan, tmp_path / "runs")) == 12


def test_command_trains_per_interim_analysis_and_reports_the_deciding_one(attnlab):
    line = (
        "+experiment=heads",
        "arms=[two,four]",
        "match=none",
        "controlled=[]",
        "looks=[2,4,6]",
        "seeds=null",
    )
    status, out, err = attnlab(*line, "paths.reports=reports")
    assert status == 0, err
    seeds = sorted(int(seed) for _, seed, *_ in attnlab.load_attempts())
    assert seeds == [0, 0, 1, 1]
    assert "12 runs, 0 done, 4 to train\n0/4 runs (interim analysis 1 of 3); up to 8 more" in out
    assert "failed" not in out, "runs of later analyses are no failures"
    assert "Stopped at interim analysis 1 of 3, 2 paired seeds." in " ".join(out.split())
    [path] = attnlab.folder.glob("reports/*/report.json")
    report = load_report(path)
    assert (report.verdict.finished, report.verdict.planned) == (4, 4)
    [claim] = report.verdict.claims
    assert claim.interim_analyses.planned == [2, 4, 6]
    assert [analysis.seeds for analysis in claim.interim_analyses.completed] == [2]


def load_verdict(folder):
    """Load the decisions of a report and the analyses behind them."""
    [path] = folder.glob("reports/*/report.json")
    section = load_report(path).verdict
    return [
        (claim.verdict, claim.interim_analyses, claim.decision) for claim in section.claims
    ], section.exploratory


@pytest.mark.rare
def test_sweep_killed_during_an_interim_analysis_resumes_with_equal_decisions(attnlab, tmp_path):
    command = (
        "+experiment=heads", "arms=[two,one]", "match=none", "controlled=[]", "looks=[2,4,6]", "seeds=null",
        "claims=[{says: one head costs nothing, arm: one, is: below, threshold: -0.038}]",
    )  # fmt: skip
    assert attnlab(*command)[0] == 0
    reference = load_verdict(attnlab.folder)
    for name in ("runs", "reports", "trained"):
        (attnlab.folder / name).rename(attnlab.folder / f"whole {name}")
    process = attnlab.start(*command, "model.act=slow")
    wait_until(lambda: any(int(seed) > 1 for _, seed, *_ in attnlab.load_attempts()), 60)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    status, _, err = attnlab(*command, "model.act=slow")
    assert status == 0, err
    assert sorted({int(seed) for _, seed, *_ in attnlab.load_attempts()}) == [0, 1, 2, 3, 4, 5]
    assert load_verdict(attnlab.folder) == reference
