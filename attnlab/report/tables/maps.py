"""Attention maps: the archive attention.npz beside report.json, and maps packed for the page with thumbnails.

In the page a map is its lower triangle, one byte sqrt(a) * 255 per cell (off by 0.004 at most), gzipped with
no time in its header. Cells that the mask forbids are hatched, not coloured as zero: a zero was chosen, a
masked cell was not.
"""

import base64
import gzip
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attnlab.errors import Refused

ARCHIVE = "attention.npz"  # beside report.json, and in the folder of each run
LIMIT = 2048  # bytes of a thumbnail: browsers choke on many large data URIs
_HEX = "00224e 123570 3b496c 575d6d 707173 8a8678 a59c74 c3b369 e1cc55 fee838".split()  # noqa: SIM905
_STOPS = np.array([[int(stop[i : i + 2], 16) for i in (0, 2, 4)] for stop in _HEX], float)


def cividis(levels: int) -> np.ndarray:
    """`levels` colours from dark blue to yellow, [levels, 3] uint8; read alike by the colour-blind."""
    at = np.linspace(0, len(_STOPS) - 1, levels)
    return (
        np.stack([np.interp(at, np.arange(len(_STOPS)), _STOPS[:, c]) for c in range(3)], 1)
        .round()
        .astype(np.uint8)
    )


def archive(runs: Mapping[tuple[str, int], Mapping[str, Any]]) -> bytes:
    """attention.npz of a report: the arrays of each run, (arm, seed), under `arm/seed/name`. The same arrays
    give the same bytes: the archive has no times.
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


def read(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The arrays of each run, (arm, seed), in attention.npz of a report; {} where there is no file.

    Raises:
        Refused: the file is no archive of arrays under `arm/seed/name`.
    """
    if not path.exists():
        return {}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for key in arrays.files:
                arm, seed, name = key.rsplit("/", 2)
                found.setdefault((arm, int(seed)), {})[name] = arrays[key]
    except (OSError, TypeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise Refused(
            f"{path}: cannot be read as attention maps ({error}); delete it or run the report's command again"
        ) from error
    return found


def pack(values: np.ndarray) -> str:
    """Bytes (any shape) as base64 text; the same text for the same bytes on every machine and day."""
    return base64.b64encode(gzip.compress(np.ascontiguousarray(values).tobytes(), 9, mtime=0)).decode("ascii")


def unpack(text: str) -> np.ndarray:
    """The bytes that `pack` stored, flat."""
    return np.frombuffer(gzip.decompress(base64.b64decode(text)), np.uint8)


@dataclass(frozen=True)
class PackedMaps:
    """Attention maps of one run at one step, for the page: `weights` and `visible` are packed, [layer, head,
    T, T] and [layer, T, T], of a causal map its lower `triangle` alone.
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


def encode(
    maps: Mapping[str, Any], layers: list[int] | None = None, head: int | None = None, point: int = -1
) -> PackedMaps:
    """One run's attention.npz (all layers with attention and all heads, or these) at one point of training,
    for the page.
    """
    values = np.asarray(maps["maps"])[point]
    visible = np.asarray(maps["visible"], bool)
    known = layers_of(maps)
    layers = known if layers is None else layers
    places = [known.index(layer) for layer in layers]
    values = values[places]
    visible = visible[places]
    groups = np.asarray(maps["groups"])[places].astype(int)
    numbers = list(range(values.shape[1])) if head is None else [head]
    values = values[:, numbers]
    groups = groups[:, numbers]
    _, heads, length, _ = values.shape
    causal = not visible[:, np.triu(np.ones((length, length), bool), 1)].any()
    keep = np.tril(np.ones((length, length), bool)) if causal else np.ones((length, length), bool)
    return PackedMaps(
        layers=layers,
        heads=heads,
        head_numbers=numbers,
        length=length,
        triangle=causal,
        step=int(np.asarray(maps["steps"])[point]),
        tokens=[str(token) for token in maps["tokens"]],
        groups=groups.tolist(),
        weights=pack(values[:, :, keep]),
        visible=pack(np.packbits(visible[:, keep])),
    )


def mean(maps: Mapping[str, Any]) -> dict[str, Any]:
    """One run's attention.npz with the mean of each layer's heads in their place, at the end of training."""
    weights = (np.asarray(maps["maps"])[-1].astype(float) / 255) ** 2
    codes = np.round(255 * np.sqrt(weights.mean(1, keepdims=True))).astype(np.uint8)
    groups = np.zeros((len(weights), 1), int)
    return {**maps, "maps": codes[None], "steps": np.asarray(maps["steps"])[-1:], "groups": groups}


def layers_of(maps: Mapping[str, Any]) -> list[int]:
    """The layers that one run's attention.npz has; an older file has all of its model's."""
    return [int(n) for n in maps["layers"]] if "layers" in maps else list(range(maps["maps"].shape[1]))


def decode(encoded: PackedMaps) -> tuple[np.ndarray, np.ndarray]:
    """Back from `encode`: weights uint8 [layer, head, T, T] and visible bool [layer, T, T]."""
    layers = len(encoded.layers)
    heads = encoded.heads
    length = encoded.length
    keep = np.ones((length, length), bool)
    if encoded.triangle:
        keep = np.tril(keep)
    cells = int(keep.sum())
    weights = np.zeros((layers, heads, length, length), np.uint8)
    weights[:, :, keep] = unpack(encoded.weights).reshape(layers, heads, cells)
    visible = np.zeros((layers, length, length), bool)
    visible[:, keep] = np.unpackbits(unpack(encoded.visible))[: layers * cells].reshape(layers, cells)
    return weights, visible


def _shrink(image: np.ndarray, side: int) -> np.ndarray:
    """The largest value of each block, so that a thin diagonal survives."""
    length = len(image)
    if length <= side:
        return image
    edges = np.arange(side) * length // side
    return np.maximum.reduceat(np.maximum.reduceat(image, edges, 0), edges, 1)


def thumbnail(weights: np.ndarray, visible: np.ndarray) -> bytes:
    """A PNG of at most 2 kB: query down, key across, fixed scale [0, 1] with a square-root transfer."""
    for side, levels in ((64, 48), (56, 32), (48, 24), (40, 16), (32, 12), (24, 8), (16, 6)):
        png = _draw(_shrink(weights, side), _shrink(visible, side), levels)
        if len(png) <= LIMIT:
            return png
    raise AssertionError("a 16 x 16 map in six colours is under 2 kB")


def _draw(weights: np.ndarray, visible: np.ndarray, levels: int) -> bytes:
    rows, columns = np.indices(weights.shape)
    hatch = ((rows + columns) % 5 == 0).astype(np.uint8)  # 0 is clear, 1 a grey stroke
    index = np.where(visible, 2 + np.round(weights / 255 * (levels - 1)), hatch).astype(np.uint8)
    image = Image.frombytes("P", index.shape[::-1], index.tobytes())
    image.putpalette([0, 0, 0, 128, 134, 140, *cividis(levels).ravel().tolist()])
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True, transparency=0)
    return out.getvalue()


def data_uri(png: bytes) -> str:
    """The picture inside its own address, so that the page asks for nothing."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
