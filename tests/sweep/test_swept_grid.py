"""The grid in the report of a sweep without an experiment: cells and main effects."""

import itertools
import signal
from statistics import fmean

import numpy as np
import pytest
from processes import load_records_by_act, wait_until
from toys import InProcessChecker

from attnlab.cli.commands import parse_verb_line
from attnlab.cli.main import main
from attnlab.cli.verbs import clean
from attnlab.errors import InvalidConfig
from attnlab.report.frames import load
from attnlab.report.pages.terminal import format_terminal_lines
from attnlab.report.schema import Report, load_report
from attnlab.report.section import Text, list_tables
from attnlab.report.sections import PageContext, grid_section
from attnlab.report.verdicts.budget_check import MIN_TRAINED_STEPS
from attnlab.store import run_directories
from attnlab.store.guards import run_references
from attnlab.store.run_schema import Failure, Metric, RunResult
from attnlab.sweep import reporting


@pytest.fixture
def report_grid(plan_toy, tmp_path):
    """`report_grid(*line, values=..., statuses=..., estimates=...)`: the report of a toy sweep.

    `values` maps (arm, seed) to the loss, a default otherwise; a status of None leaves a run unfinished.
    """

    def call(*line, values=None, statuses=None, estimates=None, as_draft=False):
        [plan] = plan_toy(*line)
        root = tmp_path / "runs"
        for i, run in enumerate(plan.runs):
            status = (statuses or {}).get((run.arm, run.seed), "done")
            estimate = run.estimate.model_copy(update=(estimates or {}).get(run.arm, {}))
            run_directories.write_run_config(root, run)
            if status is None:
                continue
            done = status == "done"
            loss = (values or {}).get((run.arm, run.seed), 2.0 + 0.01 * i)
            result = RunResult(
                id=run.id, status=status, seed=run.seed, config=run.config, estimate=estimate,
                failure=None if done else Failure(message="no result", step=1, tail=[]),
                metrics={"val/loss": loss} if done else {},
                metric_definitions={"val/loss": Metric("val/loss", unit="nats")},
            )  # fmt: skip
            run_directories.write_run_result(root / run.id, result)
        draft = reporting.assemble_report(plan, root, None, ["heads=..."])
        return draft if as_draft else draft.document

    return call


def list_cells(report):
    """The rows of the table of cells, for programs."""
    return [*list_tables([grid_section.build(report, PageContext())])["grid"].iterate_records()]


def states(grid):
    return {cell.arm: cell.state for cell in grid.cells}


def test_title_names_axes_and_distinguishes_values_settings_and_seeds(plan_toy):
    lines = (
        ["heads=one,two", "optim.lr=0.1,0.2"],
        ["heads=one,four", "optim.lr=0.1,0.2"],
        ["heads=two,one", "optim.lr=0.1,0.2"],
        ["heads=one,two", "optim.lr=0.1,0.2", "model.width=8"],
        ["heads=one,two", "optim.lr=0.1,0.2", "seed=1,2"],
    )
    plans = [plan_toy(*line)[0] for line in lines]
    titles = [plan.title for plan in plans]
    assert {plan.experiment.name for plan in plans} == {"heads_x_lr"}
    assert len(set(titles)) == 5
    assert all(title.startswith("heads_x_lr~") and len(title) == len("heads_x_lr~") + 8 for title in titles)
    assert plan_toy(*lines[0], "sweep.slots=1")[0].title == titles[0]
    assert plan_toy("heads=one,two")[0].title.startswith("sweep_heads~")
    assert plan_toy("model.width=8,9", "+data.width=1,2")[0].name == "model.width_x_data.width"


def test_seeds_are_no_axis(plan_toy):
    [plan] = plan_toy("seed=0,1", "heads=one")
    assert (plan.experiment, plan.grid) == (None, None)
    [plan] = plan_toy("seed=0,1", "optim.lr=0.1,0.2")
    assert plan.grid.axes == {"optim.lr": ("0.1", "0.2")}


