"""Attention maps: the archive attention.npz next to report.json, and packed maps and thumbnails for the page.

In the page a map is its lower triangle, one byte sqrt(a) * 255 per cell (error at most 0.004), gzipped
without a time in its header. Masked cells are hatched or blank instead of colored as zero, because a zero was
chosen by the model and a masked cell was not.
"""

import base64
import gzip
import io
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attnlab.data.token_labels import label_pieces
from attnlab.errors import InvalidConfig

MapArchive = Mapping[tuple[str, int], Mapping[str, Any]]  # (arm, seed) -> the arrays of that run's maps
ARCHIVE_NAME = "attention.npz"  # next to report.json, and in the folder of each run
THUMBNAIL_PIXELS = 64  # side of a thumbnail on the page
MIN_HATCHED_CELL = 8  # pixels; the distance of strokes
MAX_THUMBNAIL_BYTES = 2048  # browsers slow down with many large data URIs
_CIVIDIS_HEX = "00224e 123570 3b496c 575d6d 707173 8a8678 a59c74 c3b369 e1cc55 fee838".split()  # noqa: SIM905
_CIVIDIS_STOPS = np.array([[int(stop[i : i + 2], 16) for i in (0, 2, 4)] for stop in _CIVIDIS_HEX], float)


def build_cividis_palette(levels: int) -> np.ndarray:
    """Build `levels` colors from dark blue to yellow, [levels, 3] uint8, readable with color blindness."""
    stops = np.linspace(0, len(_CIVIDIS_STOPS) - 1, levels)
    return (
        np.stack(
            [np.interp(stops, np.arange(len(_CIVIDIS_STOPS)), _CIVIDIS_STOPS[:, c]) for c in range(3)], 1
        )
        .round()
        .astype(np.uint8)
    )


def build_archive(runs: Mapping[tuple[str, int], Mapping[str, Any]]) -> bytes:
    """Build attention.npz of a report: the arrays of each run (arm, seed) under `arm/seed/name`.

    The same arrays give the same bytes, because the archive stores no times.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for (arm, seed), arrays in runs.items():
            for name, array in sorted(arrays.items()):
                entry = io.BytesIO()
                np.save(entry, array, allow_pickle=False)
                file.writestr(
                    zipfile.ZipInfo(f"{arm}/{seed}/{name}.npy"), entry.getvalue(), zipfile.ZIP_DEFLATED
                )
    return buffer.getvalue()


def list_archive_runs(path: Path) -> list[tuple[str, int]]:
    """List the runs (arm, seed) in a report's attention.npz; [] without a file.

    Raises:
        InvalidConfig: as `read_archive`.
    """
    with _open_archive(path) as (_, keys_by_run):
        return [*keys_by_run]


def read_archive(
    path: Path, runs: Collection[tuple[str, int]] | None = None
) -> dict[tuple[str, int], dict[str, Any]]:
    """Read the arrays of each run (arm, seed) from a report's attention.npz; {} without a file.

    Args:
        runs: the runs to read; None reads all. Only their arrays are unpacked.

    Raises:
        InvalidConfig: the file is no archive of arrays under `arm/seed/name`.
    """
    with _open_archive(path) as (arrays, keys_by_run):
        return {
            run: {key.rpartition("/")[2]: arrays[key] for key in keys}
            for run, keys in keys_by_run.items()
            if runs is None or run in runs
        }


@contextmanager
def _open_archive(path: Path) -> Iterator[tuple[Mapping[str, Any], dict[tuple[str, int], list[str]]]]:
    """Open an archive: its arrays, each unpacked on access, and the keys of each run."""
    if not path.exists():
        yield {}, {}
        return
    keys_by_run: dict[tuple[str, int], list[str]] = {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for key in arrays.files:
                arm, seed, _ = key.rsplit("/", 2)
                keys_by_run.setdefault((arm, int(seed)), []).append(key)
            yield arrays, keys_by_run
    except (
        OSError,
        TypeError,
        ValueError,
        EOFError,
        MemoryError,  # a false shape in an array's header
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InvalidConfig(
            f"{path}: cannot be read as attention maps ({error}): delete it, or run the report command again"
        ) from error


def encode_base64(values: np.ndarray) -> str:
    """Encode bytes (any shape) as gzipped base64; the same bytes always give the same text."""
    return base64.b64encode(gzip.compress(np.ascontiguousarray(values).tobytes(), 9, mtime=0)).decode("ascii")


def decode_base64(text: str) -> np.ndarray:
    """Decode the bytes that `encode_base64` stored, flat."""
    return np.frombuffer(gzip.decompress(base64.b64decode(text)), np.uint8)


@dataclass(frozen=True)
class PackedMaps:
    """Attention maps of one run at one step, packed for the page.

    `weights` is [layer, head, T, T] and `visible` [layer, T, T], both packed; of a causal map only the lower
    `triangle`.
    """

    layers: list[int]
    heads: int
    head_numbers: list[int]
    length: int
    triangle: bool
    step: int
    tokens: list[str]
    groups: list[list[int]]
    weights: str
    visible: str


def pack_maps(
    maps: Mapping[str, Any], layers: list[int] | None = None, head: int | None = None, step_index: int = -1
) -> PackedMaps:
    """Pack a run's attention.npz at one step for the page: all layers with attention and heads, or these."""
    values = np.asarray(maps["maps"])[step_index]
    visible = np.asarray(maps["visible"], bool)
    all_layers = get_layers(maps)
    layers = all_layers if layers is None else layers
    positions = [all_layers.index(layer) for layer in layers]
    values = values[positions]
    visible = visible[positions]
    groups = np.asarray(maps["groups"])[positions].astype(int)
    head_numbers = list(range(values.shape[1])) if head is None else [head]
    values = values[:, head_numbers]
    groups = groups[:, head_numbers]
    _, heads, length, _ = values.shape
    causal = not visible[:, np.triu(np.ones((length, length), bool), 1)].any()
    keep = np.tril(np.ones((length, length), bool)) if causal else np.ones((length, length), bool)
    return PackedMaps(
        layers=layers,
        heads=heads,
        head_numbers=head_numbers,
        length=length,
        triangle=causal,
        step=int(np.asarray(maps["steps"])[step_index]),
        tokens=label_pieces([str(token) for token in maps["tokens"]]),
        groups=groups.tolist(),
        weights=encode_base64(values[:, :, keep]),
        visible=encode_base64(np.packbits(visible[:, keep])),
    )


