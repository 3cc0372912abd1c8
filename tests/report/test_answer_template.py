"""The answer of an experiment's own template, many arms, and the headline over corpora."""

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from synthetic import World, build_claim_result, build_context, build_provenance, write_runs

from attnlab.config import CONF
from attnlab.errors import InvalidConfig
from attnlab.report.answer import build_answer, build_arms_table
from attnlab.report.pages.html import render_html
from attnlab.report.pages.index import render_index
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.pages.report_files import format_json
from attnlab.report.pages.summary import render_slide
from attnlab.report.report_builder import build_report
from attnlab.report.schema import CorporaSection, ReplicationContext, Report
from attnlab.report.tables import filled_answer
from attnlab.report.tables.headline import build_headline, format_headline
from attnlab.report.tables.wording import describe_claim, find_claim_effect, format_effect
from attnlab.store.experiment_schema import validate_answer_template
from attnlab.sweep.plan.experiment_validation import complete_experiment

TEMPLATE = "GQA has {gqa.kv_bytes_per_token_ratio} the cache: {gqa.outcome}. MQA: {mqa.delta}, {mqa.verdict}"
CLAIMS = [
    {"says": "gqa costs little", "arm": "gqa", "is": "below", "threshold": 0.03},
    {"says": "gqa is much the same", "arm": "gqa", "is": "within", "threshold": 0.008},
    {"says": "mqa costs something", "arm": "mqa", "is": "above", "threshold": 0.0},
]


@pytest.fixture(autouse=True)
def current_experiment(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace today's experiment file by one that a test fills; it is empty at first."""
    current: dict[str, Any] = {}
    monkeypatch.setattr(filled_answer, "load_current_experiment", lambda _report: current)
    return current


def make_report(folder: Path, world: World | None = None, **changes: Any) -> Report:
    world = world or World()
    return build_report(build_context(world, **changes), write_runs(folder, world), None, build_provenance())


def test_sentence_table_and_claim_show_one_interval_per_effect(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06}, sd=0.018, seeds=[*range(16)])
    report = make_report(tmp_path, world, claims=CLAIMS, looks=[4, 8, 12, 16])
    early = report.verdict.claims[0]
    [effect] = [row for row in report.effects if row.primary and row.arm == "gqa"]
    assert early.decision.n < effect.n, "the claim was decided before the arm's last seed"
    assert format_effect(early) != format_effect(effect)
    header, rows = build_arms_table(report)
    cell = next(row for row in rows if row[0] == "gqa")[header.index("Δ")]
    markdown = render_markdown(report).replace("\\", "")
    line = describe_claim(early, find_claim_effect(early, report.effects))
    assert line in markdown
    for text in (line, build_answer(report).sentence):
        assert f"= {cell}, margin +0.03: non-inferior (SUPPORTED)" in text
        assert "decided on" not in text
    assert line.endswith(f"{early.decision.n} paired seeds; Δ over 16.")


def test_template_is_filled_with_the_numbers_of_the_page(tmp_path: Path) -> None:
    report = make_report(tmp_path, claims=CLAIMS, answer=TEMPLATE)
    gqa, mqa = (format_effect(row) for row in report.effects if row.primary)
    assert build_answer(report).sentence == (
        f"GQA has 0.5× the cache: Δ val/loss = {gqa}, margin +0.03: non-inferior "
        "(SUPPORTED). "
        f"MQA: Δ val/loss = {mqa}, inferior (SUPPORTED); "
        "at size debug (120,000 parameters), on text, 5 seeds."
    )


def test_current_file_overrides_the_template_if_its_arms_exist(
    tmp_path: Path, current_experiment: dict[str, Any]
) -> None:
    report = make_report(tmp_path, claims=CLAIMS)
    default = build_answer(report).sentence
    assert default.startswith("gqa vs mha: halves the KV cache per token; ")
    current_experiment |= {"metric": "val/loss", "baseline": "mha", "answer": "Now: {gqa.delta}"}
    assert build_answer(report).sentence.startswith("Now: Δ val/loss = ")
    current_experiment["answer"] = "Now: {gone.delta}"
    assert build_answer(report).sentence == default
    current_experiment |= {"answer": "Now: {gqa.delta}", "metric": "val/accuracy"}
    assert build_answer(report).sentence == default


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("{gqa.loss}", r"answer of mine: \{gqa.loss\}: unknown field loss"),
        ("{gqq.delta}", r"answer of mine: unknown arm gqq \(nearest: gqa"),
        ("{delta}", r"answer of mine: \{delta\}: write \{ARM.outcome\}"),
        ("{mqa/gqa.delta}", r"answer of mine: \{mqa/gqa.delta\}: no claim compares these arms"),
        ("{gqa.delta", r"answer of mine: expected '\}' before end of string"),
    ],
)
def test_invalid_template_is_one_error_with_its_key(answer: str, message: str) -> None:
    arms = {arm: [f"heads={arm}"] for arm in ("mha", "gqa", "mqa")}
    experiment = {
        "name": "mine", "arms": ["mha", "gqa"], "arm_overrides": arms, "baseline": "mha", "seeds": [0, 1],
        "metric": "val/loss", "margin": 0.1, "margin_reason": "because", "claims": CLAIMS[:2],
    }  # fmt: skip
    complete_experiment(experiment | {"answer": "{gqa.outcome} {mqa.parameters} {best}"})
    with pytest.raises(InvalidConfig, match=message) as error:
        complete_experiment(experiment | {"answer": answer})
    assert "\n" not in str(error.value)
    assert error.value.key_path == ("answer",)


