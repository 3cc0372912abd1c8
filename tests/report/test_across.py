"""What the reports of several sizes or texts say together: of drawn losses whose truth is known."""

import json

import numpy as np
import pytest

from attnlab.report.across import page, pairs, texts
from attnlab.report.across.ladder import build, counted
from attnlab.report.charts import drawing
from attnlab.report.charts.drawing import Drawn
from attnlab.report.pages.index import LADDER

RUNGS = {"40k": (16, 1e10), "S": (16, 6e10), "250k": (8, 4e11), "625k": (4, 2.5e12)}


def report(
    kind, name, effect, *, seeds, flops, together="heads@steps", margin=0.02, verdict="SUPPORTED", noise=0.004
):
    """Losses of two arms: the baseline's fall with compute, the other's are `effect` above them."""
    draw = np.random.default_rng([ord(c) for c in name])
    base = 2 + 20 * flops**-0.1

    budget = {"flops_per_token": flops / 1e6, "tokens": 10**6, "parameters": 5, "steps": 7, "lr": 0.003}

    def run(arm, seed, loss):
        done = {"status": "done", "metrics": {"val/loss": loss}, "budget": budget, "seconds": 2.0}
        return {"arm": arm, "seed": seed, **done}

    runs = []
    for seed in range(seeds):
        shared = base + draw.normal(0, 0.02)
        runs += [run("two", seed, shared), run("four", seed, shared + effect + draw.normal(0, 0.004))]
    number = {"estimate": effect, "low": None, "high": None, "level": None, "exact": False}
    claim = {
        "says": "four costs nothing", "arm": "four", "against": "two", "metric": "val/loss",
        "compare": "difference", "verdict": verdict, "identity": False, "unit": "nats", "digits": 3,
        "training": None, "kind": "seeds", "looks": None, "decision": number,
        "interval": {"low": effect - 0.01, "high": effect + 0.01, "level": 0.95},
    }  # fmt: skip
    exact = {"says": "it is counted", "metric": "parameters", "decision": {**number, "exact": True}}
    ladder = {
        "name": "steps",
        "rungs": {name: [] for name in RUNGS},
        "rates": {"rung": "S", "power": -0.125},
    }
    return {
        "place": {"kind": kind, "name": name, "together": together, "rates": None, "ladder": ladder},
        "experiment": {
            "name": "heads", "question": "Do four help?", "arms": ["two", "four"], "baseline": "two",
            "metric": "val/loss", "direction": "lower", "margin": 0.02, "margin_reason": "because",
        },
        "verdict": {
            "claims": [claim, {**claim, **exact}], "exploratory": False, "headline": "1 SUPPORTED",
            "finished": len(runs), "planned": len(runs), "apart": [],
        },
        "effects": [
            {
                "metric": "val/loss", "unit": "nats", "arm": "four", "primary": True,
                "word": "NOT WORSE THAN 0.02",
            }
        ],
        "answer": {"arms": [{"arm": arm, "reached": {"mean": base}} for arm in ("two", "four")]},
        "runs": runs,
        "reproduce": {"command": "python -m attnlab", **dict.fromkeys(("commit", "dirty", "date", "device"))},
        "texts": None,
        "leakage": None,
    }  # fmt: skip


def climbed(*effects):
    """A ladder with these effects, from the smallest rung to the largest."""
    return {
        f"heads@steps.{name}": report("rung", name, effect, seeds=seeds, flops=flops)
        for (name, (seeds, flops)), effect in zip(RUNGS.items(), effects, strict=True)
    }


@pytest.mark.parametrize(
    ("effects", "word"),
    [
        ((0.01, 0.01, 0.01, 0.01), "HOLDS"),
        ((0.0, 0.0, 0.0, 0.0), "HOLDS"),
        ((0.02, 0.06, 0.1, 0.14), "GROWS"),
        ((-0.14, -0.1, -0.06, -0.02), "SHRINKS"),
        ((0.06, 0.02, -0.02, -0.06), "FLIPS"),
    ],
)
def test_the_word_is_that_of_the_truth_and_its_sentence_has_both_ends(effects, word):
    [row] = build(climbed(*effects))["comparisons"]
    assert (row["arm"], row["against"], row["word"]) == ("four", "two", word)
    for effect, rung in zip(effects, row["effects"], strict=True):
        assert rung["mean"] == pytest.approx(effect, abs=0.01)
        assert rung["low"] < effect + 0.01
        assert rung["high"] > effect - 0.01
    assert " at 40k, " in row["sentence"]
    assert " at 625k " in row["sentence"]
    assert row["held_out"]["hit"] is True
    step = (effects[-1] - effects[0]) / 2.4  # a tenfold is a little less than a step and a half
    assert row["ahead"]["mean"] == pytest.approx(effects[-1] + step, abs=0.03)


