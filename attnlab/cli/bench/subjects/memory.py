"""Bytes, counted and not measured: what attention keeps for its backward pass by kernel over the length, and
what the caches of every kind of heads hold per token.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.layer import Attention
from attnlab.cli.bench import Bench, Row
from attnlab.cli.bench.rows import exact
from attnlab.cli.bench.setup import composed, conditions, here, is_debug
from attnlab.cli.bench.trials import attempt
from attnlab.measure.counts import bytes_per_step, saved_by_length
from attnlab.measure.size import live_cache_bytes
from attnlab.model.build import build_model, make, mixer_configs
from attnlab.testing.laws.compose import options

OVERRIDES = ["model.dim=256", "model.n_layers=4", "model.n_heads=8", "data.length=64", "logger=none"]
ROUNDS = 1
LENGTHS = (128, 256, 512, 1024, 2048)
DEBUG_LENGTHS = (16, 32)
VOCABULARY = 256
prepare = partial(here, OVERRIDES)


def measure(config: Mapping[str, Any], bench: Bench, say: Callable[[str], None], rounds: int) -> None:
    """Exact figures; `exponent` is the growth of a row over the one of half its length."""
    bench.conditions |= conditions(config)
    lengths = DEBUG_LENGTHS if is_debug(config) else LENGTHS
    for name, kernel in (("eager", eager), ("sdpa", sdpa)):
        say(f"bytes saved for backward, {name}")
        layer = make(mixer_configs(config)[0])
        assert isinstance(layer, Attention)
        layer.kernel = kernel
        group = f"bytes that a layer saves for backward, {name}, batch 1"
        bench.rows += _saved(group, layer, config["model"]["dim"], lengths)
    say("bytes cached per token")
    bench.rows += _cached(config)


def _saved(group: str, layer: Attention, dim: int, lengths: Sequence[int]) -> list[Row]:
    table: list[Row] = []
    for length in lengths:
        sizes: list[int] = []

        def count(length: int = length, sizes: list[int] = sizes) -> None:
            sizes.extend(saved_by_length(layer, dim, [length]))

        note = attempt(count)
        if note is not None:
            table.append(Row(group, f"T = {length}", "bytes", [], note=note))
            continue
        (value,) = sizes
        last = table[-1].median if table else None
        growth = {} if not last else {"exponent": round(math.log2(value / last), 3)}
        first = (table[0].median if table else None) or value
        table.append(exact(group, f"T = {length}", "bytes", value, first, **growth))
    return table


def _cached(config: Mapping[str, Any]) -> list[Row]:
    group = "bytes cached per token, all layers, batch 1"
    table: list[Row] = []
    shape = [f"model.{key}={config['model'][key]}" for key in ("dim", "n_layers", "n_heads")]
    for heads in sorted(options("heads"), key="mha".__ne__):  # the baseline first, the others in their order
        model = build_model(composed([*OVERRIDES, *shape, f"heads={heads}"]), VOCABULARY).eval()
        live = live_cache_bytes(model, torch.zeros(1, 7, dtype=torch.long))
        size = model.state_size()
        assert live == size, f"{heads}: the cache holds {live} bytes per token, the formula says {size}"
        read = {f"read_at_{held}": sum(bytes_per_step(model, held).values()) for held in (1024, 32768)}
        first = (table[0].median if table else None) or size
        table.append(exact(group, f"heads={heads}", "bytes", size, first, **read))
    return table
