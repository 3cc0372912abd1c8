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
from attnlab.report.schema import SHAPE, misfit
from attnlab.report.tables import claimed
from attnlab.report.verdicts.exchange import as_if
from attnlab.sweep import wandb_report
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
    slope = {"mean": mean.mean, "low": mean.low, "high": mean.high, "level": 0.95}
    rows = [
        {"seed": 200 + i, "half": 2 + per, "twice": 2 - per, "ids": [f"half{i}", f"twice{i}"]}
        for i, per in enumerate(slopes)
    ]
    return {
        "metric": "val/loss", "seeds": [200, 201, 202], "steps": [201, 401, 802], "tokens": 1_234_567,
        "rows": rows, "slopes": slopes, "slope": slope, "worth": None if why else worth(**slope), "why": why,
    }  # fmt: skip


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
    assert misfit(found, SHAPE) is None
    margin = found["experiment"]["margin"]
    assert margin == 0.0185
    assert found["experiment"]["margin_said"] == (
        "5 % of training, at most 0.03 nats: 0.0185 nats (a doubling is worth 0.250 nats [0.225, 0.275])"
    )
    assert [claim["threshold"] for claim in found["verdict"]["claims"]] == [0.0185, 0.038, 0.05, 0.51]
    assert found["effects"][0]["margin"] == margin
    gqa = found["verdict"]["claims"][0]
    assert gqa["verdict"] == "SUPPORTED"
    assert "(margin 0.0185, 5 % of training, at most 0.03 nats)" in gqa["sentence"]


def test_every_difference_in_the_loss_is_said_as_training_and_nothing_else_is(found):
    [gqa, mqa, plain, cache] = found["verdict"]["claims"]
    effects = {row["arm"]: row for row in found["effects"]}
    for claim in (gqa, mqa, plain):
        words = claim["training"]["words"]
        assert words == effects[claim["arm"]]["training"]["words"]
        assert claim["sentence"].endswith(f" {words[:1].upper()}{words[1:]}.")
    assert gqa["training"]["share"] == pytest.approx(2 ** (-0.004 / 0.25) - 1)
    assert gqa["training"]["words"].startswith("as if trained 1 % less [")
    assert mqa["training"]["low"] > mqa["training"]["share"] > mqa["training"]["high"]
    assert cache["training"] is None
    assert "trained" not in cache["sentence"]


def test_it_is_said_on_every_page_and_to_wandb(found, tmp_path):
    words = [row["training"]["words"] for row in found["effects"]]
    page, text = html(found), markdown(found, {})
    for said in (*words, found["experiment"]["margin_said"], found["exchange"]["words"], "1,234,567 tokens"):
        assert said in page
        assert said in text.replace("\\", "")
    summary = wandb_report.summary(found)
    assert summary["effect/gqa/val/loss/training"] == words[0]
    assert summary["claim/1/training"] == words[0]
    assert summary["margin"] == found["experiment"]["margin_said"]
    columns, rows = wandb_report.comparison(found)
    assert [row[columns.index("training")] for row in rows] == [None, *words]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "report.json").write_text(json.dumps(found))
    for written in ledger.write(tmp_path):
        assert words[0] in written.read_text()
        assert "5 % of training, at most 0.03 nats" in written.read_text()


def test_odd_steps_are_rounded_up_and_the_page_says_so(found):
    assert "mha at 201 (half, rounded up) and at 802 steps instead of 401, seeds 200" in html(found)


def test_a_claim_is_known_again_by_a_threshold_in_training(found):
    found = {**found, "experiment": {**found["experiment"], "name": "of_nobody"}}
    said = [one["says"] for one in claimed.cited(found)]
    assert said[:3] == [claim["says"] for claim in CLAIMS[:3]]
    file = {"margin": {"training": "5 %", "at_most": 0.03}, "claims": [{**CLAIMS[0], "says": "mended"}]}
    filled = claimed._filled(file, found)
    assert claimed.same(found["verdict"]["claims"][0], filled)["says"] == "mended"
    other = claimed._filled({**file, "margin": {"training": "6 %"}}, found)
    assert claimed.same(found["verdict"]["claims"][0], other) is None, "another margin is another claim"


def test_without_a_slope_what_is_declared_in_training_has_no_result_and_the_page_says_why(runs):
    why = "a doubling of training lowers the loss by 0.1 nats [-0.2, 0.4], which may be nothing"
    found = report(runs, told(why=why))
    assert misfit(found, SHAPE) is None
    [gqa, mqa, plain, cache] = found["verdict"]["claims"]
    assert [claim["verdict"] for claim in (gqa, mqa)] == ["NO RESULT"] * 2
    assert gqa["sentence"].endswith(f"5 % of training, at most 0.03 nats is not known in nats: {why}.")
    assert plain["verdict"] == "SUPPORTED", "a threshold in nats needs no slope"
    assert plain["training"] is None
    assert cache["verdict"] == "SUPPORTED"
    assert found["experiment"]["margin"] is None
    assert f"not known in nats: {why}" in html(found)
    assert f"not known in nats: {why}" in markdown(found, {}).replace("\\", "")


def test_another_margin_than_the_file_declares_is_a_departure_in_words(runs):
    declared = {"margin": {"training": "10 %"}, "exchange": {"seeds": [200, 201, 202]}}
    asked = experiment(WORLD, **FILE, declared=declared)
    document = build(replace(asked, exchange=told()), runs, None, provenance())
    [line] = document["verdict"]["departures"]
    assert line == "margin: declared 10 % of training, used 5 % of training, at most 0.03 nats"


def test_without_an_exchange_nothing_is_said_of_training(runs):
    found = report(runs, None, claims=CLAIMS[2:], margin=0.03, exchange=None)
    assert found["exchange"] is None
    for page in (html(found), markdown(found, {})):
        assert "as training" not in page
        assert "training is worth" not in page


@pytest.mark.parametrize(
    ("share", "low", "high", "words"),
    [
        (-0.05, 0.0, -0.09, "as if trained 5 % less [0 %, 9 %]"),
        (-0.03, 0.06, -0.13, "as if trained 3 % less [6 % more, 13 % less]"),
        (0.07, 0.12, 0.02, "as if trained 7 % more [2 %, 12 %]"),
        (-0.004, -0.001, -0.008, "as if trained 0.4 % less [0.1 %, 0.8 %]"),
        (0.0, 0.02, -0.02, "as if trained as long [2 % more, 2 % less]"),
        (-0.5, -0.1, None, "as if trained 50 % less [10 %, unbounded]"),
        (-0.5, None, None, "as if trained 50 % less, without bounds"),
        (3.0, 12.5, 1.0, "as if trained 300 % more [100 %, 1,250 %]"),
        (-0.998, -0.9, -0.999, "as if trained 99.8 % less [90 %, 99.9 %]"),
    ],
)
def test_the_words_for_a_share(share, low, high, words):
    assert as_if(stats.Trained(share, low, high)) == words