def average_heads(maps: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the heads of each layer by their mean, at the end of training."""
    weights = (np.asarray(maps["maps"])[-1].astype(float) / 255) ** 2
    codes = np.round(255 * np.sqrt(weights.mean(1, keepdims=True))).astype(np.uint8)
    groups = np.zeros((len(weights), 1), int)
    return {**maps, "maps": codes[None], "steps": np.asarray(maps["steps"])[-1:], "groups": groups}


def get_layers(maps: Mapping[str, Any]) -> list[int]:
    """Return the layers in a run's attention.npz; an older file has all layers of its model."""
    return [int(n) for n in maps["layers"]] if "layers" in maps else list(range(maps["maps"].shape[1]))


def unpack_maps(packed: PackedMaps) -> tuple[np.ndarray, np.ndarray]:
    """Invert `pack_maps`: weights uint8 [layer, head, T, T] and visible bool [layer, T, T]."""
    layers = len(packed.layers)
    heads = packed.heads
    length = packed.length
    keep = np.ones((length, length), bool)
    if packed.triangle:
        keep = np.tril(keep)
    cells = int(keep.sum())
    weights = np.zeros((layers, heads, length, length), np.uint8)
    weights[:, :, keep] = decode_base64(packed.weights).reshape(layers, heads, cells)
    visible = np.zeros((layers, length, length), bool)
    visible[:, keep] = np.unpackbits(decode_base64(packed.visible))[: layers * cells].reshape(layers, cells)
    return weights, visible


def _downsample(image: np.ndarray, side: int) -> np.ndarray:
    """Take the maximum of each block, so that a thin diagonal survives."""
    length = len(image)
    if length <= side:
        return image
    edges = np.arange(side) * length // side
    return np.maximum.reduceat(np.maximum.reduceat(image, edges, 0), edges, 1)


def render_thumbnail(weights: np.ndarray, visible: np.ndarray) -> bytes:
    """Render a PNG of at most 2 kB: query down, key across, fixed scale [0, 1], square-root transfer."""
    for side, levels in ((64, 48), (56, 32), (48, 24), (40, 16), (32, 12), (24, 8), (16, 6)):
        png = _draw_png(_downsample(weights, side), _downsample(visible, side), levels)
        if len(png) <= MAX_THUMBNAIL_BYTES:
            return png
    raise AssertionError("a 16 x 16 map in six colors is under 2 kB")


def _draw_png(weights: np.ndarray, visible: np.ndarray, levels: int) -> bytes:
    """Draw a map; masked cells are hatched if they have enough pixels, and blank otherwise.

    A stroke of one pixel in a small cell would look like attention to a masked key.
    """
    cell = THUMBNAIL_PIXELS // len(weights)
    if cell < MIN_HATCHED_CELL:
        cell = 1
    weights, visible = (array.repeat(cell, 0).repeat(cell, 1) for array in (weights, visible))
    rows, columns = np.indices(weights.shape)
    is_stroke = (rows + columns) % MIN_HATCHED_CELL == 0
    hatch = (is_stroke & (cell > 1)).astype(np.uint8)  # 0 is transparent, 1 a gray stroke
    index = np.where(visible, 2 + np.round(weights / 255 * (levels - 1)), hatch).astype(np.uint8)
    image = Image.frombytes("P", index.shape[::-1], index.tobytes())
    image.putpalette([0, 0, 0, 128, 134, 140, *build_cividis_palette(levels).ravel().tolist()])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True, transparency=0)
    return buffer.getvalue()


def format_data_uri(png: bytes) -> str:
    """Embed a picture in its own URI, so that the page makes no request."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
