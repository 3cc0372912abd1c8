"""The first screen: one sentence with its price, the arms best first, terms explained, on a slide too."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from synthetic import World, but, experiment, provenance, write_runs
from worlds import EVIL, Made

from attnlab.report.answer import answer
from attnlab.report.build import build
from attnlab.report.charts import marks
from attnlab.report.pages.glossary import TERMS, Glossary
from attnlab.report.pages.summary import ARMS, slide
from attnlab.report.schema import Report


def report_of(folder: Path, world: World, **changes: Any) -> Report:
    return build(experiment(world, **changes), write_runs(folder, world), None, provenance())


def test_the_sentence_has_the_price_the_effect_its_interval_and_what_it_is_about(made: Made) -> None:
    report = made["good"][0]
    said = answer(report).sentence
    [row] = [row for row in report.effects if row.arm == "gqa" and row.primary]
    assert said.startswith("gqa vs mha: halves the KV cache per token; Δ val/loss = +0.004 nats, 95% CI [")
    low, high = (
        float(end) for end in re.search(r"\[(\S+), (\S+)\]", said.replace("\N{MINUS SIGN}", "-")).groups()
    )
    assert (low, high) == pytest.approx((row.low, row.high), abs=0.6 * 10**-row.digits)
    assert said.endswith(
        "], margin ±0.03: equivalent (SUPPORTED); at size debug (120,000 parameters), on text, 5 seeds."
    )


def test_an_effect_is_the_arm_minus_the_baseline_and_what_is_open_is_inconclusive(tmp_path: Path) -> None:
    better = report_of(tmp_path / "better", World(effects={"mha": 0.0, "gqa": -0.5}))
    assert "; Δ val/loss = −0.500 nats, 95% CI [−0.5" in answer(better).sentence
    assert ": not equivalent (REFUTED); " in answer(better).sentence
    both = report_of(tmp_path / "open", World(effects={"mha": 0.0, "gqa": 0.028}))
    assert ", margin ±0.03: INCONCLUSIVE; " in answer(both).sentence


def test_where_nothing_can_be_compared_the_sentence_says_why(tmp_path: Path, made: Made) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.004}, parameters={"gqa": 150_000})
    unfair = report_of(tmp_path, world)
    assert answer(unfair).sentence.startswith(
        "gqa vs mha: parameters declared held, but 150,000 in gqa and 120,000 in mha (NOT COMPARABLE); at"
    )
    nothing = answer(made["nothing"][0]).sentence
    assert nothing.startswith("gqa vs mha: no paired seed of gqa and mha was completed (NO RESULT)")
    bare = report_of(tmp_path / "bare", World(), claims=[])
    assert answer(bare).sentence.startswith(
        "No claim was declared: mha came out with the lowest val/loss of 3"
    )


def test_arms_stand_best_first_with_the_mean_of_their_pairs(tmp_path: Path) -> None:
    report = report_of(tmp_path, World(effects={"mha": 0.0, "mqa": 0.06, "gqa": -0.01}))
    rows = answer(report).arms
    assert [row.arm for row in rows] == ["gqa", "mha", "mqa"]
    for row in rows:
        values = [run.metrics["val/loss"] for run in report.runs if run.arm == row.arm]
        assert row.reached.mean == pytest.approx(sum(values) / len(values))
        assert row.reached.low < row.reached.mean < row.reached.high
    upward = report_of(tmp_path / "up", World(effects={"mha": 0.0, "mqa": 0.06}), direction="higher")
    assert [row.arm for row in answer(upward).arms] == ["mqa", "mha"]


def words(folder: Path, steps: int | None = None, **changes: Any) -> list[str]:
    """Of the claims, where every run's record has these `changes` and was trained for so many steps."""
    world, runs = World(effects={"mha": 0.0, "gqa": -0.5}), []
    for run in write_runs(folder, world):
        estimate = run.record.estimate
        shorter = estimate if steps is None else estimate.model_copy(update={"steps": steps})
        config = run.record.config | changes.get("config", {})
        runs.append(but(run, **changes | {"estimate": shorter, "config": config}))
    report = build(experiment(world), runs, None, provenance())
    return [claim.verdict for claim in report.verdict.claims]


def test_models_of_a_few_steps_or_that_only_guess_support_nothing_but_what_is_counted(tmp_path: Path) -> None:
    assert words(tmp_path / "whole") == ["REFUTED", "SUPPORTED"]
    assert words(tmp_path / "few", steps=4) == ["UNTRAINED", "SUPPORTED"]
    guess = {"val/loss": math.log(97), "val/best_loss": math.log(97)}
    assert words(tmp_path / "guess", metrics=guess) == ["UNTRAINED", "SUPPORTED"]
    assert words(tmp_path / "parent", steps=4, config={"parent": "mha"}) == ["REFUTED", "SUPPORTED"]


def test_a_term_is_explained_once_and_text_stays_text() -> None:
    glossary = Glossary()
    first = glossary.explained(f"costs 0.1 nats {EVIL} against the margin")
    assert first.count('class="term"') == 2
    assert "<img" not in first
    assert TERMS["margin"] in first
    assert 'class="term"' not in glossary.explained("nats and margins")
    assert 'class="term"' not in Glossary().explained("an alarming pharmacy"), "no words inside others"


def test_no_two_of_43_arms_have_the_same_colour_and_shape() -> None:
    arms = [f"arm {i}" for i in range(43)]
    assert len(set(marks.style(arms, arms[0]).values())) == 43


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("name", ["good", "broken", "nothing", "single"])
def test_the_slide_is_one_sheet_with_answer_arms_and_claims(name: str, made: Made) -> None:
    report, folder = made[name]
    sheet = ElementTree.fromstring(slide(report))
    words = [part.text for part in sheet.iter() if part.tag.endswith("text")]
    assert answer(report).sentence[:40] in " ".join(words)
    for row in answer(report).arms[:ARMS]:
        assert row.arm in words
    for claim in report.verdict.claims:
        assert claim.verdict in words
    assert (folder / "summary.png").read_bytes().startswith(b"\x89PNG")


def test_the_slide_says_what_it_leaves_out(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, **{f"arm{i}": 0.01 * i for i in range(1, 12)}})
    report = report_of(tmp_path, replace(world, seeds=[0, 1]), claims=[])
    assert f"and {12 - ARMS} more arms in the report" in slide(report)
