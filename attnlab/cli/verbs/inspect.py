"""`python -m attnlab inspect`: where a trained model looks in a text, in the terminal and as a page."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab.cli.load import Trained, load
from attnlab.errors import Refused, printable
from attnlab.measure.heads import LONGEST, head_scores
from attnlab.measure.maps import Maps, attention_maps, encode

SHOWN = 0.0005  # what prints as 0.000 is no link
MOST = 512  # tokens of a text; a larger map cannot be looked at


def main(options: argparse.Namespace) -> int:
    """Prints the links and writes the page. Refused, one line, where something is missing."""
    given = options.given
    trained = load(given)
    trained.model.float()  # a foreign one may be in half precision, whose maps do not sum to one
    ids, words = trained.words(given["text"])
    if not ids:
        raise Refused("text is empty: give some words, as in text='the cat sat on the mat'")
    limit = min(MOST, trained.length) if trained.bounded else MOST
    if len(ids) > limit:
        raise Refused(f"the text has {len(ids)} tokens, and at most {limit} can be looked at: shorten it")
    tokens = torch.tensor([ids])
    maps = attention_maps(trained.model, tokens)
    if maps is None:
        raise Refused(f"{trained.name} has layers without attention, so there are no maps to look at")
    layers, heads = maps.weights.shape[:2]
    layer, head = _one_of(given, "layer", layers), _one_of(given, "head", heads)
    print(links(maps.weights.numpy(), words, layer, head, given["top"]))
    folder = Path(given.get("to") or Path("reports") / "inspect" / trained.name)
    page = _write(folder, trained, maps, tokens, words, layer, head)
    print(f"\npage: {printable(str(page))}")
    return 0


def _one_of(given: Mapping[str, Any], key: str, count: int) -> int | None:
    if key in given and not 0 <= given[key] < count:
        raise Refused(f"{key}={given[key]}: it must be a whole number from 0 to {count - 1}")
    return given.get(key)


def links(
    weights: np.ndarray, words: Sequence[str], layer: int | None, head: int | None, top: int = 3
) -> str:
    """A line per token: the strongest links from it to tokens up to it, over the heads that are asked for.

    weights [layer, head, T, T]. A link names its head unless only one was asked for.
    """
    chosen = [
        (a, b)
        for a in range(weights.shape[0])
        for b in range(weights.shape[1])
        if layer in (None, a) and head in (None, b)
    ]
    shown = [printable(json.dumps(word, ensure_ascii=False)) for word in words]
    wide = max(map(len, shown))
    lines = []
    for query, word in enumerate(shown):
        rows = [(float(weights[a, b, query, key]), a, b, key) for a, b in chosen for key in range(len(words))]
        best = sorted((row for row in rows if row[0] >= SHOWN), key=lambda row: (-row[0], *row[1:]))[:top]
        said = (
            f"{value:.3f} {shown[key]}@{key}" + (f" ({a}.{b})" if len(chosen) > 1 else "")
            for value, a, b, key in best
        )
        lines.append(f"{query:4} {word:{wide}} -> {'   '.join(said)}")
    of = f"layer {layer}, head {head}" if len(chosen) == 1 else f"{len(chosen)} heads; (layer.head)"
    return f"strongest links of every token, {of}\n" + "\n".join(lines)


def _write(
    folder: Path,
    trained: Trained,
    maps: Maps,
    tokens: torch.Tensor,
    words: list[str],
    layer: int | None,
    head: int | None,
) -> Path:
    from attnlab.report.pages import explorer

    arrays = {
        "maps": encode(maps.weights)[None],
        "visible": maps.visible.numpy(),
        "steps": np.zeros(1, int),
        "tokens": np.array(words),
        "groups": maps.groups.numpy(),
    }
    scores = head_scores(trained.model, [tokens[:, :LONGEST]], min(trained.length, LONGEST))
    kernels = {"max_abs_eager_fused": maps.difference, "note": None}
    return explorer.write(folder, trained.name, trained.seed, arrays, scores, kernels, layer, head)
