"""Noise of an experiment: the grid of seeds, its report, and the plan that uses it."""

import math

import numpy as np
import pytest

from attnlab.errors import InvalidConfig
from attnlab.report.noise_schema import NOISE_FILE, NoiseReport, load_noise_reports
from attnlab.report.pages.noise_page import format_noise
from attnlab.stats import find_detectable_effect
from attnlab.store import fingerprint, run_directories
from attnlab.store.atomic_files import write_json
from attnlab.store.run_schema import Metric, RunResult
from attnlab.sweep import noise_grid
from attnlab.sweep.plan.overrides import get_leaf
from attnlab.sweep.status.margin_seeds import describe_margin_seeds

SEEDS = ("++model.seed=${seed}", "++data.seed=${seed}")
LEVELS = 3
# rows are initialization seeds; mean squares 48, 3 and 1 (tests/stats/test_crossed_components.py)
DIFFERENCES = np.array([[4.0, 4.0, 4.0], [7.0, 8.0, 9.0], [10.0, 12.0, 14.0]])
SD = math.sqrt(47 / 3 + 2 / 3 + 1)


@pytest.fixture
def plan_heads(plan_toy):
    """Plan the toy experiment, whose trainer has no seeds of its own, with both seeds."""

    def call(*arguments, **keywords):
        [plan] = plan_toy("+experiment=heads", *SEEDS, *arguments, **keywords)
        return plan

    return call


def write_results(grid, root):
    """Write results of a grid whose differences are DIFFERENCES, and scores of three windows per run."""
    values = {"two": np.arange(9.0).reshape(3, 3) ** 2}
    values["four"] = values["two"] + DIFFERENCES
    cells = {arm: iter(array.flatten().tolist()) for arm, array in values.items()}
    for run in grid.runs:
        result = RunResult(
            id=run.id, status="done", seed=run.seed, config=run.config, estimate=run.estimate, seconds=30.0,
            metrics={"val/loss": next(cells[run.arm])},
            metric_definitions={"val/loss": Metric("val/loss", unit="nats")},
        )  # fmt: skip
        (root / run.id).mkdir(parents=True)
        run_directories.write_run_result(root / run.id, result)
    scores = {
        run.id: {"loss": [6.0, 9.0, 12.0] if run.arm == "four" else [5.0, 8.0, 8.0], "targets": [1.0] * 3}
        for run in grid.runs
    }
    (root / "windows").mkdir()
    write_json(root / "windows" / f"{fingerprint.compute_digest([run.id for run in grid.runs])}.json", scores)


def build_report(plan, root):
    grid = noise_grid.plan_grid(plan, LEVELS)
    write_results(grid, root)
    return noise_grid.build_noise_report(plan, grid, LEVELS, root, None, 2, "the command")


def test_a_grid_crosses_both_seeds_and_changes_nothing_else(plan_heads):
    plan = plan_heads()
    grid = noise_grid.plan_grid(plan, LEVELS)
    assert {run.arm for run in grid.runs} == {"two", "four"}, "the arms of the claim"
    for arm in ("two", "four"):
        runs = [run for run in grid.runs if run.arm == arm]
        cells = [(get_leaf(run.config, "model.seed"), get_leaf(run.config, "data.seed")) for run in runs]
        assert cells == [(9000 + row, 9000 + column) for row in range(3) for column in range(3)]
        assert len({run.seed for run in runs}) == 9, "the random state of steps differs too"
        [stripped] = {fingerprint.compute_digest(fingerprint.strip_seeds(run.config)) for run in runs}
        compared = next(run for run in plan.runs if run.arm == arm)
        assert stripped == fingerprint.compute_digest(fingerprint.strip_seeds(compared.config))
    assert len({run.id for run in grid.runs}) == 18
    assert not {run.id for run in grid.runs} & {run.id for run in plan.all_runs}


def test_a_larger_grid_keeps_the_runs_of_a_smaller_one(plan_heads):
    plan = plan_heads()
    small, large = ({run.id for run in noise_grid.plan_grid(plan, levels).runs} for levels in (3, 5))
    assert small < large


