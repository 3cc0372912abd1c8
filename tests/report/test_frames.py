"""Frames equal report.json and the runs folder: same numbers, in typed columns, in any library."""

import html
import json
import re
import shutil
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
from stored_runs import make_spec, write_spec

import attnlab
from attnlab.errors import InvalidConfig, format_seeds
from attnlab.report.frames import ReportFrames, StoreFrames, load
from attnlab.report.section import list_tables
from attnlab.report.sections import build_sections
from attnlab.report.tables import map_archive
from attnlab.store import run_directories
from attnlab.store.run_schema import Use


@pytest.fixture
def report(synthetic_reports):
    document, folder = synthetic_reports["good"]
    return document, load(folder), folder


def test_frames_equal_the_report_in_every_library(report):
    document, frames, folder = report
    assert isinstance(frames, ReportFrames)
    runs = frames.runs
    assert len(runs) == len(document.runs)
    for row, run in zip(runs.to_dict("records"), document.runs, strict=True):
        assert (row["arm"], row["seed"], row["id"]) == (run.arm, run.seed, run.id)
        assert row["val/loss"] == run.metrics["val/loss"]
        assert row["parameters"] == run.budget.parameters
    assert list(runs.columns[:4]) == ["arm", "seed", "id", "status"]
    assert isinstance(runs.arm.dtype, pd.CategoricalDtype)
    assert (runs.parameters.dtype, runs["val/loss"].dtype) == (pd.Int64Dtype(), float)
    polars, arrow = load(folder, frames="polars").runs, load(folder, frames="pyarrow").runs
    assert isinstance(polars, pl.DataFrame)
    assert polars["val/loss"].to_list() == runs["val/loss"].tolist()
    assert arrow.column_names == polars.columns == list(runs.columns)
    assert frames.effects["mean"].tolist() == [row.mean for row in document.effects]
    tables = list_tables(build_sections(document))
    assert frames.tables.keys() == tables.keys() > {"effects", "claims", "arms", "token_losses", "samples"}
    for name, table in tables.items():
        records = [*table.iterate_records()]
        frame = getattr(frames, name, frames.tables[name])
        assert (len(frame), {*frame.columns}) == (len(records), {key for row in records for key in row})
    scores = frames.head_scores
    of_run = scores[(scores.arm == "mha") & (scores.seed == 0) & (scores.name == "sink")]
    [run] = [run for run in document.runs if (run.arm, run.seed) == ("mha", 0)]
    table = run.head_scores["sink"]
    assert of_run.value.tolist() == [value for layer in table for value in layer]
    assert of_run["layer"].tolist() == [i for i, layer in enumerate(table) for _ in layer]


def test_curves_come_from_parquet_or_else_from_the_report(report, tmp_path):
    document, frames, folder = report
    ends = frames.curves[frames.curves.name == "val/loss"].groupby(["arm", "seed"], observed=True).last()
    assert {*ends.index} == {(run.arm, run.seed) for run in document.runs}
    with pytest.raises(InvalidConfig, match=r"report\.json not found"):
        load(tmp_path)
    shutil.copy(folder / "report.json", tmp_path / "report.json")
    page_curves = load(tmp_path).curves
    assert page_curves.value.tolist() == [v for line in document.curves.lines for v in line.values]
    (tmp_path / "curves.parquet").write_bytes(b"no parquet")
    with pytest.raises(InvalidConfig, match=r"curves\.parquet: cannot be read \(.*\): delete it") as refused:
        _ = load(tmp_path).curves
    assert "\n" not in str(refused.value)


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


def test_maps_of_one_of_200_runs_unpack_that_run_alone(report, tmp_path):
    _, _, folder = report
    length, random = 48, np.random.default_rng(0)
    arrays = {
        "maps": np.zeros((3, 2, 4, length, length), np.uint8),
        "visible": np.broadcast_to(np.tril(np.ones((length, length), bool)), (2, length, length)),
        "steps": np.arange(3),
        "tokens": np.array(["a"] * length),
        "groups": np.zeros((2, 4), int),
        "layers": np.arange(2),
    }
    runs = {
        (arm, seed): arrays | {"maps": random.integers(1, 255, arrays["maps"].shape, np.uint8)}
        for arm in ("mha", "gqa")
        for seed in range(100)
    }
    shutil.copy(folder / "report.json", tmp_path)
    (tmp_path / map_archive.ARCHIVE_NAME).write_bytes(map_archive.build_archive(runs))
    frames = load(tmp_path)
    tracemalloc.start()
    maps = frames.maps("gqa", 99)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    [*_, last] = maps.weight
    assert last == pytest.approx((runs["gqa", 99]["maps"][-1, -1, -1, -1, -1] / 255) ** 2)
    assert peak_bytes < 0.4 * sum(run["maps"].nbytes for run in runs.values())
    with pytest.raises(KeyError, match=r"no maps of gqa, seed 100: .* seeds: 0 to 99"):
        frames.maps("gqa", 100)


