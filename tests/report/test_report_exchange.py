"""Differences said as training, wherever they are said; a margin in training, and where nobody knows it."""

import json
from dataclasses import replace

import pytest
from synthetic import World, experiment, provenance, write_runs

from attnlab import stats
from attnlab.report import ledger
from attnlab.report.build import build
from attnlab.report.pages.html import html
from attnlab.report.pages.markdown import markdown
from attnlab.report.schema import ExchangeFound, ExchangeRow, Report, Slope, Training
from attnlab.report.tables import claimed
from attnlab.report.tables.wording import describe_claim, format_training
from attnlab.sweep import wandb_tables
from attnlab.sweep.plan.exchange.told import worth

pytestmark = pytest.mark.usefixtures("blank")
WORLD = World(seeds=list(range(8)))
SLOPES = [0.24, 0.25, 0.26]
CLAIMS = [
    {"says": "gqa costs less than the margin", "arm": "gqa", "is": "below", "threshold": "margin"},
    {"says": "mqa costs more than a tenth", "arm": "mqa", "is": "above", "threshold": {"training": "10 %"}},
    {"says": "mqa costs more than 0.05", "arm": "mqa", "is": "above", "threshold": 0.05},
    {"says": "half the cache", "arm": "gqa", "metric": "kv_bytes_per_token", "compare": "ratio",
     "is": "below", "threshold": 0.51},
]  # fmt: skip


FILE = {
    "claims": CLAIMS, "margin": {"training": "5 %", "at_most": 0.03}, "exchange": {"seeds": [200, 201, 202]}
}  # fmt: skip


def told(slopes=SLOPES, why=None):
    """As the plan has it."""
    mean = stats.paired(slopes)
    ends = dict(zip(("low", "high"), mean.interval, strict=True))
    rows = [
        ExchangeRow(seed=200 + i, half=2 + per, twice=2 - per, ids=[f"half{i}", f"twice{i}"])
        for i, per in enumerate(slopes)
    ]
    return ExchangeFound(
        metric="val/loss",
        seeds=[200, 201, 202],
        steps=[201, 401, 802],
        tokens=1_234_567,
        rows=rows,
        slopes=slopes,
        slope=Slope(mean=mean.mean, **ends, level=0.95),
        worth=None if why else worth(mean.mean, **ends),
        why=why,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("runs"), WORLD)


def report(runs, known, **changes):
    asked = FILE | changes
    file = {key: asked[key] for key in ("claims", "margin")} | {"baseline": "mha", "metric": "val/loss"}
    of_it = replace(experiment(WORLD, **asked, declared=None), exchange=known)
    return build(of_it, runs, None, provenance(declared=file))


@pytest.fixture(scope="module")
def found(runs):
    return report(runs, told())


def test_a_margin_in_training_is_a_number_with_what_a_doubling_is_worth(found):
    assert Report.model_validate(found.plain()) == found
    margin = found.experiment.margin
    assert margin == 0.0185
    assert found.experiment.margin_said == (
        "5 % of training, at most 0.03 nats: 0.0185 nats (a doubling is worth 0.250 nats [0.225, 0.275])"
    )
    assert [claim.threshold for claim in found.verdict.claims] == [0.0185, 0.038, 0.05, 0.51]
    assert found.effects[0].margin == margin
    gqa = found.verdict.claims[0]
    assert gqa.verdict == "SUPPORTED"
    assert ", margin +0.0185 (5 % of training, at most 0.03 nats): non-inferior (S" in describe_claim(gqa)


def test_every_difference_in_the_loss_is_said_as_training_and_nothing_else_is(found):
    [gqa, mqa, plain, cache] = found.verdict.claims
    effects = {row.arm: row for row in found.effects}
    for claim in (gqa, mqa, plain):
        assert claim.training == effects[claim.arm].training
        assert f"; equivalent to {format_training(claim.training)}" in describe_claim(claim)
    assert gqa.training.share == pytest.approx(2 ** (-0.004 / 0.25) - 1)
    assert format_training(gqa.training).startswith("−1% training compute, 95% CI [")
    assert mqa.training.low < mqa.training.share < mqa.training.high < 0, "a higher loss: less training"
    assert cache.training is None
    assert "training" not in describe_claim(cache)


