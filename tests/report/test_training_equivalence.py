"""Differences as training compute in every rendering; margins in training compute, with and without a
calibration.
"""

import json
from dataclasses import replace

import ledger
import pytest
from rendering import read_table, render_markdown, render_texts
from synthetic import World, build_context, build_provenance, declare_claim, replace_fields, write_runs

from attnlab import stats
from attnlab.report.report_builder import build_report
from attnlab.report.schema import CalibrationResult, CalibrationRow, Report, Slope, TrainingEquivalent
from attnlab.report.tables import claim_sources
from attnlab.report.tables.wording import describe_claim, format_training
from attnlab.sweep.plan.compute_calibration.compute_calibration import format_slope

WORLD = World(seeds=list(range(8)))
SLOPES = [0.24, 0.25, 0.26]
CLAIMS = [
    declare_claim("gqa costs less than the margin", "gqa", "below", "margin"),
    declare_claim("mqa costs more than a tenth", "mqa", "above", {"training": "10 %"}),
    declare_claim("mqa costs more than 0.05", "mqa", "above", 0.05),
    declare_claim("half the cache", "gqa", "below", 0.51, metric="kv_bytes_per_token", compare="ratio"),
]  # fmt: skip


EXPERIMENT_FILE = {
    "claims": CLAIMS, "margin": {"training": "5 %", "at_most": 0.03},
    "compute_calibration": {"seeds": [200, 201, 202]}
}  # fmt: skip


def build_calibration(slopes=SLOPES, reason=None):
    """Build a calibration result as the sweep plan computes it."""
    estimate = stats.estimate_paired_difference(slopes)
    bounds = dict(zip(("low", "high"), estimate.interval, strict=True))
    rows = [
        CalibrationRow(seed=200 + i, half=2 + slope, twice=2 - slope, ids=[f"half{i}", f"twice{i}"])
        for i, slope in enumerate(slopes)
    ]
    return CalibrationResult(
        metric="val/loss",
        seeds=[200, 201, 202],
        steps=[201, 401, 802],
        tokens=1_234_567,
        rows=rows,
        slopes=slopes,
        slope=Slope(mean=estimate.mean, **bounds, level=0.95),
        loss_per_doubling=None if reason else format_slope(estimate.mean, **bounds),
        reason=reason,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("runs"), WORLD)


def make_report(runs, calibration, **changes):
    settings = EXPERIMENT_FILE | changes
    file = {key: settings[key] for key in ("claims", "margin")} | {"baseline": "mha", "metric": "val/loss"}
    context = replace(build_context(WORLD, **settings), compute_calibration=calibration)
    return build_report(context, runs, None, build_provenance(preregistered=file))


@pytest.fixture(scope="module")
def report(runs):
    return make_report(runs, build_calibration())


def test_margin_in_training_compute_has_a_value_in_nats(report):
    assert Report.model_validate(report.to_dict()) == report
    margin = report.experiment.margin
    assert margin == 0.0185
    assert report.experiment.margin_text == (
        "5% of training compute, at most 0.03 nats: 0.0185 nats "
        "(loss per doubling of compute: 0.250 nats, 95% CI [0.225, 0.275])"
    )
    assert [claim.threshold for claim in report.verdict.claims] == [0.0185, 0.038, 0.05, 0.51]
    assert report.effects[0].margin == margin
    gqa = report.verdict.claims[0]
    assert gqa.verdict == "SUPPORTED"
    assert ", margin +0.0185 (5% of training compute, at most 0.03 nats): non-inferior (S" in describe_claim(
        gqa
    )


def test_only_differences_in_loss_are_converted_to_training_compute(report):
    [gqa, mqa, plain, cache] = report.verdict.claims
    effects = {row.arm: row for row in report.effects}
    for claim in (gqa, mqa, plain):
        assert claim.training_equivalent == effects[claim.arm].training_equivalent
        assert f"; equivalent to {format_training(claim.training_equivalent)}" in describe_claim(claim)
    assert gqa.training_equivalent.compute_change == pytest.approx(2 ** (-0.004 / 0.25) - 1)
    assert format_training(gqa.training_equivalent).startswith("−1% training compute, 95% CI [")
    assert (
        mqa.training_equivalent.low
        < mqa.training_equivalent.compute_change
        < mqa.training_equivalent.high
        < 0
    ), "a higher loss: less training"
    assert cache.training_equivalent is None
    assert "training" not in describe_claim(cache)


