"""Attention maps survive packing; thumbnails are small, deterministic, and hatch masked cells."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rendering import make_report
from synthetic import World, build_attention_maps

from attnlab.errors import InvalidConfig
from attnlab.report.pages.explorer import draw_head
from attnlab.report.schema import Report
from attnlab.report.tables import head_maps, map_archive
from attnlab.report.tables.head_maps import select_maps


def draw_noisy_map(length: int) -> tuple[np.ndarray, np.ndarray]:
    visible = np.tril(np.ones((length, length), bool))
    weights = np.random.default_rng(0).integers(0, 256, (length, length)).astype(np.uint8)
    return np.where(visible, weights, 0).astype(np.uint8), visible


def create_report(folder: Path, *arms: str, status: str = "done", layers: int = 2) -> Report:
    """A report of one seed of these arms."""
    world = World(
        dict.fromkeys(arms, 0.0), seeds=[0], status={(arm, 0): status for arm in arms}, layers=layers
    )
    return make_report(folder, world, baseline=arms[0], claims=[])


@pytest.mark.parametrize("causal", [True, False])
def test_packed_maps_round_trip(causal: bool) -> None:
    arrays = build_attention_maps(World(layers=3), kv=2, seed=0)
    if not causal:
        arrays = {**arrays, "visible": np.ones_like(arrays["visible"])}
    packed = map_archive.pack_maps(arrays)
    assert packed.triangle == causal
    weights, visible = map_archive.unpack_maps(packed)
    np.testing.assert_array_equal(weights, arrays["maps"][-1])
    np.testing.assert_array_equal(visible, arrays["visible"])


@pytest.mark.parametrize("length", [5, 64, 131, 512])
def test_largest_thumbnail_is_at_most_2_kb(length: int) -> None:
    weights, visible = draw_noisy_map(length)
    assert len(map_archive.render_thumbnail(weights, visible)) <= 2048


@pytest.mark.parametrize(("length", "is_hatched"), [(4, True), (8, True), (9, False), (64, False)])
def test_masked_cells_are_hatched_or_blank_and_never_filled(length: int, is_hatched: bool) -> None:
    weights, visible = np.zeros((length, length), np.uint8), np.tril(np.ones((length, length), bool))
    picture = np.asarray(
        Image.open(io.BytesIO(map_archive.render_thumbnail(weights, visible))).convert("RGBA")
    )
    cell = len(picture) // length
    strokes = {(128, 134, 140, 255)} if is_hatched else set()
    for row, column in np.ndindex(length, length):
        pixels = picture[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell].reshape(-1, 4)
        colors = {tuple(pixel) for pixel in pixels}
        if visible[row, column]:
            assert colors == {(0x00, 0x22, 0x4E, 255)}
            continue
        assert colors == {(0, 0, 0, 0)} | strokes
        assert (pixels[:, 3] > 0).mean() < 0.2


@pytest.mark.parametrize("length", [4, 36, 64, 200])
def test_picture_of_a_head_fills_no_masked_cell(length: int) -> None:
    weights, visible = np.zeros((length, length), np.uint8), np.tril(np.ones((length, length), bool))
    picture = np.asarray(draw_head(weights, visible, [], "head"))
    cell = (picture.shape[1] - 12) // length
    for row, column in np.argwhere(~visible):
        left, top = 4 + column * cell, 24 + row * cell
        assert (picture[top : top + cell, left : left + cell] != 255).any(2).mean() < 0.25


def test_thin_diagonal_survives_downsampling() -> None:
    visible = np.tril(np.ones((256, 256), bool))
    weights = np.eye(256, dtype=np.uint8) * 255
    picture = np.asarray(
        Image.open(io.BytesIO(map_archive.render_thumbnail(weights, visible))).convert("RGB")
    )
    assert (picture[np.arange(len(picture)), np.arange(len(picture))] == (0xFE, 0xE8, 0x38)).all()


def test_maps_that_do_not_fit_lose_the_same_layers_in_every_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = build_attention_maps(World(layers=5), 4, 0)
    archive = {(arm, 0): arrays for arm in ("mha", "gqa")}
    report = create_report(tmp_path, "mha", "gqa", layers=5)
    full = select_maps(report, archive)
    assert full.layers_shown == full.layers == 5
    size = sum(len(entry.weights) for entry in full.maps)
    monkeypatch.setattr(head_maps, "MAX_MAP_CHARS", size * 3 // 5 + 10)
    less = select_maps(report, archive)
    assert [entry.layers for entry in less.maps] == [[0, 2, 4], [0, 2, 4]]
    assert (less.layers_shown, less.layers) == (3, 5)
    np.testing.assert_array_equal(
        map_archive.unpack_maps(less.maps[0])[0][1], map_archive.unpack_maps(full.maps[0])[0][2]
    )


def test_archive_round_trips_and_unknown_runs_are_ignored(tmp_path: Path) -> None:
    arrays = {seed: build_attention_maps(World(), 4, seed) for seed in (0, 1)}
    runs = {("a/b", 0): arrays[0], ("a/b", 7): arrays[1], ("unknown", 0): arrays[1]}
    (tmp_path / map_archive.ARCHIVE_NAME).write_bytes(map_archive.build_archive(runs))
    archive = map_archive.read_archive(tmp_path / map_archive.ARCHIVE_NAME)
    assert list(archive) == list(runs), "an arm's name may have a slash"
    for run, loaded in archive.items():
        assert set(loaded) == set(runs[run])
        for name, array in loaded.items():
            np.testing.assert_array_equal(array, runs[run][name])
    report = create_report(tmp_path / "runs", "a/b")
    selected = select_maps(report, archive)
    assert [(entry.arm, entry.seed) for entry in selected.maps] == [("a/b", 0)]
    assert selected.seeds == selected.earlier == []
    assert select_maps(report, {key: archive[key] for key in list(archive)[1:]}) is None
    assert select_maps(create_report(tmp_path / "diverged", "a/b", status="diverged"), archive) is None


def test_archives_are_reproducible() -> None:
    first, second = (
        map_archive.build_archive({("mha", 0): build_attention_maps(World(), 4, 0)}) for _ in range(2)
    )
    assert first == second


def build_false_shape() -> bytes:
    """An archive with an array of 2^62 bytes according to its header."""
    content, archive = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "|u1", "fortran_order": False, "shape": (2**62,)})
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("mha/0/maps.npy", content.getvalue())
    return archive.getvalue()


def build_array_without_run() -> bytes:
    archive = io.BytesIO()
    np.savez(archive, maps=np.zeros(3))
    return archive.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"no archive",
        map_archive.build_archive({("mha", 0): {"maps": np.zeros(3)}})[:-30],
        build_false_shape(),
        build_array_without_run(),
    ],
)
def test_broken_archive_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / map_archive.ARCHIVE_NAME).write_bytes(content)
    with pytest.raises(InvalidConfig, match=r"attention.npz: cannot be read as attention maps"):
        map_archive.read_archive(tmp_path / map_archive.ARCHIVE_NAME)