def test_cells_and_effects_are_those_of_the_runs(report_grid):
    heads, widths, seeds = ("one", "two", "four"), (8, 9), (0, 1)
    rng = np.random.default_rng(0)
    losses = rng.normal(2.0, 0.1, (3, 2, 2))
    values = {
        (f"{head} width={width}", seed): losses[i, j, k]
        for (i, head), (j, width), (k, seed) in itertools.product(
            enumerate(heads), enumerate(widths), enumerate(seeds)
        )
    }
    grid = report_grid("heads=one,two,four", "model.width=8,9", "seed=0,1", values=values).grid
    for cell in grid.cells:
        own = [values[cell.arm, seed] for seed in seeds]
        assert (cell.n, cell.planned, cell.state) == (2, 2, "TRAINED")
        assert cell.mean == pytest.approx(fmean(own))
        assert cell.sd == pytest.approx(np.std(own, ddof=1))
    assert grid.best == min(grid.cells, key=lambda cell: cell.mean).arm
    [by_heads, by_width] = grid.axes
    for i, effect in enumerate(by_heads.effects):
        assert effect.mean == pytest.approx(losses[i].mean())
        assert effect.difference == pytest.approx(losses[i].mean() - losses[0].mean())
        ranges = [losses[i, j].mean() - losses[0, j].mean() for j in range(2)]
        assert (effect.low, effect.high) == pytest.approx((min(ranges), max(ranges)))
    assert (by_width.combinations, by_width.blocks) == (3, 6)


def test_rejected_combination_leaves_its_cell_empty(plan_toy, report_grid):
    line = ("heads=one,two", "model.width=12,13", "seed=0,1")
    [plan] = plan_toy(*line)
    assert [run.arm for run in plan.runs if run.seed == 0] == ["one width=12", "one width=13", "two width=12"]
    [rejection] = plan.grid.describe_rejections()
    assert rejection == "two width=13 is not trained: model.width=13 is no multiple of n_heads=2"
    report = report_grid(*line)
    cell = report.grid.find_cell("two width=13")
    assert (cell.state, cell.n, cell.mean) == ("NO RESULT", 0, None)
    assert cell.reason == "rejected: model.width=13 is no multiple of n_heads=2"
    assert report.grid.axes[0].blocks == 2, "the width that both heads have, with two seeds"
    assert [row["note"] for row in list_cells(report) if row["arm"] == cell.arm] == [cell.reason]


@pytest.mark.parametrize(
    "line",
    [
        ["heads=two,four", "model.width=12,13"],  # no head allows a width of 13
        ["heads=one,two", "model.width=12,-1"],
        ["heads=two", "model.width=12,13"],
    ],
)
def test_option_without_any_valid_combination_is_an_error(plan_toy, line):
    with pytest.raises(InvalidConfig, match=r"arm .*width=-?1"):
        plan_toy(*line)


def test_first_combination_may_be_rejected(plan_toy):
    [plan] = plan_toy("heads=two,one", "model.width=13,12")
    assert plan.experiment.baseline == "two width=12"


def test_repeated_plan_of_a_rejected_combination_keeps_its_reason(plan_toy, monkeypatch):
    monkeypatch.setattr(InProcessChecker, "module", "toy_trainer", raising=False)
    line = ("heads=one,two", "model.width=12,13")
    plans = [plan_toy(*line)[0] for _ in range(2)]
    assert plans[0].grid.rejected == plans[1].grid.rejected != {}


def test_missing_and_failed_runs_show_their_reason(report_grid):
    line = ("heads=one,two,four", "optim.lr=0.1,0.2", "seed=0,1,2")
    statuses = {("four lr=0.2", 2): None} | {("two lr=0.2", seed): "crashed" for seed in (0, 1, 2)}
    report = report_grid(*line, statuses=statuses)
    rows = {row["arm"]: (row["n"], row["planned"], row["note"]) for row in list_cells(report)}
    assert rows["four lr=0.2"] == (2, 3, "not finished: seed 2")
    assert rows["two lr=0.2"] == (0, 3, "crashed: seeds 0 to 2")
    assert report.grid.best_note == "compared over seeds 0, 1, which all of these cells finished"


