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
from attnlab.sweep.waiting import waiting

SHOWN = 0.0005  # what prints as 0.000 is no link
MOST = 512  # tokens of a text; a larger map cannot be looked at


def main(options: argparse.Namespace) -> int:
    """Prints the links and writes the page. Refused, one line, where something is missing."""
    given = options.given
    if "experiment" not in given and {"arm", "seed"} & {*given}:
        raise Refused("arm= and seed= name a run of an experiment: add experiment=NAME, or leave them out")
    trained = load(given, options.words)
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
        raise Refused(f"{trained.name} has no attention, so there are no maps to look at")
    layer = _one_of(given, "layer", maps.layers)
    head = _one_of(given, "head", range(maps.weights.shape[1]))
    print(links(maps.weights.numpy(), words, layer, head, given["top"], maps.layers))
    folder = Path(given.get("to") or Path("reports") / "inspect" / trained.name)
    page = _write(folder, trained, maps, tokens, words, layer, head)
    print(f"\npage: {printable(str(page))}")
    return 0


def _one_of(given: Mapping[str, Any], key: str, known: Sequence[int]) -> int | None:
    if key in given and given[key] not in known:
        among = known == list(range(len(known))) or isinstance(known, range)
        said = (
            f"a whole number from 0 to {len(known) - 1}" if among else "one of " + ", ".join(map(str, known))
        )
        raise Refused(f"{key}={given[key]}: it must be {said}")
    return given.get(key)


def links(
    weights: np.ndarray,
    words: Sequence[str],
    layer: int | None,
    head: int | None,
    top: int = 3,
    layers: Sequence[int] | None = None,
) -> str:
    """A line per token: the strongest links from it to tokens up to it, over the heads that are asked for.

    weights [layer, head, T, T], of these `layers`, or all. A link names its head unless only one was asked
    for.
    """
    layers = range(len(weights)) if layers is None else layers
    chosen = [
        (a, b) for a in layers for b in range(weights.shape[1]) if layer in (None, a) and head in (None, b)
    ]
    shown = [printable(json.dumps(word, ensure_ascii=False)) for word in words]
    wide = max(map(len, shown))
    lines = []
    for query, word in enumerate(shown):
        rows = [
            (float(weights[layers.index(a), b, query, key]), a, b, key)
            for a, b in chosen
            for key in range(len(words))
        ]
        best = sorted((row for row in rows if row[0] >= SHOWN), key=lambda row: (-row[0], *row[1:]))[:top]
        said = (
            f"{value:.3f} {shown[key]}@{key}" + (f" ({a}.{b})" if len(chosen) > 1 else "")
            for value, a, b, key in best
        )
        lines.append(f"{query:4} {word:{wide}} -> {'   '.join(said)}")
    of = f"layer {layer}, head {head}" if len(chosen) == 1 else f"{len(chosen)} heads; (layer.head)"
    return f"strongest links of every token, {of}\n" + "\n".join(lines)


@waiting("drawing the page")
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
        "layers": np.array(maps.layers),
    }
    scores = head_scores(trained.model, [tokens[:, :LONGEST]], min(trained.length, LONGEST))
    kernels = {"max_abs_eager_fused": maps.difference, "note": None}
    return explorer.write(folder, trained.name, trained.seed, arrays, scores, kernels, layer, head)
