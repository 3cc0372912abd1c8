"""Running text and map selection: token categories, samples, earlier maps, layer means of other seeds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rendering import make_report
from synthetic import World, build_context, collect_maps, write_runs

from attnlab.report.schema import Report
from attnlab.report.tables import head_maps, map_archive
from attnlab.report.tables.text.samples import build_samples
from attnlab.report.tables.text.token_category_losses import build_token_categories
from attnlab.report.verdicts.results import SweepResults


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    world = World(points=3, sample="on", seeds=[0, 1, 2])
    return SweepResults(build_context(world), write_runs(tmp_path_factory.mktemp("runs"), world))


@pytest.fixture(scope="module")
def report(sweep: SweepResults) -> Report:
    return make_report(sweep.runs, World(seeds=[0, 1, 2]))


def select(report: Report, sweep: SweepResults) -> head_maps.MapSelection:
    selection = head_maps.select_maps(report, collect_maps(sweep.runs))
    assert selection is not None
    return selection


def get_weight_fields(weights: head_maps.MapWeights) -> dict[str, Any]:
    """The fields of a run's own weights, which replace those of the shown run."""
    return {"layers": weights.layers, "step": weights.step, "weights": weights.weights}


def test_token_category_differences_are_paired_by_seed(sweep: SweepResults) -> None:
    rows = {row.name: row for row in build_token_categories(sweep)}
    assert set(rows) == {"inside", "digit"}
    losses = {
        (run.arm, run.seed): run.result.by_token_category["digit"].loss for run in sweep.runs if run.result
    }
    [mqa] = [arm for arm in rows["digit"].arms if arm.arm == "mqa"]
    differences = [losses["mqa", seed] - losses["mha", seed] for seed in sweep.seeds]
    assert mqa.difference.mean == pytest.approx(np.mean(differences))
    assert (mqa.difference.low, mqa.difference.high) == (min(differences), max(differences))
    assert rows["digit"].arms[0].difference is None, "the baseline is not compared with itself"
    assert rows["inside"].targets == 60


def test_every_arm_generates_from_one_seed(sweep: SweepResults) -> None:
    rows = build_samples(sweep)
    assert [row.arm for row in rows] == sweep.arms
    assert len({row.seed for row in rows}) == 1
    none = SweepResults(build_context(World()), [])
    assert build_token_categories(none) == build_samples(none) == []


def test_earlier_maps_are_those_of_the_shown_runs_and_other_seeds_are_layer_means(
    report: Report, sweep: SweepResults
) -> None:
    selection = select(report, sweep)
    assert selection.left_out == []
    assert [(one.arm, one.step) for one in selection.earlier] == [
        (arm, step) for arm in sweep.arms for step in (133, 266)
    ]
    entry, earlier, other = selection.maps[0], selection.earlier[0], selection.seeds[0]
    shown = {(entry.arm, entry.seed) for entry in selection.maps}
    assert {(one.arm, one.seed) for one in selection.seeds} == sweep.run_by_arm_seed.keys() - shown
    first, second = (sweep.run_by_arm_seed[one.arm, one.seed].maps["maps"] for one in (entry, other))
    unpacked = map_archive.unpack_maps(replace(entry, **get_weight_fields(earlier)))[0]
    np.testing.assert_array_equal(unpacked, first[0])
    means = ((second[-1].astype(float) / 255) ** 2).mean(1)
    decoded = map_archive.unpack_maps(replace(entry, **get_weight_fields(other), heads=1))[0][:, 0]
    np.testing.assert_allclose((decoded.astype(float) / 255) ** 2, means, atol=0.004)


def test_omitted_maps_are_listed(
    report: Report, sweep: SweepResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = select(report, sweep)
    monkeypatch.setattr(
        head_maps, "MAX_EARLIER_CHARS", sum(len(one.weights) for one in full.earlier) * 2 // 3
    )
    monkeypatch.setattr(head_maps, "MAX_SEED_CHARS", sum(len(one.weights) for one in full.seeds[:2]) + 10)
    less = select(report, sweep)
    assert {len(one.layers) for one in less.earlier} == {1}
    assert len(less.seeds) == 2
    assert less.left_out == [
        "Maps from before the end of training cover 1 of the 2 layers shown.",
        f"The layer means of {len(full.seeds) - 2} more runs are omitted.",
    ]


def test_runs_on_another_text_are_excluded(report: Report, sweep: SweepResults) -> None:
    archive = collect_maps(sweep.runs)
    tokens = archive["mha", 1]["tokens"].copy()
    tokens[0] = "!"
    archive["mha", 1] = {**archive["mha", 1], "tokens": tokens}
    selection = head_maps.select_maps(report, archive)
    assert selection is not None
    assert selection.seeds
    assert ("mha", 1) not in {(one.arm, one.seed) for one in selection.seeds}
