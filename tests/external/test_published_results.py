"""Public results judged again: the published figures are reproduced, and docs/real_gain.md has our answers.

The files in `published` hold final losses from github.com/karpathy/nanochat/pull/807 and from the logs of
github.com/KellerJordan/modded-nanogpt/pull/264. Of pull request 807 one arm has its runs published; p =
0.0006 at 7 runs a side stands for the other, at equal spread.
"""

import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab import stats
from attnlab.external.judgment import judge_runs
from attnlab.external.noise_floor import measure_noise_floor
from attnlab.external.question import Question
from attnlab.external.result_files import read_runs

HERE = Path(__file__).parent / "published"
PAGE = (Path(__file__).parents[2] / "docs" / "real_gain.md").read_text("utf-8")
APRIL, MAY = "modded_nanogpt_264_april.csv", "modded_nanogpt_264_may.csv"
QUESTION = Question(metric="val_loss", lower_is_better=True, margin=0.001)
BAR = 3.28  # the loss that a record must reach


def read_arm(file, arm):
    return [run for run in read_runs(HERE / file, "val_loss", "arm") if run.arm == arm]


def list_losses(file, arm):
    return [run.values[0] for run in read_arm(file, arm)]


def format_interval(decision, digits=5):
    return f"[{decision.low:+.{digits}f}, {decision.high:+.{digits}f}]".replace("-", "\u2212")


def compute_bar_p_value(losses):
    return scipy_stats.ttest_1samp(losses, BAR, alternative="less").pvalue


@pytest.mark.parametrize(
    ("file", "arm", "count", "mean", "p"),
    [
        (APRIL, "baseline_1440", 10, 3.27941, 0.1151),
        (APRIL, "baseline_1410", 10, 3.28316, 1.0),
        (APRIL, "gated_1410", 10, 3.27865, 0.0014),
        (MAY, "baseline_1440", 7, 3.27987, 0.264),
        (MAY, "gated_1410", 11, 3.27890, 0.0056),
    ],
)
def test_published_means_and_p_values(file, arm, count, mean, p):
    losses = list_losses(file, arm)
    assert len(losses) == count
    assert statistics.mean(losses) == pytest.approx(mean, abs=6e-6)
    assert compute_bar_p_value(losses) == pytest.approx(p, abs=6e-4)


@pytest.mark.parametrize(
    ("file", "against", "holds", "required"),
    [
        (APRIL, "baseline_1440", None, 437),
        (MAY, "baseline_1440", None, None),
        (APRIL, "baseline_1410", True, 3),
    ],
)
def test_a_gate_is_better_at_equal_steps_and_undecided_with_fewer(file, against, holds, required):
    sides = read_arm(file, against), read_arm(file, "gated_1410")
    once, anytime = (
        judge_runs(*sides, QUESTION.model_copy(update={"looks": looks})) for looks in ("once", "anytime")
    )
    assert (once.decision.holds, anytime.decision.holds) == (holds, holds)
    assert once.required_runs == required
    assert format_interval(once.decision) in PAGE
    assert required is None or f"{required} runs a side" in PAGE
    assert anytime.decision.low < once.decision.low < once.decision.high < anytime.decision.high


def test_the_rerun_ends_at_the_first_p_value_below_the_rule():
    losses = list_losses(MAY, "gated_1410")
    path = [compute_bar_p_value(losses[:n]) for n in range(4, 12)]
    assert min(path[:-1]) > 0.01 > path[-1]
    *first, last = (f"{p:.2g}" for p in path)
    assert f"{', '.join(first)} and {last} after 4 to 11 runs" in PAGE
    t = (BAR - statistics.mean(losses)) / statistics.stdev(losses) * len(losses) ** 0.5
    assert f"is {stats.AnytimeValid().p_value(len(losses), t):.3f}" in PAGE


def test_seven_runs_a_side_of_nanochat():
    runs = read_runs(HERE / "nanochat_807_baseline.csv", "val_bpb")
    first = np.array([run.values[0] for run in runs[:7]])
    for count in (7, 20):
        assert f"{measure_noise_floor(runs[:count], 'val_bpb', 'last')['sd']:.6f}" in PAGE
    sd_of_seven = measure_noise_floor(runs[:7], "val_bpb", "last")["sd_interval"]
    assert f"between {sd_of_seven['low']:.6f} and {sd_of_seven['high']:.5f}" in PAGE
    rows = measure_noise_floor(runs, "val_bpb", "last")["detectable"]
    detectable = next(row["difference"] for row in rows if row["runs_per_side"] == 7)
    assert f"show differences above {detectable:.5f}" in PAGE
    gain = scipy_stats.t.isf(0.0003, 12) * first.std(ddof=1) * (2 / 7) ** 0.5
    assert f"difference of {gain:.5f} bits per byte" in PAGE
    assert scipy_stats.ttest_ind(first - gain, first).pvalue == pytest.approx(0.0006)
    rules = {"anytime": stats.AnytimeValid(), "looks": stats.GroupSequential((7, 12, 20), 0)}
    intervals, decisions = {}, {}
    for name, rule in rules.items():
        evidence = stats.GroupDifferences(first - gain, first, rule)
        for margin in (1e-5, 1e-4, 5e-4, 1e-3):
            [decision] = stats.decide_claims([stats.ClaimTest(evidence, (-math.inf, -margin))], 0.05)
            decisions[name, margin], intervals[name] = decision.holds, format_interval(decision)
    assert [decisions["anytime", margin] for margin in (1e-5, 1e-4, 5e-4, 1e-3)] == [None, None, None, False]
    assert [decisions["looks", margin] for margin in (1e-5, 1e-4, 5e-4, 1e-3)] == [True, True, None, False]
    assert all(interval in PAGE for interval in intervals.values())