def test_it_is_said_on_every_page_and_to_wandb(found, tmp_path):
    words = [format_training(row.training) for row in found.effects]
    page, text = html(found), markdown(found, {})
    for said in (*words, found.experiment.margin_said, found.exchange.words, "1,234,567 tokens"):
        assert said in page
        assert said in text.replace("\\", "")
    summary = wandb_tables.summary(found)
    assert summary["effect/gqa/val/loss/training"] == words[0]
    assert summary["claim/1/training"] == words[0]
    assert summary["margin"] == found.experiment.margin_said
    columns, rows = wandb_tables.comparison(found)
    assert [row[columns.index("training")] for row in rows] == [None, *words]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "report.json").write_text(json.dumps(found.plain()))
    for written in ledger.write(tmp_path):
        assert words[0] in written.read_text()
        assert "5 % of training, at most 0.03 nats" in written.read_text()


def test_odd_steps_are_rounded_up_and_the_page_says_so(found):
    assert "mha at 201 (half, rounded up) and at 802 steps instead of 401, seeds 200" in html(found)


def test_a_claim_is_known_again_by_a_threshold_in_training(found):
    of_nobody = found.experiment.model_copy(update={"name": "of_nobody"})
    found = found.model_copy(update={"experiment": of_nobody})
    said = [one.says for one in claimed.cited(found)]
    assert said[:3] == [claim["says"] for claim in CLAIMS[:3]]
    file = {"margin": {"training": "5 %", "at_most": 0.03}, "claims": [{**CLAIMS[0], "says": "mended"}]}
    filled = claimed._filled(file, found)
    assert claimed.same(found.verdict.claims[0], filled).says == "mended"
    other = claimed._filled({**file, "margin": {"training": "6 %"}}, found)
    assert claimed.same(found.verdict.claims[0], other) is None, "another margin is another claim"


def test_without_a_slope_what_is_declared_in_training_has_no_result_and_the_page_says_why(runs):
    why = "a doubling of training lowers the loss by 0.1 nats [-0.2, 0.4], which may be nothing"
    found = report(runs, told(why=why))
    assert Report.model_validate(found.plain()) == found
    [gqa, mqa, plain, cache] = found.verdict.claims
    assert [claim.verdict for claim in (gqa, mqa)] == ["NO RESULT"] * 2
    assert describe_claim(gqa) == (
        f"gqa vs mha: 5 % of training, at most 0.03 nats is not known in nats: {why} (NO RESULT)."
    )
    assert plain.verdict == "SUPPORTED", "a threshold in nats needs no slope"
    assert plain.training is None
    assert cache.verdict == "SUPPORTED"
    assert found.experiment.margin is None
    assert f"not known in nats: {why}" in html(found)
    assert f"not known in nats: {why}" in markdown(found, {}).replace("\\", "")


def test_another_margin_than_the_file_declares_is_a_departure_in_words(runs):
    declared = {"margin": {"training": "10 %"}, "exchange": {"seeds": [200, 201, 202]}}
    asked = experiment(WORLD, **FILE, declared=declared)
    document = build(replace(asked, exchange=told()), runs, None, provenance())
    [line] = document.verdict.departures
    assert line == "margin: declared 10 % of training, used 5 % of training, at most 0.03 nats"


def test_without_an_exchange_nothing_is_said_of_training(runs):
    found = report(runs, None, claims=CLAIMS[2:], margin=0.03, exchange=None)
    assert found.exchange is None
    for page in (html(found), markdown(found, {})):
        assert "training compute" not in page
        assert "training is worth" not in page


@pytest.mark.parametrize(
    ("share", "low", "high", "words"),
    [
        (-0.05, -0.09, 0.0, "−5% training compute, 95% CI [−9%, +0%]"),
        (-0.03, -0.13, 0.06, "−3% training compute, 95% CI [−13%, +6%]"),
        (0.07, 0.02, 0.12, "+7% training compute, 95% CI [+2%, +12%]"),
        (-0.004, -0.008, -0.001, "−0.4% training compute, 95% CI [−0.8%, −0.1%]"),
        (0.0, -0.02, 0.02, "+0% training compute, 95% CI [−2%, +2%]"),
        (-0.5, None, -0.1, "−50% training compute, 95% CI [unbounded, −10%]"),
        (-0.5, None, None, "−50% training compute, without bounds"),
        (3.0, 1.0, 12.5, "+300% training compute, 95% CI [+100%, +1,250%]"),
        (-0.998, -0.999, -0.9, "−99.8% training compute, 95% CI [−99.9%, −90%]"),
    ],
)
def test_the_words_for_a_share(share, low, high, words):
    training = Training(share=share, low=low, high=high, level=0.95)
    assert format_training(training) == words
    assert format_training(training, "") == words.replace(" training compute", "")
