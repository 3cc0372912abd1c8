"""Frames hold what report.json and the store hold: same numbers, in typed columns, by any library."""

import json
import shutil

import numpy as np
import pandas as pd
import polars as pl
import pytest

import attnlab
from attnlab.errors import Refused, format_seeds
from attnlab.report.frames import Report, Store, load
from attnlab.store import runs
from attnlab.store.schema import RunSpec, Use


@pytest.fixture
def report(made):
    document, folder = made["good"]
    return document, load(folder), folder


def test_runs_have_a_row_each_with_all_their_figures(report):
    document, found, _ = report
    assert isinstance(found, Report)
    assert len(found.runs) == len(document.runs)
    for row, run in zip(found.runs.to_dict("records"), document.runs, strict=True):
        assert (row["arm"], row["seed"], row["id"]) == (run.arm, run.seed, run.id)
        assert row["val/loss"] == run.metrics["val/loss"]
        assert row["parameters"] == run.budget.parameters
    assert list(found.runs.columns[:4]) == ["arm", "seed", "id", "status"]
    assert isinstance(found.runs.arm.dtype, pd.CategoricalDtype)
    assert found.runs.parameters.dtype == pd.Int64Dtype()
    assert found.runs["val/loss"].dtype == float


def test_effects_and_claims_are_those_of_the_page(report):
    document, found, _ = report
    assert found.effects["mean"].tolist() == [row.mean for row in document.effects]
    assert found.claims.verdict.tolist() == [row.verdict for row in document.verdict.claims]
    [first, *_] = document.verdict.claims
    assert found.claims.estimate[0] == first.decision.estimate


def test_losses_by_kind_and_samples_are_those_of_the_page(report):
    document, found, _ = report
    text = document.text
    rows = [(kind, arm) for kind in text.kinds for arm in kind.arms]
    assert rows
    assert found.token_losses["loss_mean"].tolist() == [arm.loss.mean for _, arm in rows]
    assert found.token_losses.kind.tolist() == [kind.label for kind, _ in rows]
    assert found.token_losses["difference_mean"].isna().tolist() == [not arm.difference for _, arm in rows]
    assert found.samples["sample"].tolist() == [row.sample for row in text.written]


def test_curves_are_the_runs_own_and_where_those_are_not_at_hand_the_pages(report, tmp_path):
    document, found, folder = report
    ends = found.curves[found.curves.name == "val/loss"].groupby(["arm", "seed"], observed=True).last()
    losses = {(run.arm, run.seed): run.metrics["val/loss"] for run in document.runs}
    assert set(ends.index) == set(losses)
    shutil.copy(folder / "report.json", tmp_path / "report.json")
    shown = load(tmp_path).curves
    assert len(shown) == sum(len(line.values) for line in document.curves.lines)
    assert shown.value.tolist() == [v for line in document.curves.lines for v in line.values]


def test_every_head_has_its_scores(report):
    document, found, _ = report
    [first, *_] = document.heads.scores
    [run, *_] = first.runs
    of_run = found.head_scores[
        (found.head_scores.arm == run.arm)
        & (found.head_scores.seed == run.seed)
        & (found.head_scores.name == first.name)
    ]
    assert of_run.value.tolist() == [value for layer in run.values for value in layer]
    assert of_run["layer"].tolist() == [i for i, layer in enumerate(run.values) for _ in layer]


def test_maps_are_the_weights_that_a_mask_allows(report, monkeypatch):
    _, found, folder = report
    stored = np.load(folder / "attention.npz")
    maps = found.maps("mha", 0)
    weights, visible = stored["mha/0/maps"][-1], stored["mha/0/visible"]
    assert len(maps) == visible.sum() * weights.shape[1]
    last = maps.iloc[-1]
    place = tuple(int(last[name]) for name in ("layer", "head", "query", "key"))
    assert last["weight"] == pytest.approx((weights[place] / 255) ** 2)
    rows = maps.groupby(["layer", "head", "query"]).weight.sum()
    assert rows.to_numpy() == pytest.approx(np.ones(len(rows)), abs=0.05), "a softmax sums to one"
    kept = {name.removeprefix("mha/0/"): array for name, array in stored.items() if name.startswith("mha/0/")}
    some = kept | {"layers": np.arange(1, 2 * weights.shape[0], 2)}  # as where every other layer attends
    monkeypatch.setattr(type(found), "_maps", lambda *_: some)
    assert sorted(set(found.maps("mha", 0).layer)) == some["layers"].tolist()
    monkeypatch.undo()
    with pytest.raises(KeyError, match="maps were kept at the steps"):
        found.maps("mha", 0, step=7)
    with pytest.raises(KeyError, match=r"has no maps of nobody, seed 0 \(there are: .*mha"):
        found.maps("nobody", 0)
    seeds = sorted(int(name.split("/")[1]) for name in stored if name.startswith("mha/") and "/maps" in name)
    with pytest.raises(KeyError, match=f"has no maps of mha, seed 999: .* seeds: {format_seeds(seeds)}"):
        found.maps("mha", 999)


def test_polars_and_arrow_have_the_same(report):
    _, found, folder = report
    polars, arrow = load(folder, frames="polars").runs, load(folder, frames="pyarrow").runs
    assert isinstance(polars, pl.DataFrame)
    assert polars["val/loss"].to_list() == found.runs["val/loss"].tolist()
    assert arrow.column_names == polars.columns == list(found.runs.columns)


def test_a_store_is_frames_too_with_the_axes_of_its_runs(compose, store):
    folder = store("abcd0123abcd0123", compose("trainer.max_steps=4", "logger=none"))
    spec = runs.spec(folder)
    use = Use(experiment="exam", arm="gqa", axes={"heads": "gqa", "kernel": "sdpa"})
    runs.write_spec(folder.parent, RunSpec(id=spec.id, config=spec.config, use=use))
    from attnlab.training import run as train

    train.run(folder)
    found = attnlab.load(folder.parent)
    assert isinstance(found, Store)
    [row] = found.runs.to_dict("records")
    assert (row["heads"], row["kernel"], row["experiment"]) == ("gqa", "sdpa", "exam")
    assert "budget.kernel" in row, "an axis and a figure of one name are apart"
    record = json.loads((folder / "run.json").read_text())
    assert row["val/loss"] == record["metrics"]["val/loss"]
    assert set(found.curves.heads) == set(found.head_scores.heads) == {"gqa"}
    with pytest.raises(KeyError, match=rf"no maps of gqa, seed 999: .* seeds: {row['seed']}'"):
        found.maps("gqa", 999)
    assert len(found.maps("gqa", row["seed"])) == len(found.maps(spec.id, row["seed"])) > 0


@pytest.mark.parametrize(
    ("frames", "said"), [("panda", "nearest: pandas"), ("", "pandas, polars or pyarrow")]
)
def test_an_unknown_library_is_refused(made, frames, said):
    with pytest.raises(Refused, match=said):
        load(made["good"][1], frames=frames)


def test_a_folder_that_holds_neither_is_refused(tmp_path):
    with pytest.raises(Refused, match=r"no report\.json here"):
        load(tmp_path)