def test_shipped_templates_are_valid() -> None:
    templates = 0
    for path in sorted((CONF / "experiment").glob("*.yaml")):
        if "\nanswer:" not in path.read_text("utf-8"):
            continue
        experiment = OmegaConf.load(path)
        pairs = [(claim.arm, claim.get("against")) for claim in experiment.get("claims") or []]
        validate_answer_template(experiment.answer, experiment.get("arms") or [], pairs)
        templates += 1
    assert templates >= 10


def test_answer_about_many_arms_names_the_best_mean_and_tests_nothing(tmp_path: Path) -> None:
    effects = {"mha": 0.0, "near": 0.001, **{f"arm_{i}": 0.05 * i for i in range(1, 9)}}
    sentence = build_answer(make_report(tmp_path, World(effects), claims=[])).sentence
    start = r"No preregistered claim\. Best mean of 10 arms in val/loss: mha \([\d.]+ nats\); at size debug"
    assert re.match(start, sentence)


def add_corpora(report: Report, corpora: dict[str, str], own: str = "prose") -> Report:
    """Add a comparison over corpora to a report: each has this verdict on its first two claims."""
    rows = [
        {
            "corpus": name, "title": name, "verdict": verdict, "compare": "difference", "effect": 0.1,
            "low": 0.0, "high": 0.2, "unit": "nats", "digits": 3, "training_equivalent": None,
        }
        for name, verdict in corpora.items()
    ]  # fmt: skip
    claims = [{"says": claim.says, "rows": rows, "heterogeneity": ""} for claim in report.verdict.claims[:2]]
    states = [{"arm": "mha", "mean": 1.0, "state": None}, {"arm": "gqa", "mean": 1.1, "state": "worse"}]
    arms = [{"corpus": name, "title": name, "cells": states} for name in corpora]
    place = ReplicationContext(kind="corpus", name=own, combined_report="x", ladder=None, rates=None)
    section = CorporaSection.model_validate({"names": [*corpora], "arms": arms, "claims": claims})
    return report.model_copy(update={"replication": place, "corpora": section})


@pytest.mark.parametrize(
    ("tested", "counted", "headline"),
    [
        (["SUPPORTED"], [], "SUPPORTED"),
        (["REFUTED"] * 2, ["SUPPORTED"], "both claims REFUTED; 1 identity holds"),
        (["SUPPORTED"] * 3 + ["REFUTED"], ["SUPPORTED"] * 2, "3 SUPPORTED, 1 REFUTED; 2 identities hold"),
        (["UNTRAINED"] * 3, ["SUPPORTED", "REFUTED"],
         "all 3 claims UNTRAINED; identities: 1 supported, 1 refuted"),
        ([], ["SUPPORTED"] * 14, "14 identities hold"),
        ([], ["REFUTED"], "identities: 1 of 1 refuted"),
        (["NO RESULT"], ["NO RESULT"], "NO RESULT"),
    ],
)  # fmt: skip
def test_headline_counts_tested_claims_apart_from_identities(
    tested: list[str], counted: list[str], headline: str
) -> None:
    claims = [build_claim_result(0.0, 0.1, verdict) for verdict in tested]
    claims += [
        build_claim_result(0.5, 0.5, verdict, identity=True)
        if number % 2
        else build_claim_result(0.5, 0.5, verdict, basis="exact", decision={"exact": True})
        for number, verdict in enumerate(counted)
    ]
    assert format_headline(claims, not_preregistered=False) == headline
    assert format_headline(claims, not_preregistered=True) == "EXPLORATORY"


@pytest.mark.usefixtures("blank_charts")
def test_headline_has_the_verdicts_on_every_corpus(tmp_path: Path) -> None:
    report = make_report(tmp_path / "runs")
    assert build_headline(report) == report.verdict.headline
    corpora = {"prose": "SUPPORTED", "code": "REFUTED"}
    report = add_corpora(report, corpora)
    words = "prose: 2 of 2 supported; code: 2 of 2 refuted; 1 identity holds"
    assert build_headline(report) == words
    assert (
        build_headline(add_corpora(report, corpora, own="code")) == "code: 2 of 2 refuted; 1 identity holds"
    )
    page = render_html(report)
    assert f"<title>gqa_vs_mha: {words} · attnlab</title>" in page
    assert words in render_markdown(report).splitlines()[0].replace("\\", "")
    assert words in render_slide(report).source
    (tmp_path / "gqa_vs_mha").mkdir()
    (tmp_path / "gqa_vs_mha" / "report.json").write_text(format_json(report.to_dict()), "utf-8")
    assert words in render_index(tmp_path)
    assert page.index('class="sortable arms"') < page.index('class="texts ')


@pytest.mark.usefixtures("blank_charts")
def test_many_corpora_come_before_the_arms(tmp_path: Path) -> None:
    names = ("prose", "code", "recall", "copy", "needle")
    report = add_corpora(make_report(tmp_path), dict.fromkeys(names, "SUPPORTED"))
    assert build_headline(report) == "5 corpora: 10 of 10 supported; 1 identity holds"
    assert build_answer(report).sentence == (
        "Against mha over 5 corpora: gqa is worse on 5 of 5; no other difference is shown; at size debug."
    )
    page, markdown = render_html(report), render_markdown(report)
    assert page.index('class="texts ') < page.index('class="sortable arms"')
    assert page.count('class="texts ') == 1
    assert markdown.index("| prose |") < markdown.index("| arm |")