def test_cell_with_a_diverged_run_is_not_best(report_grid):
    line = ("heads=one,two", "optim.lr=0.1,0.2", "seed=0,1")
    values = {("one lr=0.1", 0): 1.0}
    report = report_grid(*line, values=values, statuses={("one lr=0.1", 1): "diverged"})
    assert report.grid.find_cell("one lr=0.1").state == "TRAINED"
    assert report.grid.best != "one lr=0.1"
    assert "not counted, because a run diverged: one lr=0.1" in grid_section.format_best_cell(report.grid)


def test_untrained_cells_are_marked_by_the_rule_of_experiments_and_never_best(report_grid):
    line = ("heads=one,two", "optim.lr=0.1,0.2", "seed=0,1")
    values = {("one lr=0.1", seed): 1.0 for seed in (0, 1)}  # lowest, after too few steps
    values |= {("two lr=0.2", seed): 4.6 for seed in (0, 1)}  # of ln 100 = 4.605
    estimates = {"one lr=0.1": {"steps": MIN_TRAINED_STEPS - 1}, "one lr=0.2": {"steps": MIN_TRAINED_STEPS}}
    report = report_grid(*line, values=values, estimates=estimates)
    assert list(states(report.grid).values()) == ["UNTRAINED", "TRAINED", "TRAINED", "UNTRAINED"]
    assert report.grid.find_cell("one lr=0.1").reason == "trained for 49 steps, below the minimum of 50"
    assert report.grid.find_cell("two lr=0.2").reason == "no better than guessing at the end of training"
    assert report.grid.best in ("one lr=0.2", "two lr=0.1")
    assert not report.grid.axes[0].effects
    [cell, *_] = list_cells(report)
    assert (cell["heads"], cell["lr"], cell["mean"], cell["sd"], cell["n"]) == ("one", "0.1", 1.0, 0.0, 2)
    assert cell["note"] == "UNTRAINED: trained for 49 steps, below the minimum of 50"
    assert "UNTRAINED" in "\n".join(format_terminal_lines(report))


def test_no_cell_is_best_if_all_are_untrained(report_grid):
    line = ("heads=one,two", "optim.lr=0.1,0.2", "seed=0,1")
    estimates = {f"{head} lr={lr}": {"steps": 3} for head in ("one", "two") for lr in (0.1, 0.2)}
    report = report_grid(*line, estimates=estimates)
    assert {*states(report.grid).values()} == {"UNTRAINED"}
    assert report.grid.best is None
    section = grid_section.build(report, PageContext())
    assert section.blocks[0].plain.endswith("(4 of 4 cells UNTRAINED).")
    assert section.heading == "Grid: heads × lr"
    assert "main_effects" not in list_tables([section])
    assert {block.plain for block in section.blocks[2:] if isinstance(block, Text)} == {
        f"No main effect of {axis.name}: {axis.reason}." for axis in report.grid.axes
    }


def test_cells_on_other_validation_data_are_not_comparable(report_grid):
    line = ("heads=one,two", "data=plain,other", "seed=0,1")
    data = {"name": "toy", "sha256": "a", "vocab_size": 100, "unit": "char", "validation": "a"}
    other = {**data, "name": "other", "validation": "b"}
    estimates = {f"{head} {name}": {"data": other if name == "other" else data}
                 for head in ("one", "two") for name in ("plain", "other")}  # fmt: skip
    grid = report_grid(*line, estimates=estimates).grid
    assert [states(grid)[f"{head} {name}"] for head in ("one", "two") for name in ("plain", "other")] == [
        "TRAINED", "NOT COMPARABLE", "TRAINED", "NOT COMPARABLE",
    ]  # fmt: skip
    assert grid.best.endswith("plain")


