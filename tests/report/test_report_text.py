"""What runs make of their text, and what of their maps travels: earlier points, and means of other seeds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from synthetic import World, archive_of, experiment, provenance, write_runs

from attnlab.report.build import build
from attnlab.report.schema import Report
from attnlab.report.tables import head_maps, maps
from attnlab.report.tables.text.kinds import kinds
from attnlab.report.tables.text.written import written
from attnlab.report.verdicts.runs import Sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    world = World(points=3, sample="on", seeds=[0, 1, 2])
    return Sweep(experiment(world), write_runs(tmp_path_factory.mktemp("runs"), world))


@pytest.fixture(scope="module")
def report(sweep: Sweep) -> Report:
    return build(experiment(World(seeds=[0, 1, 2])), sweep.runs, None, provenance())


def select(report: Report, sweep: Sweep) -> head_maps.Selection:
    found = head_maps.select(report, archive_of(sweep.runs))
    assert found is not None
    return found


def packed(one: head_maps.Weights) -> dict[str, Any]:
    """What the weights of a run alone say in place of those of the run that is shown."""
    return {"layers": one.layers, "step": one.step, "weights": one.weights}


def test_differences_by_kind_are_paired_by_seed(sweep: Sweep) -> None:
    rows = {row.name: row for row in kinds(sweep)}
    assert set(rows) == {"inside", "digit"}
    losses = {(run.arm, run.seed): run.record.by_kind["digit"].loss for run in sweep.runs if run.record}
    [mqa] = [arm for arm in rows["digit"].arms if arm.arm == "mqa"]
    differences = [losses["mqa", seed] - losses["mha", seed] for seed in sweep.seeds]
    assert mqa.difference.mean == pytest.approx(np.mean(differences))
    assert (mqa.difference.low, mqa.difference.high) == (min(differences), max(differences))
    assert rows["digit"].arms[0].difference is None, "the baseline is not compared with itself"
    assert rows["inside"].targets == 60


def test_runs_without_text_have_no_tables() -> None:
    none = Sweep(experiment(World()), [])
    assert kinds(none) == []
    assert written(none) == []


def test_every_arm_writes_from_one_seed(sweep: Sweep) -> None:
    rows = written(sweep)
    assert [row.arm for row in rows] == sweep.arms
    assert len({row.seed for row in rows}) == 1


def test_earlier_points_are_those_of_the_runs_shown(report: Report, sweep: Sweep) -> None:
    found = select(report, sweep)
    assert [(one.arm, one.step) for one in found.earlier] == [
        (arm, step) for arm in sweep.arms for step in (133, 266)
    ]
    one, entry = found.earlier[0], found.maps[0]
    kept = sweep.at[entry.arm, entry.seed].maps
    assert kept is not None
    np.testing.assert_array_equal(maps.decode(replace(entry, **packed(one)))[0], kept["maps"][0])
    assert found.left_out == []


def test_other_seeds_travel_as_the_means_of_their_layers(report: Report, sweep: Sweep) -> None:
    found = select(report, sweep)
    shown = {(entry.arm, entry.seed) for entry in found.maps}
    assert {(one.arm, one.seed) for one in found.seeds} == {
        (arm, seed) for arm in sweep.arms for seed in sweep.seeds
    } - shown
    one, entry = found.seeds[0], found.maps[0]
    kept = sweep.at[one.arm, one.seed].maps
    assert kept is not None
    means = ((kept["maps"][-1].astype(float) / 255) ** 2).mean(1)
    decoded = maps.decode(replace(entry, **packed(one), heads=1))[0][:, 0].astype(float)
    np.testing.assert_allclose((decoded / 255) ** 2, means, atol=0.004)


def test_what_does_not_fit_is_left_out_and_told(
    report: Report, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = select(report, sweep)
    monkeypatch.setattr(head_maps, "EARLIER", sum(len(one.weights) for one in whole.earlier) * 2 // 3)
    monkeypatch.setattr(head_maps, "SEEDS", sum(len(one.weights) for one in whole.seeds[:2]) + 10)
    less = select(report, sweep)
    assert {len(one.layers) for one in less.earlier} == {1}
    assert len(less.seeds) == 2
    assert less.left_out == [
        "Before the end of training 1 of the 2 layers shown are here.",
        f"The layer means of {len(whole.seeds) - 2} more runs are not here.",
    ]


def test_a_run_on_another_text_is_no_other_seed(report: Report, sweep: Sweep) -> None:
    archive = archive_of(sweep.runs)
    tokens = archive["mha", 1]["tokens"].copy()
    tokens[0] = "!"
    archive["mha", 1] = {**archive["mha", 1], "tokens": tokens}
    found = head_maps.select(report, archive)
    assert found is not None
    assert found.seeds
    assert ("mha", 1) not in {(one.arm, one.seed) for one in found.seeds}