def test_ten_times_the_size_is_as_much_compute_as_the_rungs_grew_by():
    reports = climbed(0.02, 0.06, 0.1, 0.14)
    assert build(reports)["comparisons"][0]["larger"] is None, "all have the same parameters"
    for one in reports.values():
        for run in one["runs"]:
            flops = run["budget"]["flops_per_token"] * run["budget"]["tokens"]
            run["budget"] = {**run["budget"], "parameters": 1e-3 * flops**0.5}
    [row] = build(reports)["comparisons"]
    assert row["larger"]["compute"] == pytest.approx(100)
    slope = row["slope"]["mean"]
    assert row["larger"]["mean"] - row["ahead"]["mean"] == pytest.approx(slope)
    assert row["larger"]["high"] - row["larger"]["low"] > row["ahead"]["high"] - row["ahead"]["low"]
    assert "; at ten times its size, 100 times its compute as these rungs grow: +0.2" in row["sentence"]


def test_a_ladder_that_left_what_was_declared_says_so_wherever_it_is_told_of():
    reports = climbed(0.01, 0.01, 0.01, 0.01)
    kept = build(reports)
    reports["heads@steps.S"]["verdict"]["exploratory"] = True
    left = build(reports)
    for ladder, said in ((kept, False), (left, True)):
        made = (page.html(ladder, Drawn({})), page.markdown(ladder), "\n".join(page.lines(ladder)))
        assert ["EXPLORATORY" in one for one in made] == [said] * 3
        assert page.sizes([ladder]) == {
            ("heads", "four", "two"): f"HOLDS (40k to 625k{', exploratory' if said else ''})"
        }
    assert "exploratory" not in page.agreement([kept]) + page.agreement([left])
    both = page.agreement([kept, left])
    assert "Of 2 ladders: " in both
    assert "alike in 6 of 6 cases" in both
    assert "Without the exploratory ones: Of 1 ladder: " in both
    assert "alike in 3 of 3 cases" in both


def test_a_rung_that_is_not_where_the_others_point_is_a_miss_and_holds_nothing():
    [row] = build(climbed(0.01, 0.01, 0.01, 0.2))["comparisons"]
    assert row["held_out"]["hit"] is False
    assert row["word"] != "HOLDS"
    assert "not where the others point" in row["sentence"]


def test_an_arm_that_costs_loss_needs_more_compute_at_every_floor():
    [base, arm] = build(climbed(0.05, 0.05, 0.05, 0.05))["losses"]
    assert base["multiplier"] is None
    assert {"0 %", "25 %", "50 %", "75 %"} <= arm["multiplier"]["floors"].keys()
    assert all(cell["value"] < 0.9 for cell in arm["multiplier"]["floors"].values())
    assert arm["multiplier"]["least"] < arm["multiplier"]["most"]


@pytest.mark.parametrize("machine", [True, False])
def test_where_a_run_failed_by_itself_nothing_holds(machine):
    reports = climbed(0.01, 0.01, 0.01, 0.01)
    reports["heads@steps.40k"]["runs"][1]["status"] = "killed" if machine else "diverged"
    [row] = build(reports)["comparisons"]
    assert row["word"] == ("HOLDS" if machine else "CANNOT TELL")
    assert ("runs failed at 40k (1)" in row["meaning"]) is not machine
    assert len(row["effects"][0]["differences"]) == 15


def test_a_ladder_without_a_finished_pair_tells_nothing():
    reports = climbed(0.01, 0.01, 0.01, 0.01)
    for found in reports.values():
        found["runs"] = [{**run, "status": "missing", "metrics": {}, "budget": {}} for run in found["runs"]]
    [row] = build(reports)["comparisons"]
    assert (row["word"], row["ahead"], row["line"]) == ("CANNOT TELL", None, [])


def test_decision_accuracy_counts_rungs_that_both_decided():
    told = counted([["SUPPORTED", "SUPPORTED", "REFUTED", "INCONCLUSIVE"], [None, "SUPPORTED", "SUPPORTED"]])
    assert "alike in 2 of 3 cases" in told["words"]
    assert "in 2 further cases" in told["words"]
    assert "no claim was decided" in counted([["INCONCLUSIVE", "SUPPORTED"]])["words"]