def test_differences_are_those_of_claims_about_the_metric_or_else_to_the_baseline(plan_heads):
    experiment = plan_heads().experiment
    assert noise_grid.list_differences(experiment) == [{"four": 1.0, "two": -1.0}]
    without = experiment.model_copy(update={"claims": []})
    assert noise_grid.list_differences(without) == [{"one": 1.0, "two": -1.0}, {"four": 1.0, "two": -1.0}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("seed=0,9001",), "seed 9001 of heads is one of attnlab noise"),
        (("+tune={lr:[0.1,0.2,0.4],seeds:[7,8,9],extend:0}",), "no learning rate is tuned yet for four, two"),
        (("data.seed=5",), "data.seed of arm two does not follow seed"),
    ],
)
def test_a_grid_that_would_mislead_is_an_error(arguments, message, plan_toy):
    keys = {argument.partition("=")[0] for argument in arguments}
    seeds = [line for line in SEEDS if line.lstrip("+").partition("=")[0] not in keys]
    words = [f"++{word}" if word.startswith("data.") else word for word in arguments]
    [plan] = plan_toy("+experiment=heads", *seeds, *words)
    with pytest.raises(InvalidConfig, match=message):
        noise_grid.plan_grid(plan, LEVELS)


def test_noise_without_an_experiment_is_an_error(plan_toy):
    [plan] = plan_toy(*SEEDS)
    with pytest.raises(InvalidConfig, match="needs an experiment"):
        noise_grid.plan_grid(plan, LEVELS)


def test_the_report_has_components_detectable_effects_and_minutes(plan_heads, tmp_path):
    plan = plan_heads()
    report = build_report(plan, tmp_path / "runs")
    [difference] = report.differences
    assert difference.initialization == pytest.approx(math.sqrt(47 / 3))
    assert difference.data_order == pytest.approx(math.sqrt(2 / 3))
    assert (difference.rest, difference.sd) == (pytest.approx(1.0), pytest.approx(SD))
    assert difference.low < SD < difference.high
    row = next(row for row in difference.detectable if row.seeds == 8)
    assert row.single == pytest.approx(find_detectable_effect(8) * SD)
    assert row.minutes == pytest.approx(8 * 3 * 30 / 2 / 60), "three arms of 30 s on two slots"
    assert (report.margin, report.family, difference.thresholds) == (0.5, 1, [0.5])
    assert report.seeds == [9000, 9001, 9002]
    assert NoiseReport.model_validate(report.to_dict()) == report


def test_evaluation_is_the_standard_error_of_the_differences_over_windows(plan_heads, tmp_path):
    [difference] = build_report(plan_heads(), tmp_path / "runs").differences
    assert difference.evaluation == pytest.approx(np.std([1.0, 1.0, 4.0], ddof=1) / math.sqrt(3))


def test_a_grid_with_a_failed_run_gives_no_report(plan_heads, tmp_path):
    plan = plan_heads()
    root = tmp_path / "runs"
    grid = noise_grid.plan_grid(plan, LEVELS)
    write_results(grid, root)
    (root / grid.runs[4].id / "run.json").unlink()
    with pytest.raises(InvalidConfig, match=rf"{grid.runs[4].id} has no val/loss \(not trained\)"):
        noise_grid.build_noise_report(plan, grid, LEVELS, root, None, 2, "the command")


def test_the_page_shows_sources_and_effects(plan_heads, tmp_path):
    page = format_noise(build_report(plan_heads(), tmp_path / "runs"))
    [sources] = [line for line in page.splitlines() if line.startswith("| four − two")]
    cells = [cell.strip() for cell in sources.strip("|").split("|")]
    assert cells[:6] == ["four − two", "+8.0000", "3.9581", "0.8165", "1.0000", f"{SD:.4f}"]
    assert "on 2 slots, at these mean times of a run: two 30.0 s, four 30.0 s." in page


def test_plan_uses_the_measured_noise_until_two_pairs_have_finished(plan_heads, tmp_path):
    plan = plan_heads()
    line = describe_margin_seeds(plan, {})[1]
    assert line == "four - two: 0 finished pairs, so the standard deviation is not yet known"
    path = tmp_path / "reports" / "any" / NOISE_FILE  # the folder of plan_toy's paths.reports
    path.parent.mkdir(parents=True)
    write_json(path, build_report(plan, tmp_path / "runs").to_dict())
    assert [*load_noise_reports(tmp_path / "reports")] == [path]
    unmeasured, measured = describe_margin_seeds(plan, {})
    assert unmeasured == "one - two: 0 finished pairs, so the standard deviation is not yet known"
    assert measured.startswith(f"four - two: 0 finished pairs; sd {SD:.3g}; margin 0.5 requires ")
    assert measured.endswith("by reports/any/noise.json")
    changed = plan_heads("optim.lr=0.3")
    assert "not yet known" in describe_margin_seeds(changed, {})[1], "another recipe has other noise"
