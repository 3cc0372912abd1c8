"""The first screen: one sentence with its cost, arms best first, terms explained; and the slide."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from synthetic import World, build_context, build_provenance, replace_result, write_runs
from worlds import EVIL, SyntheticReports

from attnlab.report.answer import build_answer, build_arms_table
from attnlab.report.charts import vega_layers
from attnlab.report.charts.chart_renderer import RenderedCharts, Sheet
from attnlab.report.charts.svg import BAND, LITERAL_COLORS
from attnlab.report.pages.glossary import DEFINITIONS, Glossary
from attnlab.report.pages.html import render_html
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.pages.summary import EDGE_MARGIN, MAX_ARMS, WIDTH, render_slide
from attnlab.report.pages.terminal import format_terminal_lines
from attnlab.report.report_builder import build_report, compute_claim_statuses
from attnlab.report.schema import MEANINGS, EffectVerdict, Report, load_report
from attnlab.report.tables import filled_answer
from attnlab.report.tables.wording import DELTA
from attnlab.report.verdicts.budget_check import describe_short_training
from attnlab.report.verdicts.worst_case import find_worst_case

REFERENCES = Path(__file__).parents[2] / "reports" / "reference"


@pytest.fixture(autouse=True)
def _without_current_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the shipped experiment file of the same name, whose answer template would apply."""
    monkeypatch.setattr(filled_answer, "load_current_experiment", lambda _report: {})


@pytest.mark.parametrize(
    ("steps", "epochs", "continued", "is_short"),
    [
        (80, 0.4, 0, True),
        (80, None, 0, True),
        (80, 1.5, 0, False),
        (200, 0.4, 0, False),
        (80, 0.4, 400, False),
    ],
)
def test_page_and_markdown_call_short_training_a_demonstration(
    tmp_path: Path, blank_charts: None, steps: int, epochs: float | None, continued: int, is_short: bool
) -> None:
    runs = []
    for run in write_runs(tmp_path, World()):
        counts = {"steps": steps, "tokens": steps * 512, "epochs": epochs}
        estimate = run.result.estimate.model_copy(update=counts)
        runs.append(replace(replace_result(run, estimate=estimate), ancestor_tokens=continued * 512))
    report = build_report(build_context(World()), runs, None, build_provenance())
    sentence = "Trained for 80 steps: a demonstration of the report, not a finding about the designs."
    for page in (render_html(report), render_markdown(report)):
        assert (sentence in page) == is_short
        assert page.count("SUPPORTED: the statement holds. It does not say that the design is good.") == 1


@pytest.mark.parametrize(
    ("column", "key", "value", "cells"),
    [
        ("learning rate", "lr", 6e-3, ("0.006", "0.003")),
        ("precision", "dtype", "bf16-mixed", ("bf16-mixed", "float32")),
    ],
)
def test_arms_table_has_learning_rate_and_precision_if_an_arm_differs_from_the_baseline(
    tmp_path: Path, blank_charts: None, column: str, key: str, value: Any, cells: tuple[str, str]
) -> None:
    runs = write_runs(tmp_path, World())
    equal = build_report(build_context(World()), runs, None, build_provenance())
    assert column not in build_arms_table(equal)[0]
    runs = [
        replace_result(run, estimate=run.result.estimate.model_copy(update={key: value}))
        if run.arm == "gqa"
        else run
        for run in runs
    ]
    report = build_report(build_context(World()), runs, None, build_provenance())
    header, rows = build_arms_table(report)
    shown = {row[0]: row[header.index(column)] for row in rows}
    assert (shown["gqa"], shown["mha"]) == cells
    assert len(re.findall(rf'<th scope="col"[^>]*>{column}</th>', render_html(report))) == 1


