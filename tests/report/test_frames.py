"""Frames equal report.json and the runs folder: same numbers, in typed columns, in any library."""

import json
import shutil

import numpy as np
import pandas as pd
import polars as pl
import pytest

import attnlab
from attnlab.errors import InvalidConfig, format_seeds
from attnlab.report.frames import ReportFrames, StoreFrames, load
from attnlab.store import run_directories
from attnlab.store.run_schema import RunConfig, Use


@pytest.fixture
def report(synthetic_reports):
    document, folder = synthetic_reports["good"]
    return document, load(folder), folder


def test_runs_frame_has_a_row_per_run_with_all_figures(report):
    document, frames, _ = report
    assert isinstance(frames, ReportFrames)
    assert len(frames.runs) == len(document.runs)
    for row, run in zip(frames.runs.to_dict("records"), document.runs, strict=True):
        assert (row["arm"], row["seed"], row["id"]) == (run.arm, run.seed, run.id)
        assert row["val/loss"] == run.metrics["val/loss"]
        assert row["parameters"] == run.budget.parameters
    assert list(frames.runs.columns[:4]) == ["arm", "seed", "id", "status"]
    assert isinstance(frames.runs.arm.dtype, pd.CategoricalDtype)
    assert frames.runs.parameters.dtype == pd.Int64Dtype()
    assert frames.runs["val/loss"].dtype == float


def test_effects_and_claims_equal_the_report(report):
    document, frames, _ = report
    assert frames.effects["mean"].tolist() == [row.mean for row in document.effects]
    assert frames.claims.verdict.tolist() == [row.verdict for row in document.verdict.claims]
    [first, *_] = document.verdict.claims
    assert frames.claims.estimate[0] == first.decision.estimate


def test_token_losses_and_samples_equal_the_report(report):
    document, frames, _ = report
    text = document.text
    rows = [(kind, arm) for kind in text.token_categories for arm in kind.arms]
    assert rows
    assert frames.token_losses["loss_mean"].tolist() == [arm.loss.mean for _, arm in rows]
    assert frames.token_losses.kind.tolist() == [kind.label for kind, _ in rows]
    assert frames.token_losses["difference_mean"].isna().tolist() == [not arm.difference for _, arm in rows]
    assert frames.samples["sample"].tolist() == [row.sample for row in text.samples]


def test_curves_come_from_parquet_or_else_from_the_report(report, tmp_path):
    document, frames, folder = report
    ends = frames.curves[frames.curves.name == "val/loss"].groupby(["arm", "seed"], observed=True).last()
    losses = {(run.arm, run.seed): run.metrics["val/loss"] for run in document.runs}
    assert set(ends.index) == set(losses)
    shutil.copy(folder / "report.json", tmp_path / "report.json")
    page_curves = load(tmp_path).curves
    assert len(page_curves) == sum(len(line.values) for line in document.curves.lines)
    assert page_curves.value.tolist() == [v for line in document.curves.lines for v in line.values]


def test_head_scores_frame_has_every_head(report):
    document, frames, _ = report
    [first, *_] = document.heads.scores
    [run, *_] = first.runs
    of_run = frames.head_scores[
        (frames.head_scores.arm == run.arm)
        & (frames.head_scores.seed == run.seed)
        & (frames.head_scores.name == first.name)
    ]
    assert of_run.value.tolist() == [value for layer in run.values for value in layer]
    assert of_run["layer"].tolist() == [i for i, layer in enumerate(run.values) for _ in layer]


def test_maps_frame_has_the_visible_weights(report, monkeypatch):
    _, frames, folder = report
    stored = np.load(folder / "attention.npz")
    maps = frames.maps("mha", 0)
    weights, visible = stored["mha/0/maps"][-1], stored["mha/0/visible"]
    assert len(maps) == visible.sum() * weights.shape[1]
    last = maps.iloc[-1]
    index = tuple(int(last[name]) for name in ("layer", "head", "query", "key"))
    assert last["weight"] == pytest.approx((weights[index] / 255) ** 2)
    rows = maps.groupby(["layer", "head", "query"]).weight.sum()
    assert rows.to_numpy() == pytest.approx(np.ones(len(rows)), abs=0.05), "a softmax sums to one"
    arrays = {
        name.removeprefix("mha/0/"): array for name, array in stored.items() if name.startswith("mha/0/")
    }
    with_layers = arrays | {
        "layers": np.arange(1, 2 * weights.shape[0], 2)
    }  # as where every other layer attends
    monkeypatch.setattr(type(frames), "_read_maps", lambda *_: with_layers)
    assert sorted(set(frames.maps("mha", 0).layer)) == with_layers["layers"].tolist()
    monkeypatch.undo()
    with pytest.raises(KeyError, match=r"no maps of step .*: use one of"):
        frames.maps("mha", 0, step=7)
    with pytest.raises(KeyError, match=r"has no maps of nobody, seed 0 \(available: .*mha"):
        frames.maps("nobody", 0)
    seeds = sorted(int(name.split("/")[1]) for name in stored if name.startswith("mha/") and "/maps" in name)
    with pytest.raises(KeyError, match=f"has no maps of mha, seed 999: .* seeds: {format_seeds(seeds)}"):
        frames.maps("mha", 999)


def test_polars_and_arrow_frames_equal_pandas(report):
    _, frames, folder = report
    polars, arrow = load(folder, frames="polars").runs, load(folder, frames="pyarrow").runs
    assert isinstance(polars, pl.DataFrame)
    assert polars["val/loss"].to_list() == frames.runs["val/loss"].tolist()
    assert arrow.column_names == polars.columns == list(frames.runs.columns)


def test_runs_folder_gives_frames_with_axes(compose, make_run_dir):
    folder = make_run_dir("abcd0123abcd0123", compose("trainer.max_steps=4", "logger=none"))
    spec = run_directories.load_run_config(folder)
    use = Use(experiment="exam", arm="gqa", axes={"heads": "gqa", "kernel": "sdpa"})
    run_directories.write_run_config(folder.parent, RunConfig(id=spec.id, config=spec.config, use=use))
    from attnlab.training import run as train

    train.run(folder)
    frames = attnlab.load(folder.parent)
    assert isinstance(frames, StoreFrames)
    [row] = frames.runs.to_dict("records")
    assert (row["heads"], row["kernel"], row["experiment"]) == ("gqa", "sdpa", "exam")
    assert "budget.kernel" in row, "an axis and a figure of one name are apart"
    record = json.loads((folder / "run.json").read_text())
    assert row["val/loss"] == record["metrics"]["val/loss"]
    assert set(frames.curves.heads) == set(frames.head_scores.heads) == {"gqa"}
    with pytest.raises(KeyError, match=rf"no maps of gqa, seed 999: .* seeds: {row['seed']}'"):
        frames.maps("gqa", 999)
    assert len(frames.maps("gqa", row["seed"])) == len(frames.maps(spec.id, row["seed"])) > 0


@pytest.mark.parametrize(
    ("frames", "message"), [("panda", "nearest: pandas"), ("", "pandas, polars or pyarrow")]
)
def test_unknown_frame_library_is_rejected(synthetic_reports, frames, message):
    with pytest.raises(InvalidConfig, match=message):
        load(synthetic_reports["good"][1], frames=frames)


def test_folder_without_report_or_runs_is_rejected(tmp_path):
    with pytest.raises(InvalidConfig, match=r"report\.json not found"):
        load(tmp_path)
