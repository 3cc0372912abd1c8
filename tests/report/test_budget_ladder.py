"""Combined report of several budgets: the verdict follows each seed, and no text speaks of sizes."""

import re

import ledger_rows
import numpy as np
import pytest
from synthetic import replace_fields
from test_replications import create_report

from attnlab.report.ladder_schema import load_ladder
from attnlab.report.pages.index import render_index
from attnlab.report.replications import ladder_page
from attnlab.report.replications.ladder_analysis import build_ladder_report
from attnlab.report.replications.ladder_figures import build_effect_charts, build_loss_charts
from attnlab.report.schema import Report
from attnlab.stats.replications.budget_verdict import BudgetTrajectories
from attnlab.store.experiment_schema import LadderConfig

BUDGETS = {"1x": 1.0, "2x": 2.0, "4x": 4.0, "8x": 8.0}
LADDER = {
    "name": "tokens", "budgets": BUDGETS, "seeds": dict.fromkeys(BUDGETS, 6), "overrides": ["schedule=wsd"],
    "rates": {"rung": "2x", "power": 0.0}, "margin": 0.02, "margin_reason": "because",
}  # fmt: skip


def create_budget(name: str, effects: list[float]) -> Report:
    """A report at one budget whose paired differences are exactly these."""
    report = create_report("rung", name, 0.0, seeds=len(effects), flops=1e10, together="heads@tokens")
    tokens = round(4e5 * BUDGETS[name])
    runs = [
        replace_fields(
            run,
            budget__tokens=tokens,
            metrics={"val/loss": 2.0 + effects[run.seed] * (run.arm == "four")},
        )
        for run in report.runs
    ]
    ladder = LadderConfig.model_validate(LADDER)
    return replace_fields(report, replication__ladder=ladder, runs=runs)


def create_budget_ladder(*means: float, seeds: int = 6) -> dict[str, Report]:
    rng = np.random.default_rng(0)
    of_seed = rng.normal(0, 0.003, seeds)  # shared by all budgets
    return {
        f"heads@tokens.{name}": create_budget(name, [*(mean + of_seed + rng.normal(0, 0.001, seeds))])
        for name, mean in zip(BUDGETS, means, strict=True)
    }


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ((-0.1, -0.06, -0.03, -0.001), "SAME PLATEAU"),
        ((-0.06, -0.06, -0.06, -0.06), "PERSISTS"),
        ((-0.03, -0.05, -0.07, -0.09), "GROWS"),
        ((0.0, 0.0, 0.0, 0.0), "INCONCLUSIVE"),
    ],
)
def test_verdict_of_a_ladder_of_budgets(means, verdict):
    ladder = build_ladder_report(create_budget_ladder(*means))
    [row] = ladder.comparisons
    assert (row.arm, row.against, row.verdict) == ("four", "two", verdict)
    assert "400k to 3.2M tokens" in ladder.headline
    assert all(losses.multiplier is None for losses in ladder.losses), "seeds of budgets are not independent"


def test_change_and_line_are_those_of_the_trajectories():
    reports = create_budget_ladder(-0.1, -0.06, -0.03, -0.001)
    [row] = build_ladder_report(reports).comparisons
    trajectories = BudgetTrajectories(
        [1, 2, 4, 8], np.array([effect.differences for effect in row.effects]).T
    )
    change = trajectories.estimate_change()
    assert (row.change.mean, row.change.low, row.change.high) == (change.mean, change.low, change.high)
    assert row.line[0].flops == pytest.approx(4e9)
    assert row.line[-1].flops == pytest.approx(3.2e10)
    assert row.line[-1].mean == pytest.approx(trajectories.estimate_line(3.0).mean)


def test_a_seed_without_every_budget_is_left_out():
    reports = create_budget_ladder(-0.06, -0.06, -0.06, -0.06)
    last = reports["heads@tokens.8x"]
    runs = [run for run in last.runs if run.seed != 0]
    reports["heads@tokens.8x"] = replace_fields(last, runs=runs)
    [row] = build_ladder_report(reports).comparisons
    assert [effect.n for effect in row.effects] == [5, 5, 5, 5]
    kept = BudgetTrajectories([1, 2, 4, 8], np.array([effect.differences for effect in row.effects]).T)
    assert row.change.mean == kept.estimate_change().mean


def test_figures_are_drawn_at_the_tokens_of_each_budget():
    """An arm with more FLOPs per token has the same tokens, so its points share the baseline's x."""
    reports = create_budget_ladder(-0.1, -0.06, -0.03, -0.001)
    for title, report in reports.items():
        runs = [
            replace_fields(run, budget__flops_per_token=1.7e4 if run.arm == "four" else 1e4)
            for run in report.runs
        ]
        reports[title] = replace_fields(report, runs=runs)
    ladder = build_ladder_report(reports)
    tokens = {float(size.tokens) for size in ladder.sizes}
    [losses] = build_loss_charts(ladder)
    effects = build_effect_charts(ladder)[0]
    for chart, arms in ((losses, ("two", "four")), (effects, (None,))):
        rows = chart.draw(width=640)["data"]["values"]
        for arm in arms:
            assert {row["flops"] for row in rows if row.get("arm") == arm} == tokens


def test_page_and_text_speak_of_budgets(tmp_path, blank_charts):
    page = ladder_page.write_ladder(
        tmp_path / "heads@tokens", create_budget_ladder(-0.1, -0.06, -0.03, -0.001)
    )
    ladder = load_ladder(page.parent)
    html = page.read_text("utf-8")
    markdown = (page.parent / "ladder.md").read_text("utf-8")
    terminal = "\n".join(ladder_page.format_ladder_lines(ladder))
    for text in (html, markdown):
        assert "SAME PLATEAU" in text
        assert "Effect at each budget" in text
        assert "tuned at budget 2x; the others have the same" in text
        body = re.sub(r"<(style|script)>.*?</\1>|</?span[^>]*>", "", text, flags=re.DOTALL)
        assert "Those at one budget are of the seeds that were trained with every budget" in body
        assert not re.search(r"ladder size|at each size|across sizes|ten times", body, re.IGNORECASE)
    assert "reached sooner, not lower" in terminal
    [summary] = ledger_rows.summarize_scaling_verdicts([ladder]).values()
    assert summary == "400k to 3.2M tokens: SAME PLATEAU"
    index = render_index(tmp_path)
    assert "only reached sooner?" in index
    assert "budgets 1x to 8x" in index
    assert not re.search(r"across sizes|size 1x", index)
    assert "Decision accuracy" not in html + markdown + terminal


def test_arms_with_other_learning_rates_have_a_caveat_about_budgets():
    ladder = build_ladder_report(create_budget_ladder(-0.1, -0.06, -0.03, -0.001))
    [row] = ladder.comparisons
    rates = {row.arm: 0.006, row.against: 0.003}
    sizes = [replace_fields(size, learning_rates=rates) for size in ladder.sizes]
    caveat = ladder_page.describe_learning_rate_caveat(replace_fields(ladder, sizes=sizes), row)
    assert "they are not tuned at the other budgets, so part of the effect there" in caveat
