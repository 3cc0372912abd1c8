"""Combined reports of several sizes or corpora, from simulated losses with a known truth."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ledger_rows
import numpy as np
import pytest
from rendering import REFERENCES, make_report
from synthetic import CACHE_RATIO, World, declare_claim, replace_fields

from attnlab.report.charts import chart_renderer
from attnlab.report.charts.chart_renderer import RenderedCharts
from attnlab.report.ladder_schema import LADDER_FILE, load_ladder
from attnlab.report.pages.html import render_page
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.replications import arm_pairs, corpus_comparison, ladder_page
from attnlab.report.replications.ladder_analysis import build_ladder_report, summarize_decision_accuracy
from attnlab.report.schema import EffectVerdict, ReplicationContext, Report, RunRow, Verdict
from attnlab.report.section import Page, list_charts, list_tables
from attnlab.report.tables.wording import format_decision
from attnlab.stats import estimate_paired_difference
from attnlab.store.run_schema import Budget

SIZES = {"40k": (16, 1e10), "S": (16, 6e10), "250k": (8, 4e11), "625k": (4, 2.5e12)}


@cache
def create_template() -> Report:
    """A report of two arms, of which others replace the runs and results."""
    claims = [
        declare_claim("four costs nothing", "four", "below", 0.02),
        declare_claim("it is counted", "four", "below", 0.51, **CACHE_RATIO),
    ]
    world = World({"two": 0.0, "four": 0.01}, seeds=[0, 1])
    words = {"name": "heads", "question": "Do four help?", "margin_reason": "because"}
    with TemporaryDirectory() as folder:
        report = make_report(
            Path(folder), world, baseline="two", margin=0.02, controlled=[], claims=claims, **words
        )
    return replace_fields(report, reproduce__data=[])


def create_report(kind, name, effect, *, seeds, flops, together="heads@steps", verdict="SUPPORTED") -> Report:
    """Losses of two arms: the baseline's fall with compute, the other's are `effect` above them."""
    rng = np.random.default_rng([ord(c) for c in name])
    template = create_template()
    run, pair = template.runs[0], template.effects[0].pairs[0]
    run = replace_fields(
        run,
        budget__flops_per_token=flops / 1e6,
        budget__tokens=10**6,
        budget__parameters=5,
        budget__lr=0.003,
    )
    runs, pairs = [], []
    for seed in range(seeds):
        shared = 2 + 20 * flops**-0.1 + rng.normal(0, 0.02)
        other = shared + effect + rng.normal(0, 0.004)
        losses = {"two": {"val/loss": shared}, "four": {"val/loss": other}}
        runs += [
            replace_fields(run, arm=arm, seed=seed, id=f"{arm}{seed}", metrics=metrics)
            for arm, metrics in losses.items()
        ]
        pairs.append(replace_fields(pair, seed=seed, value=other, against=shared, difference=other - shared))
    ends = {"low": effect - 0.01, "high": effect + 0.01, "n": seeds}
    claim, counted = template.verdict.claims
    claim = replace_fields(
        claim,
        verdict=Verdict(verdict),
        decision=replace_fields(claim.decision, estimate=effect, level=0.95, **ends),
        planned=seeds,
    )
    ladder = {
        "name": "steps", "rungs": {name: [] for name in SIZES}, "seeds": {name: 4 for name in SIZES},
        "rates": {"rung": "S", "power": -0.125}, "margin": 0.02, "margin_reason": "because",
    }  # fmt: skip
    replication = {"kind": kind, "name": name, "combined_report": together, "rates": None, "ladder": ladder}
    return replace_fields(
        template,
        replication=ReplicationContext.model_validate(replication),
        experiment__seeds=[*range(seeds)],
        verdict__claims=[claim, counted],
        verdict__finished=len(runs),
        effects=[
            replace_fields(
                template.effects[0],
                mean=effect,
                planned=seeds,
                pairs=pairs,
                verdict=EffectVerdict.NON_INFERIOR,
                **ends,
            )
        ],
        runs=runs,
    )


def with_runs(original: Report, change: Callable[[RunRow], dict[str, Any]]) -> Report:
    """The same report with changed runs."""
    return replace_fields(original, runs=[replace_fields(run, **change(run)) for run in original.runs])


def with_verdict(original: Report, verdict: str) -> Report:
    """The same report with another verdict on its claims."""
    claims = [replace_fields(claim, verdict=verdict) for claim in original.verdict.claims]
    return replace_fields(original, verdict__claims=claims)


def with_status(original: Report, index: int, status: str) -> Report:
    """The same report, one of its runs with another status."""
    changed = original.runs[index]
    return with_runs(original, lambda run: {"status": status} if run is changed else {})


def create_ladder(*effects):
    """A ladder with these effects, from the smallest size to the largest."""
    return {
        f"heads@steps.{name}": create_report("rung", name, effect, seeds=seeds, flops=flops)
        for (name, (seeds, flops)), effect in zip(SIZES.items(), effects, strict=True)
    }


@pytest.mark.parametrize(
    ("effects", "verdict"),
    [
        ((0.01, 0.01, 0.01, 0.01), "HOLDS"),
        ((0.0, 0.0, 0.0, 0.0), "HOLDS"),
        ((0.02, 0.06, 0.1, 0.14), "GROWS"),
        ((-0.14, -0.1, -0.06, -0.02), "SHRINKS"),
        ((0.06, 0.02, -0.02, -0.06), "FLIPS"),
    ],
)
def test_ladder_verdict_matches_the_truth_and_its_sentence_has_both_ends(effects, verdict):
    [row] = build_ladder_report(create_ladder(*effects)).comparisons
    assert (row.arm, row.against, row.verdict) == ("four", "two", verdict)
    for effect, rung in zip(effects, row.effects, strict=True):
        assert rung.mean == pytest.approx(effect, abs=0.01)
        assert rung.low < effect + 0.01
        assert rung.high > effect - 0.01
    assert " at 40k, " in row.sentence
    assert " at 625k " in row.sentence
    assert row.holdout.hit is True
    step = (effects[-1] - effects[0]) / 2.4  # a tenfold is a little less than a step and a half
    assert row.extrapolation.mean == pytest.approx(effects[-1] + step, abs=0.03)


def test_tenfold_parameters_extrapolate_compute_growth():
    reports = create_ladder(0.02, 0.06, 0.1, 0.14)
    assert build_ladder_report(reports).comparisons[0].at_tenfold_parameters is None, (
        "all have the same parameters"
    )

    def grow_parameters(run):
        parameters = 1e-3 * run.budget.training_flops**0.5
        return {"budget": replace_fields(run.budget, parameters=parameters)}

    [row] = build_ladder_report(
        {title: with_runs(one, grow_parameters) for title, one in reports.items()}
    ).comparisons
    assert row.at_tenfold_parameters.compute == pytest.approx(100)
    slope = row.slope.mean
    assert row.at_tenfold_parameters.mean - row.extrapolation.mean == pytest.approx(slope)
    assert (
        row.at_tenfold_parameters.high - row.at_tenfold_parameters.low
        > row.extrapolation.high - row.extrapolation.low
    )
    assert (
        "; to ten times its parameters, 100 times its compute at the growth of this ladder: +0.2"
        in row.sentence
    )


def render_everywhere(ladder) -> tuple[str, str, str]:
    """The page, the Markdown and the terminal lines of a ladder."""
    page = ladder_page.build_ladder_page(ladder)
    return render_page(page), render_markdown(page), "\n".join(ladder_page.format_ladder_lines(ladder))


def list_records(page: Page, table: str) -> list[dict[str, Any]]:
    return list(list_tables(page.sections)[table].iterate_records())


@pytest.mark.usefixtures("blank_charts")
def test_exploratory_ladder_is_marked_everywhere():
    reports = create_ladder(0.01, 0.01, 0.01, 0.01)
    preregistered = build_ladder_report(reports)
    departed = reports["heads@steps.S"]
    departed = replace_fields(departed, verdict__exploratory=True)
    exploratory = build_ladder_report({**reports, "heads@steps.S": departed})
    for ladder, is_exploratory in ((preregistered, False), (exploratory, True)):
        outputs = render_everywhere(ladder)
        assert ["EXPLORATORY" in output for output in outputs] == [is_exploratory] * 3
        assert ledger_rows.summarize_scaling_verdicts([ladder]) == {
            ("heads", "four", "two"): f"{ladder.scope}: HOLDS{' (exploratory)' if is_exploratory else ''}"
        }
    assert "exploratory" not in ledger_rows.format_decision_accuracy(
        [preregistered]
    ) + ledger_rows.format_decision_accuracy([exploratory])
    accuracy = ledger_rows.format_decision_accuracy([preregistered, exploratory])
    assert "Over 2 ladders: " in accuracy
    assert "agreed in 6 of 6 cases" in accuracy
    assert "Without exploratory ladders: Over 1 ladder: " in accuracy
    assert "agreed in 3 of 3 cases" in accuracy


def name_corpus(original: Report, parameters: int) -> Report:
    """The same report with a corpus and a number of parameters."""
    reproduce = replace_fields(original.reproduce, data=[{"name": "code"}, {"name": "code"}])
    sized = with_runs(original, lambda run: {"budget": replace_fields(run.budget, parameters=parameters)})
    return replace_fields(sized, reproduce=reproduce)


@pytest.mark.usefixtures("blank_charts")
def test_title_of_a_ladder_is_its_claim_with_sizes_and_corpus():
    reports = create_ladder(0.0, 0.0, 0.0, 0.0)
    counts = zip(reports, (48_840, 115_008, 246_240, 1_470_000), strict=True)
    reports = {title: name_corpus(reports[title], count) for title, count in counts}
    ladder = build_ladder_report(reports)
    changed = build_ladder_report(
        reports | {"heads@steps.S": with_verdict(reports["heads@steps.S"], "INCONCLUSIVE")}
    )
    end = "49k to 1.47M parameters, on code"
    assert changed.headline.startswith(
        f"four vs two: supported at 3 sizes (40k, 250k, 625k), inconclusive at 1 size (S), {end}; "
    )
    claim = (
        f"four vs two: supported at all 4 sizes, {end}; the effect changes with size by less than the margin"
    )
    page, markdown, terminal = render_everywhere(ladder)
    assert f"<title>heads@steps: {claim} · attnlab</title>" in page
    assert "<h1>heads@steps</h1>\n" in page
    assert "Do four help? Does the answer hold across sizes, on code?" in page
    answer = claim.replace("four vs two", "four costs nothing")
    assert "# heads@steps\n\nDo four help? Does the answer hold across sizes, on code?\n" in markdown
    assert f"\n## Across sizes\n\n{answer}.\n" in markdown
    assert terminal.splitlines()[0] == f"heads@steps: {claim}"
    unsure = replace_fields(ladder.comparisons[0], verdict="INCONCLUSIVE")
    assert replace_fields(ladder, comparisons=[unsure]).headline.endswith(
        "; whether the effect changes with size: not shown"
    )


def test_sibling_pages_have_distinct_titles():
    sizes = create_ladder(0.01, 0.01, 0.01, 0.01)
    corpora = [
        create_report("corpus", name, 0.01, seeds=4, flops=1e10, together="heads")
        for name in ("plain", "code")
    ]
    titles = [report.title for report in (*corpora, *sizes.values())]
    assert titles[:4] == [
        "heads on plain",
        "heads on code",
        "heads@steps at size 40k",
        "heads@steps at size S",
    ]
    assert ladder_page.build_ladder_page(build_ladder_report(sizes)).title not in titles


def test_verdict_of_a_ladder_follows_from_the_intervals_that_it_prints():
    """Three seeds with little noise by chance do not flip a ladder whose other sizes are noisy."""
    reports = create_ladder(0.01, 0.02, 0.03, -0.02)
    noise = {"heads@steps.625k": 0.0001}
    for title, report in reports.items():
        rng = np.random.default_rng(5)
        shift = {run.seed: rng.normal(0, noise.get(title, 0.03)) for run in report.runs if run.arm == "four"}
        mean = sum(shift.values()) / len(shift)
        reports[title] = with_runs(report, lambda run, shift=shift, mean=mean: {
            "metrics": {"val/loss": run.metrics["val/loss"] + (shift[run.seed] - mean) * (run.arm == "four")}
        })  # fmt: skip
    [row] = build_ladder_report(reports).comparisons
    last = row.effects[-1]
    own = estimate_paired_difference(last.differences)
    assert last.mean == pytest.approx(own.mean)
    assert last.low < own.low < own.high < last.high, "at least the noise of all sizes"
    published = [load_ladder(path.parent) for path in sorted(REFERENCES.glob("*@*/ladder.json"))]
    comparisons = [
        row,
        *(row for ladder in published if not ladder.ladder.budgets for row in ladder.comparisons),
    ]
    assert {row.verdict for row in comparisons} >= {"FLIPS", "INCONCLUSIVE", "GROWS", "SHRINKS"}
    for comparison in comparisons:
        first, last = comparison.effects[0], comparison.effects[-1]
        is_flip = max(first.low, last.low) > 0 > min(first.high, last.high)
        assert is_flip == (comparison.verdict == "FLIPS"), comparison.sentence


def test_outlying_largest_size_is_a_holdout_miss():
    [row] = build_ladder_report(create_ladder(0.01, 0.01, 0.01, 0.2)).comparisons
    assert row.holdout.hit is False
    assert row.verdict != "HOLDS"
    assert "differs from the prediction from the others" in row.sentence


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("killed", "runs are not finished at 40k (1)"),
        ("diverged", "runs failed at 40k (1)"),
        ("out_of_memory", "runs failed at 40k (1)"),
    ],
)
def test_failed_run_leaves_no_verdict(status, reason):
    reports = create_ladder(0.01, 0.01, 0.01, 0.01)
    lowest = with_status(reports["heads@steps.40k"], 1, status)
    ladder = build_ladder_report({**reports, "heads@steps.40k": lowest})
    [row] = ladder.comparisons
    assert row.verdict == "INCONCLUSIVE"
    assert reason in row.reason
    assert (len(row.effects[0].differences), row.effects[0].failed) == (15, status != "killed")
    assert [losses.multiplier for losses in ladder.losses] == [None, None], "that of the survivors"


def test_arm_with_higher_loss_has_a_multiplier_below_one():
    reports = create_ladder(0.05, 0.05, 0.05, 0.05)
    [base, arm] = build_ladder_report(reports).losses
    assert base.multiplier is None
    assert {"0 %", "25 %", "50 %", "75 %"} <= arm.multiplier.floors.keys()
    assert all(cell.value < 0.9 for cell in arm.multiplier.floors.values())
    assert arm.multiplier.lowest < arm.multiplier.highest
    no_losses = {
        title: with_runs(one, lambda run: {"metrics": {"val/loss": 0.1 * (run.arm == "four")}})
        for title, one in reports.items()
    }
    assert [losses.multiplier for losses in build_ladder_report(no_losses).losses] == [None, None]


@pytest.mark.parametrize(("arms", "charts"), [(("four",), ["losses"]), (("two", "four"), [])])
def test_ladder_without_a_finished_pair_has_no_verdict_and_no_chart_of_the_effect(arms, charts):
    failed = {"status": "crashed", "metrics": {}, "budget": Budget()}
    reports = {
        title: with_runs(one, lambda run: failed if run.arm in arms else {})
        for title, one in create_ladder(0.01, 0.01, 0.01, 0.01).items()
    }
    ladder = build_ladder_report(reports)
    [row] = ladder.comparisons
    assert (row.verdict, row.extrapolation, row.line) == ("INCONCLUSIVE", None, [])
    page = ladder_page.build_ladder_page(ladder)
    assert list_records(page, "ladder")[0]["verdict"] == "INCONCLUSIVE"
    assert [chart.name for chart in list_charts(page.sections)] == charts


def test_decision_accuracy_counts_claims_decided_at_adjacent_sizes():
    accuracy = summarize_decision_accuracy(
        [["SUPPORTED", "SUPPORTED", "REFUTED", "INCONCLUSIVE"], [None, "SUPPORTED", "SUPPORTED"]]
    )
    assert "agreed in 2 of 3 cases" in accuracy.sentence
    assert "in 2 further cases" in accuracy.sentence
    assert "no claim was decided" in summarize_decision_accuracy([["INCONCLUSIVE", "SUPPORTED"]]).sentence


def test_sizes_are_ordered_by_compute():
    reports = create_ladder(0.01, 0.01, 0.01, 0.01)
    stored = {
        title: Report.model_validate_json(json.dumps(reports[title].to_dict(), sort_keys=True))
        for title in sorted(reports)
    }
    assert [rung.name for rung in build_ladder_report(stored).sizes] == ["40k", "S", "250k", "625k"]
    assert build_ladder_report(stored) == build_ladder_report(reports)


def test_ladder_page_is_rendered_from_its_data_alone(tmp_path, monkeypatch):
    def draw(charts):
        return RenderedCharts({name: f"<svg>{name}</svg>" for chart in charts for name in chart.list_names()})

    monkeypatch.setattr("attnlab.report.pages.html.render_charts", draw)
    folder = tmp_path / "heads@steps"
    page = ladder_page.write_ladder(folder, create_ladder(0.01, 0.01, 0.01, 0.01))
    original, markdown = page.read_text(), (folder / "ladder.md").read_text()
    parts = ("<svg>effect0</svg>", "HOLDS", "<svg>losses</svg>", 'href="../heads%40steps.40k/report.html"')
    places = [original.partition("<main")[2].index(part) for part in parts]
    assert places == sorted(places), "the chart of the answer comes first"
    assert "| four against two | HOLDS the effect changes with size by less than the margin | " in markdown
    page.unlink()
    assert ladder_page.render_ladder(folder).read_text() == original
    document = json.loads((folder / LADDER_FILE).read_text())
    (folder / LADDER_FILE).write_text(json.dumps({**document, "schema": 0}))
    with pytest.raises(ValueError, match="schema is 0"):
        load_ladder(folder)


def test_tables_of_a_ladder_have_its_numbers():
    ladder = build_ladder_report(create_ladder(0.02, 0.06, 0.1, 0.14))
    page = ladder_page.build_ladder_page(ladder)
    [row] = ladder.comparisons
    [record] = list_records(page, "ladder")
    assert record["verdict"] == "GROWS"
    assert record["result"] == row.sentence
    assert (record["arm"], record["against"]) == ("four", "two")
    for key, mean in {
        "change": row.change,
        "at_tenfold_compute": row.extrapolation,
        "predicted": row.holdout,
    }.items():
        assert (record[key], record[f"{key}_low"], record[f"{key}_high"]) == (mean.mean, mean.low, mean.high)
    assert record["observed"] == row.holdout.observed
    effects = list_records(page, "ladder_effects")
    assert [(one["step"], one["n"]) for one in effects] == [("40k", 16), ("S", 16), ("250k", 8), ("625k", 4)]
    assert [(one["mean"], one["low"], one["high"]) for one in effects] == [
        (one.mean, one.low, one.high) for one in row.effects
    ]
    multiplier = ladder.losses[1].multiplier.floors["0 %"]
    compute = list_records(page, "ladder_compute")[0]
    assert compute["compute_change"] == multiplier.value - 1 < 0, (
        "the baseline needs less to match a higher loss"
    )
    assert compute["compute_change_low"] == multiplier.low - 1
    assert list_records(page, "ladder_claims")[0]["625k"] == "SUPPORTED"
    sizes = list_records(page, "ladder_sizes")
    assert [one["finished"] for one in sizes] == [32, 32, 16, 8]


@pytest.mark.usefixtures("blank_charts")
@pytest.mark.parametrize(("rate", "has_caveat"), [(0.003, False), (0.006, True)])
def test_transferred_rates_that_differ_get_a_caveat(rate, has_caveat):

    def set_rate(run):
        lr = rate if run.arm == "four" else 0.003
        return {"budget": replace_fields(run.budget, lr=lr)}

    reports = create_ladder(-0.02, -0.04, -0.06, -0.08)
    ladder = build_ladder_report({title: with_runs(one, set_rate) for title, one in reports.items()})
    caveat = "At S, the tuned learning rates are 0.006 for four and 0.003 for two; they are not tuned at the"
    assert [caveat in output for output in render_everywhere(ladder)] == [has_caveat] * 3
    alone = replace_fields(ladder, ladder__rates=None)
    assert caveat not in "".join(ladder_page.format_ladder_lines(alone))
    [sizes] = ledger_rows.summarize_scaling_verdicts([ladder]).values()
    assert sizes.endswith(" (learning rates differ)") == has_caveat


def test_charts_of_a_ladder_can_be_rendered():
    page = ladder_page.build_ladder_page(build_ladder_report(create_ladder(0.01, 0.02, 0.03, 0.04)))
    rendered = chart_renderer.render_charts(list_charts(page.sections))
    assert not rendered.errors
    assert set(rendered.svgs) == {"effect0", "effect0-narrow", "losses", "losses-narrow"}


def test_every_report_compares_all_corpora():
    reports = {
        "heads": create_report("corpus", "plain", 0.05, seeds=8, flops=1e10, together="heads"),
        "heads@code": create_report(
            "corpus", "code", 0.01, seeds=8, flops=1e10, together="heads", verdict="REFUTED"
        ),
    }
    alone = {"heads": reports["heads"]}
    assert corpus_comparison.add_corpus_comparison(alone) == alone
    compared = corpus_comparison.add_corpus_comparison(reports)
    assert compared["heads"].corpora == compared["heads@code"].corpora
    [claim] = compared["heads"].corpora.claims  # exact claims are equal on every corpus
    assert [(row.corpus, row.verdict, row.title) for row in claim.rows] == [
        ("plain", "SUPPORTED", "heads"), ("code", "REFUTED", "heads@code"),
    ]  # fmt: skip
    assert claim.heterogeneity.endswith("so the effect differs by corpus")
    difference = r"plain minus code: \+0\.03\d+ nats, 95% CI \[\+0\.03\d+, \+0\.04\d+\], so "
    assert re.match(difference, claim.heterogeneity)
    failed = {**reports, "heads@code": with_status(reports["heads@code"], 1, "diverged")}
    [failed_claim] = corpus_comparison.add_corpus_comparison(failed)["heads"].corpora.claims
    assert failed_claim.heterogeneity == "runs failed on code (1), so the corpora are not compared"
    assert [row.decision for row in claim.rows] == [
        format_decision(report.verdict.claims[0]) for report in reports.values()
    ]
    assert all(row.decision.startswith("95% CI [") for row in claim.rows)
    rows = compared["heads"].corpora.arms
    assert [(row.corpus, row.title) for row in rows] == [("plain", "heads"), ("code", "heads@code")]
    for row in rows:
        assert [(cell.arm, cell.state) for cell in row.cells] == [
            ("two", None),
            ("four", "non-inferior"),
        ]


def test_effect_over_three_corpora_has_the_format_of_an_effect():
    reports = {
        name: create_report("corpus", name, effect, seeds=8, flops=1e10, together="heads")
        for name, effect in (("plain", -0.05), ("code", 0.01), ("names", -0.02))
    }
    [claim] = corpus_comparison.add_corpus_comparison(reports)["plain"].corpora.claims
    assert re.fullmatch(
        r"over 3 corpora the effect is −0\.02\d? nats, 95% CI \[−0\.\d+, \+0\.\d+\], with a "
        r"standard deviation of 0\.03\d? nats between corpora; 95% prediction interval for a new "
        r"corpus: \[−0\.\d+, \+0\.\d+\]",
        claim.heterogeneity,
    )


def test_differences_use_seeds_that_both_arms_finished():
    finished = create_report("corpus", "plain", 0.05, seeds=3, flops=1e10)
    killed = with_status(finished, 0, "killed")
    assert len(arm_pairs.compute_differences(killed, "four", "two", "val/loss")) == 2
    assert arm_pairs.count_failed_runs(killed, "two") == 0
    assert arm_pairs.count_failed_runs(with_status(finished, 0, "diverged"), "two") == 1
    assert arm_pairs.get_training_flops(finished, "four") == pytest.approx(1e10)
