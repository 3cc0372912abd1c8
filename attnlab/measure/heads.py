"""Head scores of a model: `scores` of its attention to a few texts, and to random tokens repeated four times.

Surprising: heads without values of their own (latent, differential) have no copying score; the record says
why instead of giving a number.
"""

from collections.abc import Iterable
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities, Heads, State
from attnlab.attention.past.past import Past
from attnlab.attention.positions import Positions
from attnlab.attention.rotary import identity
from attnlab.measure import scores
from attnlab.measure.maps import attention_layers, attention_maps, given
from attnlab.model.transformer import Transformer

TEXTS = 4
REPEATS = 4
SEED = 20_220_311
LONGEST = 128  # tokens of a probe


class WritingHeads(Heads, Protocol):
    """What heads that declare `has_own_values` have beside what all have (`contracts.Heads`)."""

    def written(self, state: State, /) -> Tensor: ...


def _write(heads: Heads) -> TypeGuard[WritingHeads]:
    return Capabilities.of(heads).has_own_values


def probe_texts(batch: dict[str, Tensor], count: int = TEXTS) -> list[Tensor]:
    """The first examples of a batch, each [1, T] without its padding."""
    rows = batch["tokens"][:count, :LONGEST]
    lengths = batch.get("lengths", torch.full((len(rows),), rows.shape[1]))[:count]
    return [row[None, : int(length)] for row, length in zip(rows, lengths, strict=True)]


def repeated(length: int, vocab_size: int, count: int = TEXTS) -> Tensor:
    """[count, 4 P] tokens, each row four times the same random P, at most `length` long, alike in any run."""
    period = min(length, LONGEST) // REPEATS
    rng = np.random.default_rng(SEED)
    rows = [rng.choice(vocab_size, period, replace=period > vocab_size) for _ in range(count)]
    return torch.from_numpy(np.tile(np.stack(rows), (1, REPEATS)))


def head_scores(model: Transformer, texts: Iterable[Tensor], length: int) -> dict[str, Any]:
    """Score -> [layer][head], [] for a layer without attention, with the level of uniform attention under
    `chance` and what is absent, and why, under `notes`. {} where the model has no attention. `length` is the
    longest that the model may read.
    """
    device = model.embedding.weight.device
    tables: dict[str, list[Any]] = {}
    levels: dict[str, list[float]] = {}
    peaks: list[np.ndarray] = []
    for tokens in texts:
        maps = attention_maps(model, tokens.to(device))
        if maps is None:
            return {}
        A = maps.weights.double().numpy()
        ids = tokens[0].cpu().numpy()
        for name, value in scores.pattern_scores(A, ids).items():
            tables.setdefault(name, []).append(value)
        for name, value in scores.pattern_scores(scores.uniform(len(ids)), ids).items():
            levels.setdefault(name, []).append(float(value))
        peaks.append(np.pad(scores.peaks(A), ((0, 0), (0, 0), (0, LONGEST - len(ids)))))
    notes: dict[str, str] = {}
    if peaks:
        counts = np.sum(peaks, 0)
        tables["positional"] = [counts.max(-1) / counts.sum(-1)]
    for name in ("previous", "duplicate", "entropy", "local"):
        if name not in tables:
            notes[name] = "the probe texts are too short, or repeat no token"
    vocab_size = model.head.weight.shape[0]
    rows = repeated(length, vocab_size)
    period = rows.shape[1] // REPEATS
    if period < 2:
        notes["induction"] = notes["copying"] = f"a context of {length} tokens has no room for repeats"
    else:
        _on_random_tokens(model, rows.to(device), period, tables, levels, notes)
    places = {layer: place for place, layer in enumerate(attention_layers(model))}
    means = {
        name: [table[places[n]] if n in places else [] for n in range(len(model.blocks))]
        for name, values in sorted(tables.items())
        for table in [np.mean(values, 0).round(6).tolist()]
    }
    chance = {name: float(np.mean(values)) for name, values in sorted(levels.items())}
    return {**means, **{name: None for name in notes}, "chance": chance, "notes": notes}


def _on_random_tokens(
    model: Transformer,
    rows: Tensor,
    period: int,
    tables: dict[str, list[Any]],
    levels: dict[str, list[float]],
    notes: dict[str, str],
) -> None:
    """Induction and copying, and their chance levels."""
    layers = attention_layers(model).values()
    without = sorted({type(x.heads).__name__ for x in layers if not _write(x.heads)})
    if without:
        notes["copying"] = f"{', '.join(without)} have no values of their own to follow"
    for row in rows:
        ids = row.cpu().numpy()
        length = len(row)
        maps = attention_maps(model, row[None])
        assert maps is not None
        tables.setdefault("induction", []).append(
            scores.induction(maps.weights.double().numpy(), ids, period)
        )
        level: Any = scores.induction(scores.uniform(length), ids, period)
        levels.setdefault("induction", []).append(float(level))
        if not without:
            rises = written(model, row[None, :period])
            tables.setdefault("copying", []).append([scores.copying(rise, ids[:period]) for rise in rises])
            # a head that raises all tokens alike gives each of them one share
            levels.setdefault("copying", []).append(2 / model.head.weight.shape[0] - 1)


@torch.no_grad()
def written(model: Transformer, tokens_1T: Tensor) -> Iterable[np.ndarray]:
    """Per layer [head, T, vocabulary]: what a head adds to the logits where it attends to one token alone:
    what it writes there into the residual stream, through the unembedding.
    """
    for one in given(model, tokens_1T):
        heads = one.layer.heads
        assert _write(heads)
        past = Past(Positions.of_pass(None, None, one.x), None, None)
        _, state = one.layer.project(one.x, identity, past=past, channel=one.channel())
        yield (heads.written(state)[0] @ model.head.weight.T).float().cpu().numpy()