def test_short_training_is_a_demonstration_that_decides_no_loss(tmp_path: Path) -> None:
    runs = []
    for run in write_runs(tmp_path, World()):
        steps = 60 if run.arm == "gqa" else 199
        estimate = run.result.estimate.model_copy(update={"steps": steps, "tokens": steps * 512})
        runs.append(replace_result(run, estimate=estimate))
    report = build_report(build_context(World(), controlled=[]), runs, None, build_provenance())
    assert describe_short_training(report.budget).startswith("Trained for 60 to 199 steps: a demonstration")
    verdicts = [claim.verdict for claim in report.verdict.claims]
    assert verdicts == ["DEMONSTRATION", "DEMONSTRATION", "SUPPORTED"], "a count needs no training"
    statuses = compute_claim_statuses(build_context(World(), controlled=[]), runs)
    assert [status.verdict for status in statuses] == verdicts
    assert {row.verdict for row in report.effects if row.primary} == {"DEMONSTRATION"}
    assert report.verdict.headline == "both claims DEMONSTRATION; 1 identity holds"
    for lines in ([*format_terminal_lines(report)], [render_markdown(report)], [render_html(report)]):
        text = "\n".join(lines).replace("\\", "")
        assert "margin ±0.03: DEMONSTRATION. " in text
        assert MEANINGS["DEMONSTRATION"] in text or len(lines) > 1


def test_measurements_without_training_are_no_demonstration(tmp_path: Path) -> None:
    runs = [
        replace_result(run, estimate=run.result.estimate.model_copy(update={"steps": 0, "tokens": 0}))
        for run in write_runs(tmp_path, World())
    ]
    report = build_report(build_context(World()), runs, None, build_provenance())
    assert describe_short_training(report.budget) == ""


def make_report(folder: Path, world: World, **changes: Any) -> Report:
    return build_report(build_context(world, **changes), write_runs(folder, world), None, build_provenance())


def test_sentence_has_cost_effect_interval_and_scope(synthetic_reports: SyntheticReports) -> None:
    report = synthetic_reports["good"][0]
    sentence = build_answer(report).sentence
    [row] = [row for row in report.effects if row.arm == "gqa" and row.primary]
    assert sentence.startswith(
        "gqa vs mha: halves the KV cache per token; Δ val/loss = +0.004 nats, 95% CI ["
    )
    low, high = (
        float(end) for end in re.search(r"\[(\S+), (\S+)\]", sentence.replace("\N{MINUS SIGN}", "-")).groups()
    )
    assert (low, high) == pytest.approx((row.low, row.high), abs=0.6 * 10**-row.digits)
    assert sentence.endswith(
        "], margin ±0.03: equivalent (SUPPORTED); at size debug (120,000 parameters), on text, 5 seeds."
    )


def test_sentence_shows_a_difference_in_size_of_any_factor(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.004}, parameters={"gqa": 1_560_000})
    report = make_report(tmp_path, world, controlled=["tokens"], match="none", match_by=None)
    sentence = build_answer(report).sentence
    assert sentence.startswith(
        "gqa vs mha: halves the KV cache per token, with 13 times the parameters and 13 times"
    )
    assert sentence.endswith("; at size debug (120,000 to 1,560,000 parameters), on text, 5 seeds.")


def test_sentence_gives_the_arm_minus_the_baseline(tmp_path: Path) -> None:
    better = make_report(tmp_path / "better", World(effects={"mha": 0.0, "gqa": -0.5}))
    assert "; Δ val/loss = −0.500 nats, 95% CI [−0.5" in build_answer(better).sentence
    assert ": not equivalent (REFUTED); " in build_answer(better).sentence
    inconclusive = make_report(tmp_path / "open", World(effects={"mha": 0.0, "gqa": 0.028}))
    assert ", margin ±0.03: INCONCLUSIVE; " in build_answer(inconclusive).sentence


