"""Attention maps survive packing; thumbnails are small, deterministic, and show masked cells as such."""

import base64
import gzip
import io

import numpy as np
import pytest
from PIL import Image
from synthetic import World, attention, experiment

from attnlab.report import Run
from attnlab.report.tables import head_maps, heads, maps
from attnlab.report.verdicts.runs import Sweep
from attnlab.store.schema import RunRecord


def noisy(length: int) -> tuple[np.ndarray, np.ndarray]:
    visible = np.tril(np.ones((length, length), bool))
    weights = np.random.default_rng(0).integers(0, 256, (length, length)).astype(np.uint8)
    return np.where(visible, weights, 0).astype(np.uint8), visible


@pytest.mark.parametrize("causal", [True, False])
def test_what_is_packed_comes_back(causal: bool) -> None:
    given = attention(World(layers=3), kv=2, seed=0)
    if not causal:
        given = {**given, "visible": np.ones_like(given["visible"])}
    packed = maps.encode(given)
    assert packed["triangle"] == causal
    weights, visible = maps.decode(packed)
    np.testing.assert_array_equal(weights, given["maps"][-1])
    np.testing.assert_array_equal(visible, given["visible"])


def test_packing_does_not_depend_on_the_time() -> None:
    assert maps.pack(np.arange(7, dtype=np.uint8)) == maps.pack(np.arange(7, dtype=np.uint8))
    assert maps.unpack(maps.pack(np.arange(7, dtype=np.uint8))).tolist() == list(range(7))


@pytest.mark.parametrize("packed", [b"no gzip", gzip.compress(b"x" * 99)[:-9]])
def test_a_packed_map_that_is_broken_is_one_line(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"an attention map of the report is broken: .+"):
        maps.unpack(base64.b64encode(packed).decode())


@pytest.mark.parametrize("length", [5, 64, 131, 512])
def test_a_thumbnail_of_the_worst_map_is_at_most_2_kb(length: int) -> None:
    weights, visible = noisy(length)
    assert len(maps.thumbnail(weights, visible)) <= 2048


def test_masked_cells_are_hatched_and_zero_is_not() -> None:
    weights, visible = np.zeros((20, 20), np.uint8), np.tril(np.ones((20, 20), bool))
    picture = np.asarray(Image.open(io.BytesIO(maps.thumbnail(weights, visible))).convert("RGBA"))
    assert {tuple(pixel) for pixel in picture[visible]} == {(0x00, 0x22, 0x4E, 255)}
    assert {tuple(pixel) for pixel in picture[~visible]} == {(0, 0, 0, 0), (128, 134, 140, 255)}


def test_a_thin_diagonal_survives_shrinking() -> None:
    visible = np.tril(np.ones((256, 256), bool))
    weights = np.eye(256, dtype=np.uint8) * 255
    picture = np.asarray(Image.open(io.BytesIO(maps.thumbnail(weights, visible))).convert("RGB"))
    assert (picture[np.arange(len(picture)), np.arange(len(picture))] == (0xFE, 0xE8, 0x38)).all()


def test_the_colours_run_from_dark_blue_to_yellow() -> None:
    assert maps.cividis(9)[[0, -1]].tolist() == [[0x00, 0x22, 0x4E], [0xFE, 0xE8, 0x38]]


def test_maps_that_do_not_fit_lose_whole_layers_in_every_arm_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(layers=5)
    runs = [
        Run(
            arm,
            0,
            arm,
            RunRecord(id=arm, status="done", seed=0, config={}, metrics={"val/loss": 2.0}),
            None,
            attention(world, 4, 0),
        )
        for arm in ("mha", "gqa")
    ]
    sweep = Sweep(experiment(World({"mha": 0.0, "gqa": 0.0}, seeds=[0])), runs)
    found = heads.heads(sweep)
    assert found["layers_shown"] == found["layers"] == 5
    size = sum(len(entry["weights"]) for entry in found["maps"])
    monkeypatch.setattr(head_maps, "ROOM", size * 3 // 5 + 10)
    less = heads.heads(sweep)
    assert [entry["layers"] for entry in less["maps"]] == [[0, 2, 4], [0, 2, 4]]
    np.testing.assert_array_equal(maps.decode(less["maps"][0])[0][1], maps.decode(found["maps"][0])[0][2])
