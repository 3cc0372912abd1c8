"""Effective speed-up of an arm: its factors, its interval, and its place in every rendering."""

import json
import math
from dataclasses import replace

import ledger
import pytest
from synthetic import World, build_context, build_provenance, build_timing, write_runs
from test_training_equivalence import EXPERIMENT_FILE, build_calibration

from attnlab import stats
from attnlab.report import frames
from attnlab.report.pages.html import render_html
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.report_builder import build_report
from attnlab.report.schema import TimingInterval
from attnlab.report.tables.effective_speedup import (
    Factor,
    build_speedup_table,
    compute_speedup,
    explain_speedups,
    format_factor,
    format_speedup,
    list_speedups,
)
from attnlab.sweep import wandb_tables

pytestmark = pytest.mark.usefixtures("blank_charts")
WORLD = World(seeds=list(range(8)))
STEP_TOKENS = 512


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("runs"), WORLD)


def time_arms(arms=("mha", "gqa", "mqa")):
    """Add throughputs to the step times of some arms, as `measure.step_timing` does."""
    timing = build_timing(WORLD)
    rows = {}
    for arm, row in timing.arms.items():
        samples = [1e3 * STEP_TOKENS / sample for sample in row["train_step_ms"].samples]
        throughput = TimingInterval(median=1.0, low=None, high=None, samples=samples)
        rows[arm] = row | ({"train_tokens_per_s": throughput} if arm in arms else {})
    return timing.model_copy(update={"arms": rows})


def make_report(runs, timing, calibration):
    context = replace(build_context(WORLD, **EXPERIMENT_FILE), compute_calibration=calibration)
    return build_report(context, runs, timing, build_provenance())


@pytest.fixture(scope="module")
def report(runs):
    return make_report(runs, time_arms(), build_calibration())


def test_speedup_is_token_multiplier_times_relative_throughput(report):
    gqa, mqa = list_speedups(report)
    training = next(row.training_equivalent for row in report.effects if row.arm == "gqa")
    assert gqa.token_multiplier.estimate == pytest.approx(2 ** (-0.004 / 0.25))
    assert (gqa.token_multiplier.low, gqa.token_multiplier.high) == (1 + training.low, 1 + training.high)
    assert gqa.throughput.estimate == pytest.approx(21 / 20, rel=0.01), "steps of 20 ms against 21 ms"
    assert gqa.throughput.low < 21 / 20 < gqa.throughput.high
    assert gqa.effective.estimate == pytest.approx(gqa.token_multiplier.estimate * gqa.throughput.estimate)
    distance = math.hypot(
        math.log(gqa.token_multiplier.low / gqa.token_multiplier.estimate),
        math.log(gqa.throughput.low / gqa.throughput.estimate),
    )
    assert gqa.effective.low == pytest.approx(gqa.effective.estimate * math.exp(-distance))
    assert mqa.effective.estimate < 1 < gqa.effective.estimate, "mqa is faster per step and slower overall"


def test_interval_of_throughput_is_that_of_a_claim_about_its_ratio(report):
    gqa, timing = list_speedups(report)[0], report.timing
    blocks = [timing.get_time(arm, "train_tokens_per_s").blocks for arm in ("gqa", "mha")]
    assert {len(block) for block in blocks[0]} == {2}
    ratio = stats.bootstrap_ratio(*blocks)
    assert (gqa.throughput.low, gqa.throughput.high) == ratio.interval(0.95)


def test_speedup_per_flop_divides_by_the_counted_flops(report):
    rows = []
    for row in report.budget.rows:
        cells = [cell.model_copy(update={"ratio": 0.8 if cell.arm == "gqa" else 1.0}) for cell in row.cells]
        rows.append(row.model_copy(update={"cells": cells}) if row.key == "flops_per_token" else row)
    cheaper = report.model_copy(update={"budget": report.budget.model_copy(update={"rows": rows})})
    gqa, mqa = list_speedups(cheaper)
    for end in ("estimate", "low", "high"):
        assert getattr(gqa.per_flop, end) == pytest.approx(getattr(gqa.token_multiplier, end) / 0.8)
    assert mqa.per_flop == mqa.token_multiplier
    without = [row for row in rows if row.key != "flops_per_token"]
    unknown = report.model_copy(update={"budget": report.budget.model_copy(update={"rows": without})})
    assert list_speedups(unknown)[0].per_flop is None
    assert build_speedup_table(unknown)[0][-2:] == ["–", "–"]