def test_missing_name_is_an_attribute_error_with_the_way_out(report, tmp_path, monkeypatch):
    _, frames, folder = report
    with pytest.raises(AttributeError, match=r"^a report has no attribute 'effect' \(nearest: effects\)$"):
        _ = frames.effect
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "spec.json").touch()
    store = load(tmp_path)
    for name in ("effects", "claims", "token_losses", "samples", "document"):
        assert hasattr(frames, name)
        assert not hasattr(store, name)
        message = rf"^a folder of runs has no {name}: load the folder of a report, .*\.{name}$"
        with pytest.raises(AttributeError, match=message):
            getattr(store, name)
    with pytest.raises(AttributeError, match=r"no attribute 'curve' \(nearest: curves"):
        _ = store.curve
    frames = load(folder)
    monkeypatch.setattr(frames, "document", None)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'grid'"):
        _ = frames.effects  # not hidden by the message for missing names


def test_repr_of_a_report_lists_its_contents(report):
    document, frames, folder = report
    finished = sum(run.is_done for run in document.runs)
    verdicts = [str(claim.verdict) for claim in document.verdict.claims]
    text = repr(frames)
    assert text.startswith(f"<report {folder}: experiment {document.experiment.name}, arms mha, ")
    assert f"{len(document.runs)} runs ({finished} finished), seeds 0 " in text
    assert all(f"{verdicts.count(verdict)} {verdict}" in text for verdict in verdicts)


def read_frame(page):
    """Return the page inside the frame that a notebook shows."""
    [source] = re.findall(r'^<iframe srcdoc="([^"]*)" .*></iframe>$', page._repr_html_())
    return html.unescape(source)


def test_notebook_shows_maps_and_curves_of_a_report(report):
    document, frames, _ = report
    page = frames.show_maps("gqa")
    assert repr(page) == "Attention maps of gqa, seed 0"
    source = read_frame(page)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', source)[1])
    [entry] = data["maps"]
    assert (entry["arm"], entry["seed"]) == ("gqa", 0)
    [run] = [run for run in document.runs if (run.arm, run.seed) == ("gqa", 0)]
    assert run.head_scores
    assert entry["scores"] == run.head_scores
    weights, _ = map_archive.unpack_maps(map_archive.PackedMaps(**{
        name: entry[name] for name in map_archive.PackedMaps.__dataclass_fields__
    }))  # fmt: skip
    last = frames.maps("gqa", 0).iloc[-1]
    assert last.weight == pytest.approx((weights[-1, -1, -1, -1] / 255) ** 2)
    assert repr(frames.show_maps("mha", seed=1)) == "Attention maps of mha, seed 1"
    with pytest.raises(KeyError, match=r"has no maps of nobody \(available: "):
        frames.show_maps("nobody")
    with pytest.raises(KeyError, match="has no maps of mha, seed 999: "):
        frames.show_maps("mha", 999)
    curves = read_frame(frames.show_curves())
    assert "difference to" in curves
    assert "over training tokens, every seed" in curves


def test_runs_folder_gives_frames_with_axes(compose, make_run_dir):
    folder = make_run_dir("abcd0123abcd0123", compose("trainer.max_steps=4", "logger=none"))
    spec = run_directories.load_run_config(folder)
    use = Use(experiment="exam", arm="gqa", axes={"heads": "gqa", "kernel": "sdpa"})
    run_directories.write_run_config(folder.parent, spec.with_changes(use=use))
    import torch

    from attnlab.training import run as train

    torch.set_num_threads(1)
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
    assert repr(frames) == f"<runs {folder.parent}: 1 runs (1 finished), experiments exam>"
    assert repr(frames.show_maps("gqa")) == f"Attention maps of gqa, seed {row['seed']}"
    curves = read_frame(frames.show_curves())
    assert "val/loss over training tokens" in curves
    assert "difference" not in curves, "runs of a folder are not compared"
    intact = {folder / name: (folder / name).read_bytes() for name in ("curves.parquet", "attention.npz")}
    for path in intact:
        path.write_bytes(b"damaged")
    damaged = attnlab.load(folder.parent)
    for read, name in (
        (lambda: damaged.curves, "curves.parquet"),
        (damaged.show_curves, "curves.parquet"),
        (lambda: damaged.maps("gqa", row["seed"]), "attention.npz"),
    ):
        with pytest.raises(InvalidConfig, match=rf"{folder / name}: cannot be read \(.*\): delete it"):
            read()
    for path, content in intact.items():
        path.write_bytes(content)
    copy = make_spec(spec.config, "copy", spec.estimate, use)
    shutil.copytree(folder, folder.with_name(copy.id))
    write_spec(folder.parent, copy)
    twice = attnlab.load(folder.parent)._build_curve_report()
    assert {line.arm for line in twice.curves.lines} == {spec.id, copy.id}


@pytest.mark.parametrize(
    ("frames", "message"), [("panda", "nearest: pandas"), ("", "pandas, polars or pyarrow")]
)
def test_unknown_frame_library_is_rejected(synthetic_reports, frames, message):
    with pytest.raises(InvalidConfig, match=message):
        load(synthetic_reports["good"][1], frames=frames)