def test_rungs_stand_by_their_compute_in_whatever_order_they_are_read():
    reports = climbed(0.01, 0.01, 0.01, 0.01)
    stored = {title: json.loads(json.dumps(reports[title], sort_keys=True)) for title in sorted(reports)}
    assert [rung["name"] for rung in build(stored)["rungs"]] == ["40k", "S", "250k", "625k"]
    assert build(stored) == build(reports)


def test_a_ladder_is_read_back_and_its_page_is_made_of_its_data_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(
        page, "draw", lambda figures: Drawn({figure.name: f"<svg>{figure.name}</svg>" for figure in figures})
    )
    folder = tmp_path / "heads@steps"
    written = page.write(folder, climbed(0.01, 0.01, 0.01, 0.01))
    html, note = written.read_text(), (folder / "ladder.md").read_text()
    for said in (
        "HOLDS",
        "four against two",
        'href="../heads%40steps.40k/report.html"',
        "<svg>effect0</svg>",
        "<svg>losses</svg>",
    ):
        assert said in html
    assert "**HOLDS**, four against two" in note
    before = html
    written.unlink()
    assert page.render(folder).read_text() == before
    document = json.loads((folder / LADDER).read_text())
    (folder / LADDER).write_text(json.dumps({**document, "schema": 0}))
    with pytest.raises(ValueError, match="has schema 0"):
        page.load(folder)


@pytest.mark.parametrize(("rate", "told"), [(0.003, False), (0.006, True)])
def test_rates_that_differ_and_were_tuned_at_one_rung_are_told(rate, told):
    reports = climbed(-0.02, -0.04, -0.06, -0.08)
    for one in reports.values():
        for run in one["runs"]:
            run["budget"] = {**run["budget"], "lr": rate if run["arm"] == "four" else 0.003}
    ladder = build(reports)
    words = "Tuned at S, four has the learning rate 0.006 and two 0.003; nobody tuned them at the other rungs"
    for made in (page.html(ladder, Drawn({})), page.markdown(ladder), "\n".join(page.lines(ladder))):
        assert (words in made) == told
    alone = {**ladder, "ladder": {**ladder["ladder"], "rates": None}}
    assert words not in page.markdown(alone)
    [sizes] = page.sizes([ladder]).values()
    assert ("(40k to 625k, rates differ)" in sizes) == told


def test_pictures_of_a_ladder_can_be_drawn():
    ladder = build(climbed(0.01, 0.02, 0.03, 0.04))
    made = [*page.figures.effects(ladder, 640), *page.figures.losses(ladder, 640)]
    drawn = drawing.draw(made)
    assert not drawn.lost
    assert set(drawn.svgs) == {"effect0", "losses"}


def test_texts_stand_side_by_side_in_the_report_of_each_with_their_difference():
    found = {
        "heads": report("text", "plain", 0.05, seeds=8, flops=1e10, together="heads"),
        "heads@code": report("text", "code", 0.01, seeds=8, flops=1e10, together="heads", verdict="REFUTED"),
    }
    texts.tell(found)
    assert found["heads"]["texts"] == found["heads@code"]["texts"]
    [claim] = found["heads"]["texts"]["claims"]  # what is counted is the same on each
    assert [(row["text"], row["verdict"], row["title"]) for row in claim["rows"]] == [
        ("plain", "SUPPORTED", "heads"), ("code", "REFUTED", "heads@code"),
    ]  # fmt: skip
    assert "it differs by text" in claim["together"]
    rows = found["heads"]["texts"]["arms"]
    assert [(row["text"], row["title"]) for row in rows] == [("plain", "heads"), ("code", "heads@code")]
    for row in rows:
        assert [(cell["arm"], cell["state"]) for cell in row["cells"]] == [
            ("two", None),
            ("four", "no worse"),
        ]


def test_pairs_are_of_seeds_that_both_arms_finished():
    found = report("text", "plain", 0.05, seeds=3, flops=1e10)
    found["runs"][0]["status"] = "killed"
    assert len(pairs.differences(found, "four", "two", "val/loss")) == 2
    assert pairs.failed(found, "two") == 0
    found["runs"][0]["status"] = "diverged"
    assert pairs.failed(found, "two") == 1
    assert pairs.flops(found, "four") == pytest.approx(1e10)