@pytest.mark.parametrize(("has_times", "has_calibration"), [(False, True), (True, False)])
def test_speedup_needs_both_times_and_calibration(runs, has_times, has_calibration):
    timing = time_arms() if has_times else None
    report = make_report(runs, timing, build_calibration() if has_calibration else None)
    assert list_speedups(report) == []
    for page in (render_html(report), render_markdown(report)):
        assert "speed-up" not in page
        assert "implementation's" not in page


def test_arm_that_was_not_timed_has_no_speedup(runs):
    report = make_report(runs, time_arms(("mha", "mqa")), build_calibration())
    assert [row.arm for row in list_speedups(report)] == ["mqa"]
    untimed_baseline = make_report(runs, time_arms(("gqa", "mqa")), build_calibration())
    assert list_speedups(untimed_baseline) == []


def test_arm_with_other_tokens_or_a_parent_has_no_speedup(report):
    effect = report.effects[0]
    assert compute_speedup(report, effect)
    fewer = [
        run.model_copy(update={"budget": run.budget.model_copy(update={"tokens": 1})})
        if run.arm == effect.arm
        else run
        for run in report.runs
    ]
    assert compute_speedup(report.model_copy(update={"runs": fewer}), effect) is None
    rows = [
        row.model_copy(
            update={"cells": [cell.model_copy(update={"value": cell.value * 2}) for cell in row.cells]}
        )
        if row.key == "tokens"
        else row
        for row in report.budget.rows
    ]
    with_parents = report.budget.model_copy(update={"rows": rows})
    assert compute_speedup(report.model_copy(update={"budget": with_parents}), effect) is None


def test_speedups_appear_on_every_page_in_frames_and_in_wandb(report, tmp_path):
    rows = build_speedup_table(report)
    page, markdown = render_html(report), render_markdown(report).replace("\\", "")
    for text in (explain_speedups(report), *(cell for row in rows for cell in row)):
        assert text in markdown
    assert rows[0][3].replace(", ", ",\N{NO-BREAK SPACE}") in page
    for text in (page, markdown):
        assert text.count("on cpu (2 cores), 1 thread") == 1, "the device is named once, not in every cell"
    speedup = list_speedups(report)[0]
    cell = format_speedup(speedup, report)
    assert cell.startswith(f"{rows[0][3]} on cpu (2 cores), 1 thread; per FLOP {rows[0][5]}")
    assert wandb_tables.build_summary(report)["effect/gqa/val/loss/speedup"] == cell
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "report.json").write_text(json.dumps(report.to_dict()))
    for path in ledger.write_ledger(tmp_path):
        text = path.read_text()
        assert f"; effective speed-up {cell}" in text
        assert text.count("another kernel or device gives another figure") == 1
    effects = frames.load(tmp_path / "one", "pyarrow").effects.to_pylist()
    assert effects[0]["speedup"] == pytest.approx(speedup.effective.estimate)
    assert effects[0]["speedup_low"] == pytest.approx(speedup.effective.low)
    assert effects[0]["speedup_per_flop_high"] == pytest.approx(speedup.per_flop.high)


def test_ledger_without_times_mentions_no_speedup(runs, tmp_path):
    report = make_report(runs, None, build_calibration())
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "report.json").write_text(json.dumps(report.to_dict()))
    for path in ledger.write_ledger(tmp_path):
        assert "speed-up" not in path.read_text()


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (Factor(1.19, 1.02, 1.4), "1.19× [1.02×, 1.40×]"),
        (Factor(0.0312, 0.0011, 12.5), "0.031× [0.0011×, 12.50×]"),
        (Factor(0.5, None, 0.9), "0.50× [unbounded, 0.90×]"),
        (Factor(0.5, None, None), "0.50× unbounded"),
    ],
)
def test_format_of_a_factor(factor, text):
    assert format_factor(factor) == text