def test_sentence_gives_the_reason_if_nothing_is_comparable(
    tmp_path: Path, synthetic_reports: SyntheticReports
) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.004}, parameters={"gqa": 150_000})
    unfair = make_report(tmp_path, world)
    assert build_answer(unfair).sentence.startswith(
        "gqa vs mha: parameters: controlled, but 150,000 in gqa and 120,000 in mha (NOT COMPARABLE); at"
    )
    nothing = build_answer(synthetic_reports["nothing"][0]).sentence
    assert nothing.startswith("gqa vs mha: no paired seed of gqa and mha is complete (NO RESULT)")
    bare = make_report(tmp_path / "bare", World(), claims=[])
    assert build_answer(bare).sentence.startswith(
        "No preregistered claim. Best mean of 3 arms in val/loss: mha ("
    )


def test_arms_are_sorted_best_first_with_the_mean_of_their_pairs(tmp_path: Path) -> None:
    report = make_report(tmp_path, World(effects={"mha": 0.0, "mqa": 0.06, "gqa": -0.01}))
    rows = build_answer(report).arms
    assert [row.arm for row in rows] == ["gqa", "mha", "mqa"]
    for row in rows:
        values = [run.metrics["val/loss"] for run in report.runs if run.arm == row.arm]
        assert row.result.mean == pytest.approx(sum(values) / len(values))
        assert row.result.low < row.result.mean < row.result.high
    upward = make_report(tmp_path / "up", World(effects={"mha": 0.0, "mqa": 0.06}), direction="higher")
    assert [row.arm for row in build_answer(upward).arms] == ["mqa", "mha"]


def test_first_columns_are_arm_value_difference_and_verdict(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "mqa": 0.06, "gqa": -0.01}, status={("mqa", 4): "missing"})
    header, rows = build_arms_table(make_report(tmp_path / "unequal", world))
    assert header[:5] == ["arm", "val/loss (nats)", DELTA, "verdict", "seeds"]
    assert {row[0]: row[4] for row in rows} == {"gqa": "5", "mha": "5", "mqa": "4"}
    assert {row[0]: row[3] for row in rows}["mha"] == "baseline"
    equal, _ = build_arms_table(make_report(tmp_path / "equal", World()))
    assert "seeds" not in equal, "all arms have the same number"


def test_tables_show_the_level_of_a_verdict_that_their_interval_would_not_give(tmp_path: Path) -> None:
    report = make_report(tmp_path, World())
    worse = next(row for row in report.effects if row.arm == "mqa" and row.primary)
    strict = worse.model_copy(update={"alpha": 0.01, "verdict": EffectVerdict.INCONCLUSIVE})
    report = report.model_copy(
        update={"effects": [strict if row is worse else row for row in report.effects]}
    )
    page = re.sub("<[^>]*>", "", render_html(report, RenderedCharts()))
    assert page.count("INCONCLUSIVE at 99%") == 2
    assert render_markdown(report).count("| INCONCLUSIVE at 99% |") == 2


def test_arms_are_in_the_order_of_the_values_they_show(tmp_path: Path) -> None:
    world = World()
    runs = [
        replace_result(run, metrics={"val/loss": run.result.metrics["val/loss"] - 1.0})
        if run.seed == 4
        else run
        for run in write_runs(tmp_path, world)
        if (run.arm, run.seed) != ("gqa", 4)
    ]  # gqa lacks the seed with the lowest losses
    report = build_report(build_context(world), runs, None, build_provenance())
    rows = build_answer(report).arms
    assert [row.arm for row in rows] == ["mha", "mqa", "gqa"]
    assert [row.result.mean for row in rows] == sorted(row.result.mean for row in rows)
    assert "Arms by val/loss, lowest first. Means" in render_html(report, RenderedCharts())