def test_training_compute_appears_in_tables_and_in_the_ledger(report, tmp_path):
    texts = [format_training(row.training_equivalent) for row in report.effects]
    markdown = render_markdown(report)
    for text in (
        *texts,
        report.experiment.margin_text,
        report.compute_calibration.summary,
        "1,234,567 tokens",
        "mha at 201 (half, rounded up) and at 802 steps instead of 401, seeds 200",
    ):
        assert text in markdown
    records = read_table(report, "effects")
    for row, record in zip(report.effects, records, strict=True):
        training = row.training_equivalent
        ends = [record[f"training{end}"] for end in ("", "_low", "_high")]
        assert ends == [training.compute_change, training.low, training.high]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "report.json").write_text(json.dumps(report.to_dict()))
    for page_path in ledger.write_ledger(tmp_path):
        page = page_path.read_text().replace("\\", "").replace("\N{NO-BREAK SPACE}", " ")
        assert texts[0] in page
        assert "5% of training compute, at most 0.03 nats" in page


def test_claim_is_matched_by_a_threshold_in_training_compute(report):
    unknown_experiment = replace_fields(report.experiment, name="of_nobody")
    report = replace_fields(report, experiment=unknown_experiment)
    assert claim_sources.reword_report(report) == report
    file = {"margin": {"training": "5 %", "at_most": 0.03}, "claims": [{**CLAIMS[0], "says": "mended"}]}
    claims = claim_sources._fill_claims(file, report)
    assert claim_sources.find_same_claim(report.verdict.claims[0], claims).says == "mended"
    other = claim_sources._fill_claims({**file, "margin": {"training": "6 %"}}, report)
    assert claim_sources.find_same_claim(report.verdict.claims[0], other) is None, (
        "another margin is another claim"
    )


def test_threshold_in_training_compute_without_a_slope_is_no_result(runs):
    reason = "doubling the training compute lowers the loss by 0.1 nats [-0.2, 0.4], an interval with 0"
    report = make_report(runs, build_calibration(reason=reason))
    assert Report.model_validate(report.to_dict()) == report
    [gqa, mqa, plain, cache] = report.verdict.claims
    assert [claim.verdict for claim in (gqa, mqa)] == ["NO RESULT"] * 2
    assert describe_claim(gqa) == (
        f"gqa vs mha: 5% of training compute, at most 0.03 nats has no known value in nats: {reason} "
        "(NO RESULT)."
    )
    assert plain.verdict == "SUPPORTED", "a threshold in nats needs no slope"
    assert plain.training_equivalent is None
    assert cache.verdict == "SUPPORTED"
    assert report.experiment.margin is None
    assert f"unknown in nats: {reason}" in render_markdown(report)


def test_report_without_a_calibration_mentions_no_training_compute(runs):
    report = make_report(runs, None, claims=CLAIMS[2:], margin=0.03, compute_calibration=None)
    assert report.compute_calibration is None
    page = "".join(render_texts(report))
    assert "training compute" not in page
    assert "per doubling" not in page


@pytest.mark.parametrize(
    ("share", "low", "high", "text"),
    [
        (-0.05, -0.09, 0.0, "−5% training compute, 95% CI [−9%, +0%]"),
        (-0.004, -0.008, -0.001, "−0.4% training compute, 95% CI [−0.8%, −0.1%]"),
        (0.0, -0.02, 0.02, "0% training compute, 95% CI [−2%, +2%]"),
        (-0.5, None, -0.1, "−50% training compute, 95% CI [unbounded, −10%]"),
        (-0.5, None, None, "−50% training compute, 95% CI unbounded"),
        (3.0, 1.0, 12.5, "+300% training compute, 95% CI [+100%, +1,250%]"),
        (-0.998, -0.999, -0.9, "−99.8% training compute, 95% CI [−99.9%, −90%]"),
    ],
)
def test_format_of_training_compute(share, low, high, text):
    training = TrainingEquivalent(compute_change=share, low=low, high=high, level=0.95)
    assert format_training(training) == text
    assert format_training(training, "") == text.replace(" training compute", "")
