"""Head scores of a model, on a few texts and on random tokens repeated four times.

Heads without values of their own (latent, differential) have no copying score; the result gives the reason
instead.
"""

from collections.abc import Iterable
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities, Heads, State
from attnlab.attention.rotary import identity_rotation
from attnlab.attention.stateful.recurrent_state import RecurrentState
from attnlab.attention.token_positions import TokenPositions
from attnlab.measure import pattern_scores
from attnlab.measure.attention_maps import (
    capture_layer_inputs,
    compute_attention_maps,
    find_attention_layers,
    select_first_document,
)
from attnlab.model.transformer import Transformer

N_EXAMPLES = 4
N_REPEATS = 4
REPEATED_TOKENS_SEED = 20_220_311
MAX_PROBE_TOKENS = 128  # of a probe


class OwnValueHeads(Heads, Protocol):
    """Interface of heads that declare `has_own_values`, beyond `contracts.Heads`."""

    def project_values(self, state: State, /) -> Tensor: ...


def _has_own_values(heads: Heads) -> TypeGuard[OwnValueHeads]:
    return Capabilities.from_part(heads).has_own_values


def select_probe_examples(batch: dict[str, Tensor], count: int = N_EXAMPLES) -> list[Tensor]:
    """Return the first documents of the first rows of a batch, each [1, T], without padding."""
    rows = range(min(count, len(batch["tokens"])))
    return [select_first_document(batch, row)[:, :MAX_PROBE_TOKENS] for row in rows]


def make_repeated_tokens(length: int, vocab_size: int, count: int = N_EXAMPLES) -> Tensor:
    """Return [count, 4 P] tokens; each row repeats the same random P tokens four times.

    Rows have at most `length` tokens and are the same in every run.
    """
    period = min(length, MAX_PROBE_TOKENS) // N_REPEATS
    rng = np.random.default_rng(REPEATED_TOKENS_SEED)
    rows = [rng.choice(vocab_size, period, replace=period > vocab_size) for _ in range(count)]
    return torch.from_numpy(np.tile(np.stack(rows), (1, N_REPEATS)))


def compute_head_scores(model: Transformer, examples: Iterable[Tensor], length: int) -> dict[str, Any]:
    """Compute all scores of all heads.

    Args:
        examples: texts [1, T].
        length: the longest input of the model.

    Returns:
        Score -> [layer][head], [] for a layer without attention; None for a missing score. `chance` holds the
        scores of uniform attention, and `notes` the reasons for missing scores. {} if the model has no
        attention.
    """
    device = model.embedding.weight.device
    tables: dict[str, list[Any]] = {}
    levels: dict[str, list[float]] = {}
    peaks: list[np.ndarray] = []
    for tokens in examples:
        maps = compute_attention_maps(model, tokens.to(device))
        if maps is None:
            return {}
        A = maps.weights.double().numpy()
        ids = tokens[0].cpu().numpy()
        for name, value in pattern_scores.compute_pattern_scores(A, ids).items():
            tables.setdefault(name, []).append(value)
        for name, value in pattern_scores.compute_pattern_scores(
            pattern_scores.make_uniform_attention(len(ids)), ids
        ).items():
            levels.setdefault(name, []).append(float(value))
        peaks.append(
            np.pad(pattern_scores.count_peak_offsets(A), ((0, 0), (0, 0), (0, MAX_PROBE_TOKENS - len(ids))))
        )
    notes: dict[str, str] = {}
    if peaks:
        counts = np.sum(peaks, 0)
        tables["positional"] = [counts.max(-1) / counts.sum(-1)]
    for name in ("previous", "duplicate", "entropy", "local"):
        if name not in tables:
            notes[name] = "the probe sequences are too short or repeat no token"
    vocab_size = model.head.weight.shape[0]
    rows = make_repeated_tokens(length, vocab_size)
    period = rows.shape[1] // N_REPEATS
    if period < 2:
        notes["induction"] = notes["copying"] = f"a context of {length} tokens is too short for repeats"
    else:
        _score_random_tokens(model, rows.to(device), period, tables, levels, notes)
    index_of_layer = {layer: index for index, layer in enumerate(find_attention_layers(model))}
    means = {
        name: [table[index_of_layer[n]] if n in index_of_layer else [] for n in range(len(model.blocks))]
        for name, values in sorted(tables.items())
        for table in [np.mean(values, 0).round(6).tolist()]
    }
    chance = {name: float(np.mean(values)) for name, values in sorted(levels.items())}
    return {**means, **{name: None for name in notes}, "chance": chance, "notes": notes}


def _score_random_tokens(
    model: Transformer,
    rows: Tensor,
    period: int,
    tables: dict[str, list[Any]],
    levels: dict[str, list[float]],
    notes: dict[str, str],
) -> None:
    """Add the induction and copying scores and their chance levels to the tables."""
    layers = find_attention_layers(model).values()
    valueless_heads = sorted({type(x.heads).__name__ for x in layers if not _has_own_values(x.heads)})
    if valueless_heads:
        notes["copying"] = f"{', '.join(valueless_heads)} have no separate values"
    for row in rows:
        ids = row.cpu().numpy()
        length = len(row)
        maps = compute_attention_maps(model, row[None])
        assert maps is not None
        tables.setdefault("induction", []).append(
            pattern_scores.score_induction(maps.weights.double().numpy(), ids, period)
        )
        chance_level: Any = pattern_scores.score_induction(
            pattern_scores.make_uniform_attention(length), ids, period
        )
        levels.setdefault("induction", []).append(float(chance_level))
        if not valueless_heads:
            rises = compute_head_logits(model, row[None, :period])
            tables.setdefault("copying", []).append(
                [pattern_scores.score_copying(rise, ids[:period]) for rise in rises]
            )
            # a head that raises all tokens equally gives each one the same proportion
            levels.setdefault("copying", []).append(2 / model.head.weight.shape[0] - 1)


@torch.no_grad()
def compute_head_logits(model: Transformer, tokens_1T: Tensor) -> Iterable[np.ndarray]:
    """Yield each layer's contribution of heads to the logits [head, T, vocabulary].

    Each entry is for a head that attends to a single token: its write to the residual stream for this token,
    multiplied by the unembedding.
    """
    for layer_input in capture_layer_inputs(model, tokens_1T):
        heads = layer_input.layer.heads
        assert _has_own_values(heads)
        recurrent_state = RecurrentState(
            TokenPositions.resolve_positions(None, None, layer_input.x), None, None
        )
        _, state = layer_input.layer.project(
            layer_input.x,
            identity_rotation,
            recurrent_state=recurrent_state,
            shared_tensors=layer_input.copy_shared_tensors(),
        )
        yield (heads.project_values(state)[0] @ model.head.weight.T).float().cpu().numpy()