def test_arm_that_sees_future_tokens_says_so_in_its_row_and_comes_last(tmp_path: Path) -> None:
    sees = {"sees_future": 1.0, "sees_rows": 0.0, "with_future": 0.055, "without_future": 4.2, "checked": 4}
    world = World(effects={"mha": 0.0, "gqa": -1.5, "mqa": 0.06}, leakage={"gqa": sees})
    claim = {"says": "mqa is as good", "arm": "mqa", "is": "within", "threshold": 0.03}
    report = make_report(tmp_path, world, claims=[claim])
    note = "NOT COMPARABLE: sees future tokens in 5 of 5 runs"
    header, rows = build_arms_table(report)
    assert rows[-1][0] == "gqa"
    assert rows[-1][header.index("verdict")].startswith(note)
    page = render_html(report, RenderedCharts())
    page_row = page.split('<tr data-arm="gqa">')[1].split("</tr>")[0]
    assert note in re.sub("<[^>]*>", "", page_row)
    assert "arms that are not ranked come last" in page
    [row] = [line for line in render_markdown(report).splitlines() if line.startswith("| gqa |")][:1]
    assert note in row
    pair = "  gqa vs mha: NOT COMPARABLE: gqa sees future tokens in 5 of 5 runs"
    assert any(line.startswith(pair) for line in format_terminal_lines(report)), "no claim is about gqa"


def test_cache_is_the_bytes_that_each_arm_holds(tmp_path: Path) -> None:
    """The formula of the model has 1,024 bytes for every cache; those of the ledger are the ratios."""
    runs = [
        replace_result(run, metrics=run.result.metrics | {"cache/share": 0.375}) if run.arm == "gqa" else run
        for run in write_runs(tmp_path, World())
    ]
    report = build_report(build_context(World()), runs, None, build_provenance())
    model_bytes = {run.arm: run.result.estimate.kv_bytes_per_token for run in runs}
    held = model_bytes | {"gqa": model_bytes["gqa"] * 0.375}
    header, rows = build_arms_table(report)
    assert {row[0]: row[header.index("KV cache per token (B)")] for row in rows} == {
        arm: f"{value:,.0f}" for arm, value in held.items()
    }
    assert {cell.arm: cell.value for cell in report.budget.find_row("kv_bytes_per_token").cells} == held
    assert {run.arm: run.budget.kv_bytes_per_token for run in report.runs} == held
    assert report.verdict.claims[2].decision.estimate == held["gqa"] / held["mha"]
    published = load_report(REFERENCES / "lossy_caches" / "report.json")
    shares = {run.arm: run.metrics["cache/share"] for run in published.runs if "cache/share" in run.metrics}
    for row in build_answer(published).arms:
        assert row.costs in ([1024 * shares.get(row.arm, 1.0)], [None])


@pytest.mark.parametrize(
    ("experiment", "arms", "arm", "label", "corpus", "mean", "beyond"),
    [
        ("lossy_caches", (), "window_needle", "loss increase at distance/48", "", 6.6, True),
        ("lossy_caches", ("h2o_quarter_recall", "h2o_recall"), "h2o_quarter_recall",
         "loss increase with this cache", "", 5.65, True),
        ("lossy_caches", ("int8", "snapkv"), None, "", "", 0.0, False),
        ("rope_vs_learned", (), None, "", "", 0.0, False),
        ("gqa_vs_mha", (), "mqa", "val/loss", "pydocs", 0.0205, False),
    ],
)  # fmt: skip
def test_worst_case_is_the_largest_harm_over_arms_conditions_and_corpora(
    experiment: str, arms: Sequence[str], arm: str | None, label: str, corpus: str, mean: float, beyond: bool
) -> None:
    case = find_worst_case(load_report(REFERENCES / experiment / "report.json"), arms)
    if arm is None or case is None:
        assert case is arm
        return
    assert (case.arm, case.label, case.corpus, case.is_beyond_margin) == (arm, label, corpus, beyond)
    assert case.harm[0] == pytest.approx(mean, rel=0.02)
    assert 0 < case.harm[1] < case.harm[0] < case.harm[2]


def test_worst_case_of_a_metric_that_is_better_if_higher_is_a_fall(tmp_path: Path) -> None:
    report = make_report(
        tmp_path, World({"mha": 0.0, "gqa": 0.2, "mqa": -0.2}), direction="higher", claims=[], margin=0.1
    )
    case = find_worst_case(report)
    assert case is not None
    assert (case.arm, case.is_beyond_margin) == ("mqa", True)
    assert case.harm[0] == pytest.approx(0.2)