def test_table_has_a_row_per_cell_of_any_number_of_axes(report_grid):
    line = ("heads=one,two", "model.width=8,9", "optim.lr=0.1,0.2,0.3", "seed=0,1")
    values = {
        (f"{head} width={width} lr={lr}", seed): 2 + (head == "two") * 0.01 + width * 0.1 + lr + seed * 0.001
        for head in ("one", "two") for width in (8, 9) for lr in (0.1, 0.2, 0.3) for seed in (0, 1)
    }  # fmt: skip
    report = report_grid(*line, values=values)
    rows = list_cells(report)
    means = {
        options: fmean(values["{} width={} lr={}".format(*options), seed] for seed in (0, 1))
        for options in itertools.product(("one", "two"), (8, 9), (0.1, 0.2, 0.3))
    }
    assert [(row["heads"], row["width"], row["lr"], row["mean"]) for row in rows] == [
        (*map(str, options), pytest.approx(mean)) for options, mean in means.items()
    ]
    assert [row["note"] or "" for row in rows] == ["best"] + [""] * 11
    effects = list_tables([grid_section.build(report, PageContext())])["main_effects"]
    [first, second, *_] = effects.iterate_records()
    assert first["difference"] is None
    [axis, *_] = report.grid.axes
    assert [second[key] for key in ("difference", "lowest", "highest")] == [
        axis.effects[1].difference, axis.effects[1].low, axis.effects[1].high,
    ]  # fmt: skip


def test_report_with_shares_of_variance_loads_without_them(report_grid):
    report = report_grid("heads=one,two", "optim.lr=0.1,0.2")
    former = {"rows": "heads", "columns": "optim.lr", "panels": [], "averaged": [], "variance": None}
    former |= {"variance_note": "all runs have the same value"}
    stored = report.to_dict()
    stored["grid"] |= former
    assert Report.model_validate(stored) == report


def test_digits_follow_the_spread_of_seeds(report_grid):
    line = ("heads=one,two", "optim.lr=0.1,0.2", "seed=0,1")
    arms = [f"{head} lr={lr}" for head in ("one", "two") for lr in (0.1, 0.2)]
    signs = dict(zip(arms, (1, -1, -1, 1), strict=True))
    digits = [
        report_grid(
            *line, values={(arm, seed): 2 + spread * seed * signs[arm] for arm in arms for seed in (0, 1)}
        ).grid.digits
        for spread in (0.5, 0.005)
    ]
    assert digits == [2, 4]


def test_two_sweeps_keep_their_reports_runs_and_index_rows(
    report_grid, tmp_path, blank_charts, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    root, reports = tmp_path / "runs", tmp_path / "reports"
    for rates in ("0.1,0.2", "0.1,0.3"):
        draft = report_grid("heads=two,one", f"optim.lr={rates}", "seed=0,1", as_draft=True)
        [reference] = reporting.register_references([draft.plan], root, reports, ["heads=two,one"])
        reporting.publish_report(draft, root, reports)
        run_references.delete_reference(reference)  # so that the report alone keeps them
        [*_, last] = capsys.readouterr().out.splitlines()
        assert last == f"report: {reports / draft.plan.title / 'report.html'}"
    folders = sorted(reports.glob("heads_x_lr~*"))
    assert len(folders) == 2
    index = (reports / "index.html").read_text()
    assert all(f">{folder.name}</a>" in index for folder in folders)
    assert "The lowest val/loss of 4 trained cells is" in index
    loaded = load(folders[0])
    assert {*loaded.runs["arm"]} == {cell.arm for cell in loaded.document.grid.cells}
    page = folders[0] / "report.html"
    before = page.read_bytes()
    page.unlink()
    assert main(["report", str(folders[0])]) == 0
    assert page.read_bytes() == before
    capsys.readouterr()
    clean.main(parse_verb_line("clean", ["days=0", "--yes"]))
    assert "nothing to remove" in capsys.readouterr().out
    assert len([*root.glob("*/run.json")]) == 12


def test_interrupted_sweep_writes_the_grid_of_its_finished_runs(attnlab):
    process = attnlab.start("heads=two,one", "model.act=train,sleep", "sweep.slots=2")
    wait_until(lambda: load_records_by_act(attnlab.folder).get("train"))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "report: reports/heads_x_act~" in out
    [source] = attnlab.folder.glob("reports/heads_x_act~*/report.json")
    grid = load_report(source).grid
    assert grid.find_cell("two act=train").state == "TRAINED"
    assert grid.find_cell("one act=sleep").reason == "not finished: seed 0"
    assert "not finished: seed 0" in (source.parent / "report.html").read_text()
