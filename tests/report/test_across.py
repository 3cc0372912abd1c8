"""What the reports of several sizes or texts say together: of drawn losses whose truth is known."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from synthetic import claimed

from attnlab.report.across import page, pairs, texts
from attnlab.report.across.ladder import build, counted
from attnlab.report.charts import drawing
from attnlab.report.charts.drawing import Drawn
from attnlab.report.ladder import LADDER, load
from attnlab.report.schema import VERSION, Report, RunRow
from attnlab.store.schema import Budget

RUNGS = {"40k": (16, 1e10), "S": (16, 6e10), "250k": (8, 4e11), "625k": (4, 2.5e12)}


def report(kind, name, effect, *, seeds, flops, together="heads@steps", verdict="SUPPORTED") -> Report:
    """Losses of two arms: the baseline's fall with compute, the other's are `effect` above them."""
    draw = np.random.default_rng([ord(c) for c in name])
    base = 2 + 20 * flops**-0.1
    budget = {"flops_per_token": flops / 1e6, "tokens": 10**6, "parameters": 5, "steps": 7, "lr": 0.003}

    def run(arm, seed, loss):
        return {
            "arm": arm, "seed": seed, "id": f"{arm}{seed}", "axes": {}, "status": "done", "seconds": 2.0,
            "started": None, "metrics": {"val/loss": loss}, "budget": budget, "memory": {}, "speed": {},
        }  # fmt: skip

    runs, pairs = [], []
    for seed in range(seeds):
        shared = base + draw.normal(0, 0.02)
        other = shared + effect + draw.normal(0, 0.004)
        runs += [run("two", seed, shared), run("four", seed, other)]
        pairs += [{"seed": seed, "value": other, "against": shared, "difference": other - shared}]
    beside = {"sign_flip": None, "leave_one_out": None, "pairing": None, "outliers": []}
    ends = {"low": effect - 0.01, "high": effect + 0.01, "level": 0.95}
    claim = claimed(
        effect - 0.01, effect + 0.01, verdict, says="four costs nothing", arm="four", against="two",
        threshold=0.02, planned=seeds, decision={"n": seeds},
    ).plain()  # fmt: skip
    exact = {
        "says": "it is counted", "metric": "parameters", "basis": "exact",
        "decision": {**claim["decision"], "exact": True},
    }  # fmt: skip
    row = {
        **beside, **ends, "arm": "four", "against": "two", "metric": "val/loss", "label": "val/loss",
        "unit": "nats", "primary": True, "margin": 0.02, "n": seeds, "planned": seeds, "digits": 3,
        "mean": effect, "sd": 0.004, "training": None, "alpha": 0.05, "p": None, "p_holm": None,
        "p_equivalent": None, "p_not_worse": None, "word": "NON-INFERIOR", "reasons": [], "pairs": pairs,
    }  # fmt: skip
    ladder = {
        "name": "steps", "rungs": {name: [] for name in RUNGS}, "seeds": {name: 4 for name in RUNGS},
        "rates": {"rung": "S", "power": -0.125}, "margin": 0.02, "margin_reason": "because",
    }  # fmt: skip
    nowhere = dict.fromkeys(
        ("commit", "dirty", "dirty_diff", "packages", "device", "date", "declaration_sha256", "versions")
    )
    return Report.model_validate({
        "schema": VERSION,
        "place": {"kind": kind, "name": name, "together": together, "rates": None, "ladder": ladder},
        "experiment": {
            "name": "heads", "question": "Do four help?", "size": None, "arms": ["two", "four"],
            "baseline": "two", "seeds": [*range(seeds)], "looks": None, "held": [], "match": "params",
            "match_by": None, "unmatched": [], "leakage": [], "metric": "val/loss", "direction": "lower",
            "margin": 0.02, "margin_said": None, "margin_reason": "because",
        },
        "verdict": {
            "claims": [claim, {**claim, **exact}], "exploratory": False, "undeclared": False,
            "departures": [], "headline": "1 SUPPORTED", "finished": len(runs), "planned": len(runs),
            "apart": [], "unlike": [],
        },
        "budget": {
            "rows": [], "held": [], "seeds": [], "match": "params", "match_by": None, "unmatched": [],
            "lr_tuning": "", "tuning": None,
        },
        "effects": [row],
        "runs": runs,
        "reproduce": {
            **nowhere, "command": "python -m attnlab", "declared": {}, "changed": [], "data": [],
            "runs": [], "environment": {}, "mixed": [],
        },
        "failures": {"runs": [], "counts": [], "words": [], "caveats": []},
        "config": {"arms": ["two", "four"], "rows": [], "layers": [], "whole": {}},
        **{key: [] for key in ("tradeoff", "length", "races", "warnings")},
        **dict.fromkeys(
            ("texts", "leakage", "exchange", "curves", "positions", "heads", "text", "timing", "declared")
        ),
    })  # fmt: skip


def with_runs(found: Report, change: Callable[[RunRow], dict[str, Any]]) -> Report:
    """The same report with changed runs."""
    return found.model_copy(update={"runs": [run.model_copy(update=change(run)) for run in found.runs]})


def with_status(found: Report, place: int, status: str) -> Report:
    """The same report, one of its runs with another status."""
    changed = found.runs[place]
    return with_runs(found, lambda run: {"status": status} if run is changed else {})


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
    [row] = build(climbed(*effects)).comparisons
    assert (row.arm, row.against, row.word) == ("four", "two", word)
    for effect, rung in zip(effects, row.effects, strict=True):
        assert rung.mean == pytest.approx(effect, abs=0.01)
        assert rung.low < effect + 0.01
        assert rung.high > effect - 0.01
    assert " at 40k, " in row.sentence
    assert " at 625k " in row.sentence
    assert row.held_out.hit is True
    step = (effects[-1] - effects[0]) / 2.4  # a tenfold is a little less than a step and a half
    assert row.ahead.mean == pytest.approx(effects[-1] + step, abs=0.03)


def test_ten_times_the_size_is_as_much_compute_as_the_rungs_grew_by():
    reports = climbed(0.02, 0.06, 0.1, 0.14)
    assert build(reports).comparisons[0].larger is None, "all have the same parameters"

    def larger(run):
        parameters = 1e-3 * run.budget.training_flops**0.5
        return {"budget": run.budget.model_copy(update={"parameters": parameters})}

    [row] = build({title: with_runs(one, larger) for title, one in reports.items()}).comparisons
    assert row.larger.compute == pytest.approx(100)
    slope = row.slope.mean
    assert row.larger.mean - row.ahead.mean == pytest.approx(slope)
    assert row.larger.high - row.larger.low > row.ahead.high - row.ahead.low
    assert "; at ten times its size, 100 times its compute as these rungs grow: +0.2" in row.sentence


def test_a_ladder_that_left_what_was_declared_says_so_wherever_it_is_told_of():
    reports = climbed(0.01, 0.01, 0.01, 0.01)
    kept = build(reports)
    departed = reports["heads@steps.S"]
    departed = departed.model_copy(
        update={"verdict": departed.verdict.model_copy(update={"exploratory": True})}
    )
    left = build({**reports, "heads@steps.S": departed})
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
    [row] = build(climbed(0.01, 0.01, 0.01, 0.2)).comparisons
    assert row.held_out.hit is False
    assert row.word != "HOLDS"
    assert "not where the others point" in row.sentence


def test_an_arm_that_costs_loss_needs_more_compute_at_every_floor():
    [base, arm] = build(climbed(0.05, 0.05, 0.05, 0.05)).losses
    assert base.multiplier is None
    assert {"0 %", "25 %", "50 %", "75 %"} <= arm.multiplier.floors.keys()
    assert all(cell.value < 0.9 for cell in arm.multiplier.floors.values())
    assert arm.multiplier.least < arm.multiplier.most


@pytest.mark.parametrize("machine", [True, False])
def test_where_a_run_failed_by_itself_nothing_holds(machine):
    reports = climbed(0.01, 0.01, 0.01, 0.01)
    lowest = with_status(reports["heads@steps.40k"], 1, "killed" if machine else "diverged")
    [row] = build({**reports, "heads@steps.40k": lowest}).comparisons
    assert row.word == ("HOLDS" if machine else "CANNOT TELL")
    assert ("runs failed at 40k (1)" in row.meaning) is not machine
    assert len(row.effects[0].differences) == 15


def test_a_ladder_without_a_finished_pair_tells_nothing():
    missing = {"status": "missing", "metrics": {}, "budget": Budget()}
    reports = climbed(0.01, 0.01, 0.01, 0.01)
    [row] = build({title: with_runs(one, lambda run: missing) for title, one in reports.items()}).comparisons
    assert (row.word, row.ahead, row.line) == ("CANNOT TELL", None, [])


def test_decision_accuracy_counts_rungs_that_both_decided():
    told = counted([["SUPPORTED", "SUPPORTED", "REFUTED", "INCONCLUSIVE"], [None, "SUPPORTED", "SUPPORTED"]])
    assert "alike in 2 of 3 cases" in told.words
    assert "in 2 further cases" in told.words
    assert "no claim was decided" in counted([["INCONCLUSIVE", "SUPPORTED"]]).words


def test_rungs_stand_by_their_compute_in_whatever_order_they_are_read():
    reports = climbed(0.01, 0.01, 0.01, 0.01)
    stored = {
        title: Report.model_validate_json(json.dumps(reports[title].plain(), sort_keys=True))
        for title in sorted(reports)
    }
    assert [rung.name for rung in build(stored).rungs] == ["40k", "S", "250k", "625k"]
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
        load(folder)


@pytest.mark.parametrize(("rate", "told"), [(0.003, False), (0.006, True)])
def test_rates_that_differ_and_were_tuned_at_one_rung_are_told(rate, told):

    def tuned(run):
        lr = rate if run.arm == "four" else 0.003
        return {"budget": run.budget.model_copy(update={"lr": lr})}

    reports = climbed(-0.02, -0.04, -0.06, -0.08)
    ladder = build({title: with_runs(one, tuned) for title, one in reports.items()})
    words = "Tuned at S, four has the learning rate 0.006 and two 0.003; nobody tuned them at the other rungs"
    for made in (page.html(ladder, Drawn({})), page.markdown(ladder), "\n".join(page.lines(ladder))):
        assert (words in made) == told
    alone = ladder.model_copy(update={"ladder": ladder.ladder.model_copy(update={"rates": None})})
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
    told = texts.add_texts(found)
    assert told["heads"].texts == told["heads@code"].texts
    [claim] = told["heads"].texts.claims  # what is counted is the same on each
    assert [(row.text, row.verdict, row.title) for row in claim.rows] == [
        ("plain", "SUPPORTED", "heads"), ("code", "REFUTED", "heads@code"),
    ]  # fmt: skip
    assert "it differs by text" in claim.together
    rows = told["heads"].texts.arms
    assert [(row.text, row.title) for row in rows] == [("plain", "heads"), ("code", "heads@code")]
    for row in rows:
        assert [(cell.arm, cell.state) for cell in row.cells] == [
            ("two", None),
            ("four", "non-inferior"),
        ]


def test_pairs_are_of_seeds_that_both_arms_finished():
    found = report("text", "plain", 0.05, seeds=3, flops=1e10)
    killed = with_status(found, 0, "killed")
    assert len(pairs.differences(killed, "four", "two", "val/loss")) == 2
    assert pairs.failed(killed, "two") == 0
    assert pairs.failed(with_status(found, 0, "diverged"), "two") == 1
    assert pairs.flops(found, "four") == pytest.approx(1e10)