def test_arm_that_sees_future_tokens_is_not_ranked() -> None:
    """No row of causal_leakage may read `BETTER` and nothing else."""
    last = build_answer(load_report(REFERENCES / "causal_leakage" / "report.json")).arms[-1]
    assert (last.arm, last.is_ranked) == ("unmasked", False)
    assert last.verdict == "SEES FUTURE TOKENS (by design)"


def test_arm_without_a_result_has_the_reason(tmp_path: Path) -> None:
    world = World(status={("gqa", seed): "crashed" for seed in range(5)})
    verdicts = {row.arm: row.verdict for row in build_answer(make_report(tmp_path, world)).arms}
    assert verdicts["gqa"] == "NO RESULT: no run finished"
    report = load_report(REFERENCES / "length_extrapolation" / "report.json")
    assert {row.arm: row.verdict for row in build_answer(report).arms}["learned"] == "NO RESULT: not measured"


CLEARLY_BETTER = World(effects={"mha": 0.0, "gqa": -0.5})


def list_verdicts(
    folder: Path, steps: int | None = None, world: World = CLEARLY_BETTER, **changes: Any
) -> list[str]:
    """List the verdicts of the claims, with `changes` in every run result and so many training steps."""
    runs = []
    for run in write_runs(folder, world):
        estimate = run.result.estimate
        shorter = estimate if steps is None else estimate.model_copy(update={"steps": steps})
        config = run.result.config | changes.get("config", {})
        runs.append(replace_result(run, **changes | {"estimate": shorter, "config": config}))
    report = build_report(build_context(world), runs, None, build_provenance())
    verdicts = [claim.verdict for claim in report.verdict.claims]
    for claim in report.verdict.claims:
        assert claim.required_seeds is None or claim.verdict == "INCONCLUSIVE", "no number of seeds helps"
    statuses = compute_claim_statuses(build_context(world), runs)
    assert [status.verdict for status in statuses] == verdicts, "`status` shows what the report will"
    return verdicts


def test_untrained_models_decide_counted_claims_only(tmp_path: Path) -> None:
    assert list_verdicts(tmp_path / "whole") == ["REFUTED", "SUPPORTED"]
    assert list_verdicts(tmp_path / "few", steps=4) == ["UNTRAINED", "SUPPORTED"]
    unsure = World(effects={"mha": 0.0, "gqa": 0.02}, sd=0.06)
    assert list_verdicts(tmp_path / "unsure", world=unsure) == ["INCONCLUSIVE", "SUPPORTED"]
    assert list_verdicts(tmp_path / "both", steps=4, world=unsure) == ["UNTRAINED", "SUPPORTED"]
    guess = {"val/loss": math.log(97), "val/best_loss": math.log(97)}
    assert list_verdicts(tmp_path / "guess", metrics=guess) == ["UNTRAINED", "SUPPORTED"]
    assert list_verdicts(tmp_path / "parent", steps=4, config={"parent": "mha"}) == ["REFUTED", "SUPPORTED"]


def test_models_at_the_best_guess_on_generated_data_are_untrained(tmp_path: Path) -> None:
    def list_at_guess(name: str, guess: float) -> list[str]:
        world, runs = World(effects={"mha": 0.0, "gqa": -0.5}), []
        for run in write_runs(tmp_path / name, world):
            data = run.result.estimate.data | {"guessing_loss": guess}
            estimate = run.result.estimate.model_copy(update={"data": data})
            runs.append(replace_result(run, metrics={"val/loss": 2.0}, estimate=estimate))
        report = build_report(build_context(world), runs, None, build_provenance())
        return [claim.verdict for claim in report.verdict.claims]

    assert list_at_guess("guess", 2.02)[0] == "UNTRAINED"
    assert list_at_guess("learned", 2.1)[0] != "UNTRAINED"


