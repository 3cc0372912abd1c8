"""Public results judged again: the published figures are reproduced, and docs/real_gain.md has our answers.

The files in `published` hold final losses from github.com/karpathy/nanochat/pull/807 and from the logs of
github.com/KellerJordan/modded-nanogpt/pull/264. Of pull request 807 one arm has its runs published; p =
0.0006 at 7 runs a side stands for the other, at equal spread.
"""

import math
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


def list_losses(runs):
    return np.array([run.values[0] for run in runs])


def format_interval(decision):
    return f"[{decision.low:+.5f}, {decision.high:+.5f}]".replace("-", "\u2212")


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
    losses = list_losses(read_arm(file, arm))
    assert (len(losses), losses.mean()) == (count, pytest.approx(mean, abs=6e-6))
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
    judgments = [
        judge_runs(*sides, QUESTION.model_copy(update={"looks": looks})) for looks in ("once", "anytime")
    ]
    once, anytime = (judgment.decision for judgment in judgments)
    assert (once.holds, anytime.holds, judgments[0].required_runs) == (holds, holds, required)
    assert format_interval(once) in PAGE
    assert required is None or f"{required} runs a side" in PAGE
    assert anytime.low < once.low < once.high < anytime.high


def test_the_rerun_ends_at_the_first_p_value_below_the_rule():
    losses = list_losses(read_arm(MAY, "gated_1410"))
    path = [compute_bar_p_value(losses[:n]) for n in range(4, 12)]
    assert min(path[:-1]) > 0.01 > path[-1]
    *first, last = (f"{p:.2g}" for p in path)
    assert f"{', '.join(first)} and {last} after 4 to 11 runs" in PAGE
    t = (BAR - losses.mean()) / losses.std(ddof=1) * len(losses) ** 0.5
    assert f"is {stats.AnytimeValid().p_value(len(losses), t):.3f}" in PAGE


def test_seven_runs_a_side_of_nanochat():
    runs = read_runs(HERE / "nanochat_807_baseline.csv", "val_bpb")
    first = list_losses(runs[:7])
    seven, all_runs = (measure_noise_floor(some, "val_bpb", "last") for some in (runs[:7], runs))
    gain = scipy_stats.t.isf(0.0003, 12) * first.std(ddof=1) * (2 / 7) ** 0.5
    [detectable] = [row["difference"] for row in all_runs["detectable"] if row["runs_per_side"] == 7]
    for text in (
        f"{seven['sd']:.6f}",
        f"{all_runs['sd']:.6f}",
        f"between {seven['sd_interval']['low']:.6f} and {seven['sd_interval']['high']:.5f}",
        f"show differences above {detectable:.5f}",
        f"difference of {gain:.5f} bits per byte",
    ):
        assert text in PAGE
    assert scipy_stats.ttest_ind(first - gain, first).pvalue == pytest.approx(0.0006)
    for rule, expected in {
        stats.AnytimeValid(): [None, None, None, False],
        stats.GroupSequential((7, 12, 20), 0): [True, True, None, False],
    }.items():
        evidence = stats.GroupDifferences(first - gain, first, rule)
        tests = [stats.ClaimTest(evidence, (-math.inf, -margin)) for margin in (1e-5, 1e-4, 5e-4, 1e-3)]
        decisions = [stats.decide_claims([test], 0.05)[0] for test in tests]
        assert [decision.holds for decision in decisions] == expected
        assert format_interval(decisions[-1]) in PAGE
