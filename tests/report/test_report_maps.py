"""Attention maps survive packing; thumbnails are small, deterministic, and show masked cells as such."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from synthetic import World, attention

from attnlab.errors import Refused
from attnlab.report.schema import HeadsReport
from attnlab.report.tables import head_maps, maps
from attnlab.report.tables.head_maps import select


def noisy(length: int) -> tuple[np.ndarray, np.ndarray]:
    visible = np.tril(np.ones((length, length), bool))
    weights = np.random.default_rng(0).integers(0, 256, (length, length)).astype(np.uint8)
    return np.where(visible, weights, 0).astype(np.uint8), visible


def finished(*arms: str, status: str = "done") -> HeadsReport:
    """A report of one seed of these arms, without head scores."""
    runs = [
        {
            "arm": arm, "seed": 0, "id": arm, "status": status, "axes": {}, "seconds": None, "started": None,
            "metrics": {}, "budget": {}, "memory": {}, "speed": {},
        }
        for arm in arms
    ]  # fmt: skip
    experiment = {
        "name": "mine", "question": None, "size": None, "arms": arms, "baseline": arms[0], "seeds": [0],
        "looks": None, "held": [], "match": "params", "match_by": None, "unmatched": [], "leakage": [],
        "metric": "val/loss", "direction": "lower", "margin": None, "margin_said": None,
        "margin_reason": None,
    }  # fmt: skip
    return HeadsReport.model_validate({"experiment": experiment, "runs": runs, "heads": None})


@pytest.mark.parametrize("causal", [True, False])
def test_what_is_packed_comes_back(causal: bool) -> None:
    given = attention(World(layers=3), kv=2, seed=0)
    if not causal:
        given = {**given, "visible": np.ones_like(given["visible"])}
    packed = maps.encode(given)
    assert packed.triangle == causal
    weights, visible = maps.decode(packed)
    np.testing.assert_array_equal(weights, given["maps"][-1])
    np.testing.assert_array_equal(visible, given["visible"])


def test_packing_does_not_depend_on_the_time() -> None:
    assert maps.pack(np.arange(7, dtype=np.uint8)) == maps.pack(np.arange(7, dtype=np.uint8))
    assert maps.unpack(maps.pack(np.arange(7, dtype=np.uint8))).tolist() == list(range(7))


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
    arrays = attention(World(layers=5), 4, 0)
    archive = {(arm, 0): arrays for arm in ("mha", "gqa")}
    report = finished("mha", "gqa")
    found = select(report, archive)
    assert found.layers_shown == found.layers == 5
    size = sum(len(entry.weights) for entry in found.maps)
    monkeypatch.setattr(head_maps, "ROOM", size * 3 // 5 + 10)
    less = select(report, archive)
    assert [entry.layers for entry in less.maps] == [[0, 2, 4], [0, 2, 4]]
    assert (less.layers_shown, less.layers) == (3, 5)
    np.testing.assert_array_equal(maps.decode(less.maps[0])[0][1], maps.decode(found.maps[0])[0][2])


def test_an_archive_comes_back_and_entries_of_other_runs_are_ignored(tmp_path: Path) -> None:
    arrays = {seed: attention(World(), 4, seed) for seed in (0, 1)}
    runs = {("a/b", 0): arrays[0], ("a/b", 7): arrays[1], ("unknown", 0): arrays[1]}
    (tmp_path / maps.ARCHIVE).write_bytes(maps.archive(runs))
    archive = maps.read(tmp_path / maps.ARCHIVE)
    assert list(archive) == list(runs), "an arm's name may have a slash"
    for run, found in archive.items():
        assert set(found) == set(runs[run])
        for name, array in found.items():
            np.testing.assert_array_equal(array, runs[run][name])
    report = finished("a/b")
    selected = select(report, archive)
    assert [(entry.arm, entry.seed) for entry in selected.maps] == [("a/b", 0)]
    assert selected.seeds == selected.earlier == []
    assert select(report, {key: archive[key] for key in list(archive)[1:]}) is None
    assert select(finished("a/b", status="diverged"), archive) is None


def test_equal_arrays_make_equal_archives() -> None:
    first, second = (maps.archive({("mha", 0): attention(World(), 4, 0)}) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("content", [b"no archive", maps.archive({("mha", 0): {"maps": np.zeros(3)}})[:-30]])
def test_a_broken_archive_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / maps.ARCHIVE).write_bytes(content)
    with pytest.raises(Refused, match=r"attention.npz: cannot be read as attention maps"):
        maps.read(tmp_path / maps.ARCHIVE)


def test_arrays_of_no_run_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / maps.ARCHIVE, maps=np.zeros(3))
    with pytest.raises(Refused, match="cannot be read as attention maps"):
        maps.read(tmp_path / maps.ARCHIVE)