def test_term_is_explained_once_and_markup_is_escaped() -> None:
    glossary = Glossary()
    first = glossary.explain_terms(f"costs 0.1 nats {EVIL} against the margin")
    assert first.count('class="term"') == 2
    assert "<img" not in first
    assert DEFINITIONS["margin"] in first
    assert 'class="term"' not in glossary.explain_terms("nats and margins")
    assert 'class="term"' not in Glossary().explain_terms("an alarming pharmacy"), "no words inside others"


def test_no_two_of_43_arms_share_color_and_shape() -> None:
    arms = [f"arm {i}" for i in range(43)]
    assert len(set(vega_layers.assign_styles(arms, arms[0]).values())) == 43


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("name", ["good", "broken", "nothing", "single"])
def test_slide_has_answer_arms_claims_and_chart(name: str, synthetic_reports: SyntheticReports) -> None:
    report, folder = synthetic_reports[name]
    sheet = render_slide(report)
    texts = list_slide_texts(sheet)
    assert build_answer(report).sentence[:40] in " ".join(texts)
    for row in build_answer(report).arms[:MAX_ARMS]:
        assert row.arm in texts
    for claim in report.verdict.claims:
        assert claim.verdict in texts
    picture = Image.open(folder / "summary.png").convert("RGB")
    band = np.array([int(LITERAL_COLORS[BAND][i : i + 2], 16) for i in (1, 3, 5)])
    in_band = (abs(np.asarray(picture).astype(int) - band) <= 6).all(-1)
    assert in_band.any() == bool(sheet.charts) == (name != "nothing")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "n_charts", "n_rows"),
    [
        ("tied_qkv", 1, 1),
        ("gqa_vs_mha", 1, 3),
        ("every_variant", 1, 2),
        ("heads_by_task", 1, 6),
        ("lossy_caches", 1, 6),
        ("qk_variance", 5, 5),
        ("rope_interpolation", 2, 5),
        ("kv_cache_bytes", 0, 0),
    ],
)
def test_claims_and_their_charts_fit_below_the_arms(name: str, n_charts: int, n_rows: int) -> None:
    sheet = render_slide(load_report(REFERENCES / name / "report.json"))
    assert len(sheet.charts) == n_charts
    rows = [row["label"] for chart in sheet.charts for row in chart.spec["data"]["values"]]
    assert len(rows) == n_rows
    texts = ElementTree.fromstring(sheet.source).findall("{*}text")
    footer = float(texts[-1].get("y", 0)) - 13
    assert max(float(text.get("y", 0)) for text in texts[:-1]) < footer
    bottom = float(ElementTree.fromstring(sheet.source).findall("{*}circle")[0].get("cy", 0)) - 14
    for chart in sheet.charts:
        assert chart.y >= bottom - 1
        bottom = chart.y + chart.scale * chart.spec["height"]
        assert chart.x + chart.scale * chart.spec["width"] == pytest.approx(WIDTH - EDGE_MARGIN, abs=1)
    assert bottom < footer


def test_slide_of_untrained_models_has_the_chart(tmp_path: Path) -> None:
    world, runs = World(effects={"mha": 0.0, "gqa": -0.5}), []
    for run in write_runs(tmp_path, world):
        runs.append(replace_result(run, estimate=run.result.estimate.model_copy(update={"steps": 4})))
    sheet = render_slide(build_report(build_context(world), runs, None, build_provenance()))
    assert [chart.spec["data"]["values"][0]["verdict"] for chart in sheet.charts] == ["UNTRAINED"]


def list_slide_texts(sheet: Sheet) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(sheet.source).findall("{*}text")]


@pytest.mark.parametrize(("arms", "words"), [(9, "and 1 more arm in"), (12, "and 4 more arms in")])
def test_slide_states_the_number_of_omitted_arms(tmp_path: Path, arms: int, words: str) -> None:
    world = World(effects={"mha": 0.0, **{f"arm{i}": 0.01 * i for i in range(1, arms)}})
    report = make_report(tmp_path, replace(world, seeds=[0, 1]), claims=[])
    assert words in render_slide(report).source
