"""`python -m attnlab inspect`: attention of a trained model on a text, in the terminal and as a page."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab.cli.select_model import load_selected_model
from attnlab.data.token_labels import CONTINUATION
from attnlab.errors import InvalidConfig, escape_unprintable
from attnlab.measure.attention_maps import AttentionMaps, compute_attention_maps, encode_weights
from attnlab.measure.head_scoring import MAX_PROBE_TOKENS, compute_head_scores
from attnlab.sweep.slow_notice import notify_if_slow
from attnlab.training.trained_model import TrainedModel

MIN_SHOWN_WEIGHT = 0.0005  # smaller weights print as 0.000
MAX_TOKENS = 512  # of a text; larger maps are illegible


def main(options: argparse.Namespace) -> int:
    """Print the strongest links and write the page; InvalidConfig if an argument is missing or wrong."""
    arguments = options.key_values
    trained_model = load_selected_model(arguments, options.words)
    trained_model.model.float()  # half-precision maps do not sum to one
    ids, words = trained_model.encode_words(arguments["text"])
    if not ids:
        raise InvalidConfig("text is empty: give at least one token, as in text='the cat sat on the mat'")
    limit = min(MAX_TOKENS, trained_model.max_length) if trained_model.has_position_limit else MAX_TOKENS
    if len(ids) > limit:
        raise InvalidConfig(f"the text has {len(ids)} tokens, but the limit is {limit}: shorten it")
    tokens = torch.tensor([ids])
    maps = compute_attention_maps(trained_model.model, tokens)
    if maps is None:
        raise InvalidConfig(
            f"{trained_model.name} has no attention, so it has no attention maps: choose another model"
        )
    layer = _validate_choice(arguments, "layer", maps.layers)
    head = _validate_choice(arguments, "head", range(maps.weights.shape[1]))
    print(format_strongest_links(maps.weights.numpy(), words, layer, head, arguments["top"], maps.layers))
    folder = Path(arguments.get("to") or Path("reports") / "inspect" / trained_model.name)
    page = _write_page(folder, trained_model, arguments["text"], maps, tokens, words, layer, head)
    print(f"\npage: {escape_unprintable(str(page))}")
    return 0


def _validate_choice(arguments: Mapping[str, Any], key: str, choices: Sequence[int]) -> int | None:
    if key in arguments and arguments[key] not in choices:
        is_range = choices == list(range(len(choices))) or isinstance(choices, range)
        requirement = (
            f"an integer from 0 to {len(choices) - 1}"
            if is_range
            else "one of " + ", ".join(map(str, choices))
        )
        raise InvalidConfig(f"{key}={arguments[key]}: must be {requirement}")
    return arguments.get(key)


def format_strongest_links(
    weights: np.ndarray,
    words: Sequence[str],
    layer: int | None,
    head: int | None,
    top: int = 3,
    layers: Sequence[int] | None = None,
) -> str:
    """Format a line per token with its strongest attention links over the selected heads.

    Args:
        weights: [layer, head, T, T].
        words: label of each token.
        layer: only this layer; None selects all.
        head: only this head; None selects all.
        top: links per token.
        layers: model layers that `weights` covers; None means all.

    A link names its layer and head unless only one head is selected.
    """
    layers = range(len(weights)) if layers is None else layers
    selected_heads = [
        (a, b) for a in layers for b in range(weights.shape[1]) if layer in (None, a) and head in (None, b)
    ]
    labels = [escape_unprintable(json.dumps(word, ensure_ascii=False)) for word in words]
    width = max(map(len, labels))
    lines = []
    for query, word in enumerate(labels):
        rows = [
            (float(weights[layers.index(a), b, query, key]), a, b, key)
            for a, b in selected_heads
            for key in range(len(words))
        ]
        strongest = sorted(
            (row for row in rows if row[0] >= MIN_SHOWN_WEIGHT), key=lambda row: (-row[0], *row[1:])
        )[:top]
        links = (
            f"{value:.3f} {labels[key]}@{key}" + (f" ({a}.{b})" if len(selected_heads) > 1 else "")
            for value, a, b, key in strongest
        )
        lines.append(f"{query:4} {word:{width}} -> {'   '.join(links)}")
    scope = (
        f"layer {layer}, head {head}"
        if len(selected_heads) == 1
        else f"{len(selected_heads)} heads; (layer.head)"
    )
    if CONTINUATION in words:
        scope += f"; {CONTINUATION} continues the character of the token before"
    return f"strongest links of every token, {scope}\n" + "\n".join(lines)


@notify_if_slow("rendering the page")
def _write_page(
    folder: Path,
    trained: TrainedModel,
    text: str,
    maps: AttentionMaps,
    tokens: torch.Tensor,
    words: list[str],
    layer: int | None,
    head: int | None,
) -> Path:
    from attnlab.report.pages import explorer

    arrays = {
        "maps": encode_weights(maps.weights)[None],
        "visible": maps.visible.numpy(),
        "steps": np.zeros(1, int),
        "tokens": np.array(words),
        "groups": maps.kv_groups.numpy(),
        "layers": np.array(maps.layers),
    }
    scores = compute_head_scores(
        trained.model, [tokens[:, :MAX_PROBE_TOKENS]], min(trained.max_length, MAX_PROBE_TOKENS)
    )
    kernels = {"max_abs_eager_fused": maps.kernel_difference, "note": None}
    return explorer.write_explorer(
        folder, trained.name, trained.seed, text, arrays, scores, kernels, layer, head
    )
