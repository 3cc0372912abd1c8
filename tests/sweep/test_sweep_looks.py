"""Seeds come in looks: an arm gets the next ones while a claim about it is open, and no longer."""

import os
import signal

import pytest
from processes import wait_until

from attnlab.report.schema import load
from attnlab.store import runs
from attnlab.sweep.execute import worker
from attnlab.sweep.status import looks, show

CLAIMS = (
    "claims=[{says: four heads cost less than a half, arm: four, is: below, threshold: 0.5},"
    "{says: one head costs nothing, arm: one, is: below, threshold: %s}]"
)


@pytest.fixture
def looked(planned, tmp_path, monkeypatch):
    """`looked(threshold)`: a plan with looks at 2, 4 and 6 seeds, and what trains the runs it needs."""
    monkeypatch.chdir(tmp_path)

    def call(threshold):
        [plan] = planned(
            "+experiment=heads", CLAIMS % threshold, "match=none", "held=[]", "looks=[2,4,6]", "seeds=null"
        )
        root = tmp_path / "runs"

        def train():
            new = [run for run in looks.needed(plan, root) if runs.record(root / run.id) is None]
            for run in new:
                runs.write_spec(root, run)
                assert worker.train(root / run.id) == 0
            return sorted((run.arm, run.seed) for run in new)

        return plan, train

    return call


def test_a_decided_arm_gets_no_more_seeds_and_an_open_one_does(looked):
    plan, train = looked(threshold=-0.038)
    assert plan.experiment.seeds == [0, 1, 2, 3, 4, 5]
    assert train() == [(arm, seed) for arm in ("four", "one", "two") for seed in (0, 1)]
    assert train() == [(arm, seed) for arm in ("one", "two") for seed in (2, 3)]
    assert train() == [(arm, seed) for arm in ("one", "two") for seed in (4, 5)]
    assert train() == []


def test_a_look_that_was_broken_off_is_made_once_it_is_whole(looked, tmp_path):
    plan, train = looked(threshold=-0.038)
    train()
    train()
    folder = tmp_path / "runs" / next(run.id for run in plan.runs if (run.arm, run.seed) == ("one", 3))
    record = (folder / "run.json").read_bytes()
    (folder / "run.json").unlink()
    assert [(run.arm, run.seed) for run in looks.needed(plan, tmp_path / "runs") if run.seed > 3] == []
    (folder / "run.json").write_bytes(record)
    assert train() == [(arm, seed) for arm in ("one", "two") for seed in (4, 5)]


def told(plan, root):
    """(arm, seed) -> its state, of the runs that have not ended."""
    states = looks.states(plan, root)
    return {(run.arm, run.seed): str(states[run.id]) for run in plan.runs if states[run.id].word != "done"}


def test_what_is_to_train_is_what_is_needed_by_now_and_the_rest_says_when(looked, tmp_path):
    plan, train = looked(threshold=-0.038)
    root = tmp_path / "runs"
    before = told(plan, root)
    assert {before[arm, 1] for arm in ("one", "two", "four")} == {"to train"}
    assert before["four", 2] == "later  at interim analysis 2 of 3, if it is still inconclusive"
    assert looks.lines(plan, root)[0].endswith(": interim analysis 1 of 3 waits for 2 seeds")
    train()
    after = told(plan, root)
    assert {after["four", seed] for seed in (2, 3, 4, 5)} == {"not needed  no claim about its arm is open"}
    assert after["one", 3] == after["two", 3] == "to train"
    assert after["one", 4] == "later  at interim analysis 3 of 3, if it is still inconclusive"
    assert looks.lines(plan, root) == [
        "claim 1, four heads cost less than a half: SUPPORTED, stopped at interim analysis 1 of 3",
        "claim 2, one head costs nothing: INCONCLUSIVE, inconclusive after 1 of 3 interim analyses, "
        "interim analysis 2 of 3 waits for 4 seeds",
    ]
    assert show._open([plan], root)


def test_a_watch_ends_with_the_runs_that_are_needed_and_not_with_the_last_of_the_plan(
    looked, tmp_path, monkeypatch
):
    plan, train = looked(threshold=50)
    assert show._open([plan], tmp_path / "runs")
    train()
    assert not show._open([plan], tmp_path / "runs")
    monkeypatch.delattr(looks, "_decided")  # what was decided on the same records is kept
    assert len(told(plan, tmp_path / "runs")) == 12


def test_the_command_trains_look_by_look_and_the_page_says_at_which_it_was_decided(attnlab):
    line = ("+experiment=heads", "arms=[two,four]", "match=none", "held=[]", "looks=[2,4,6]", "seeds=null")
    status, out, err = attnlab(*line, "paths.reports=reports")
    assert status == 0, err
    seeds = sorted(int(seed) for _, seed, *_ in attnlab.trained())
    assert seeds == [0, 0, 1, 1]
    later = "8 at later interim analyses, as far as claims are inconclusive then"
    assert f"12 runs, 0 done, 4 to train, {later}\n" in out
    assert "failed" not in out, "what waits for a later look"
    assert "Stopped at interim analysis 1 of 3, 2 paired seeds." in out
    [path] = attnlab.folder.glob("reports/*/report.json")
    report = load(path)
    assert (report.verdict.finished, report.verdict.planned) == (4, 4)
    [claim] = report.verdict.claims
    assert claim.looks.planned == [2, 4, 6]
    assert [look.seeds for look in claim.looks.made] == [2]


def verdict(folder):
    """What a report decided, and on what."""
    [path] = folder.glob("reports/*/report.json")
    found = load(path).verdict
    return [(claim.verdict, claim.looks, claim.decision) for claim in found.claims], found.exploratory


@pytest.mark.rare
def test_killed_within_a_look_the_same_command_goes_on_and_decides_the_same(attnlab, tmp_path):
    line = (
        "+experiment=heads", "arms=[two,one]", "match=none", "held=[]", "looks=[2,4,6]", "seeds=null",
        "claims=[{says: one head costs nothing, arm: one, is: below, threshold: -0.038}]",
    )  # fmt: skip
    assert attnlab(*line)[0] == 0
    whole = verdict(attnlab.folder)
    for name in ("runs", "reports", "trained"):
        (attnlab.folder / name).rename(attnlab.folder / f"whole {name}")
    process = attnlab.start(*line, "model.act=slow")
    wait_until(lambda: any(int(seed) > 1 for _, seed, *_ in attnlab.trained()), 60)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    status, _, err = attnlab(*line, "model.act=slow")
    assert status == 0, err
    assert sorted({int(seed) for _, seed, *_ in attnlab.trained()}) == [0, 1, 2, 3, 4, 5]
    assert verdict(attnlab.folder) == whole
