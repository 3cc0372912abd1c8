"""Attention maps for the page: packed once into report.json, and small PNG thumbnails made from that packing.

A map is stored as its lower triangle, one byte sqrt(a) * 255 per cell (off by 0.004 at most), gzipped with
no time in its header. Cells that the mask forbids are hatched, not coloured as zero: a zero was chosen, a
masked cell was not.
"""

import base64
import gzip
import io
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

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


def pack(values: np.ndarray) -> str:
    """Bytes (any shape) as base64 text; the same text for the same bytes on every machine and day."""
    return base64.b64encode(gzip.compress(np.ascontiguousarray(values).tobytes(), 9, mtime=0)).decode("ascii")


def unpack(text: str) -> np.ndarray:
    """What `pack` stored, flat. ValueError for what is broken."""
    try:
        return np.frombuffer(gzip.decompress(base64.b64decode(text)), np.uint8)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"an attention map of the report is broken: {error}") from error


def encode(
    maps: Mapping[str, Any], layers: list[int] | None = None, head: int | None = None, point: int = -1
) -> dict[str, Any]:
    """One run's attention.npz (all layers with attention and all heads, or these) at one point of training,
    for the page.
    """
    values, visible = np.asarray(maps["maps"])[point], np.asarray(maps["visible"], bool)
    known = layers_of(maps)
    layers = known if layers is None else layers
    places = [known.index(layer) for layer in layers]
    values, visible = values[places], visible[places]
    groups = np.asarray(maps["groups"])[places].astype(int)
    numbers = list(range(values.shape[1])) if head is None else [head]
    values, groups = values[:, numbers], groups[:, numbers]
    _, heads, length, _ = values.shape
    causal = not visible[:, np.triu(np.ones((length, length), bool), 1)].any()
    keep = np.tril(np.ones((length, length), bool)) if causal else np.ones((length, length), bool)
    return {
        "layers": layers,
        "heads": heads,
        "head_numbers": numbers,
        "length": length,
        "triangle": causal,
        "step": int(np.asarray(maps["steps"])[point]),
        "tokens": [str(token) for token in maps["tokens"]],
        "groups": groups.tolist(),
        "weights": pack(values[:, :, keep]),
        "visible": pack(np.packbits(visible[:, keep])),
    }


def mean(maps: Mapping[str, Any]) -> dict[str, Any]:
    """One run's attention.npz with the mean of each layer's heads in their place, at the end of training."""
    weights = (np.asarray(maps["maps"])[-1].astype(float) / 255) ** 2
    codes = np.round(255 * np.sqrt(weights.mean(1, keepdims=True))).astype(np.uint8)
    groups = np.zeros((len(weights), 1), int)
    return {**maps, "maps": codes[None], "steps": np.asarray(maps["steps"])[-1:], "groups": groups}


def layers_of(maps: Mapping[str, Any]) -> list[int]:
    """The layers that one run's attention.npz has; an older file has all of its model's."""
    return [int(n) for n in maps["layers"]] if "layers" in maps else list(range(maps["maps"].shape[1]))


def decode(encoded: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Back from `encode`: weights uint8 [layer, head, T, T] and visible bool [layer, T, T]."""
    layers, heads, length = len(encoded["layers"]), encoded["heads"], encoded["length"]
    keep = np.ones((length, length), bool)
    if encoded["triangle"]:
        keep = np.tril(keep)
    cells = int(keep.sum())
    weights = np.zeros((layers, heads, length, length), np.uint8)
    weights[:, :, keep] = unpack(encoded["weights"]).reshape(layers, heads, cells)
    visible = np.zeros((layers, length, length), bool)
    visible[:, keep] = np.unpackbits(unpack(encoded["visible"]))[: layers * cells].reshape(layers, cells)
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
