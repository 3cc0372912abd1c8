"""Exact byte counts: activations saved for backward by kernel and length, and cache per token by heads."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.layer import Attention
from attnlab.cli.run_config import compose_run_config
from attnlab.measure.generation_costs import count_saved_bytes_by_length, count_step_bytes
from attnlab.measure.resources import count_live_cache_bytes
from attnlab.model.build import build_model, instantiate_config, list_mixer_configs
from attnlab.testing.invariants.variant_composition import list_options
from benchmarks import BenchResult, BenchRow
from benchmarks.bench_config import (
    compose_local_config,
    describe_conditions,
    is_debug,
)
from benchmarks.bench_rows import build_counted_row
from benchmarks.workloads import try_workload

OVERRIDES = ["model.dim=256", "model.n_layers=4", "model.n_heads=8", "data.length=64", "logger=none"]
ROUNDS = 1
LENGTHS = (128, 256, 512, 1024, 2048)
DEBUG_LENGTHS = (16, 32)
VOCAB_SIZE = 256
prepare = partial(compose_local_config, OVERRIDES)


def measure(config: Mapping[str, Any], bench: BenchResult, log: Callable[[str], None], rounds: int) -> None:
    """Count bytes; `exponent` is the growth exponent relative to half the length."""
    bench.conditions |= describe_conditions(config)
    lengths = DEBUG_LENGTHS if is_debug(config) else LENGTHS
    for name, kernel in (("eager", eager), ("sdpa", sdpa)):
        log(f"bytes saved for backward, {name}")
        layer = instantiate_config(list_mixer_configs(config)[0])
        assert isinstance(layer, Attention)
        layer.kernel = kernel
        group = f"bytes that a layer saves for backward, {name}, batch 1"
        bench.rows += _build_saved_rows(group, layer, config["model"]["dim"], lengths)
    log("bytes cached per token")
    bench.rows += _build_cache_rows(config)


def _build_saved_rows(group: str, layer: Attention, dim: int, lengths: Sequence[int]) -> list[BenchRow]:
    rows: list[BenchRow] = []
    for length in lengths:
        sizes: list[int] = []

        def record_saved_bytes(length: int = length, sizes: list[int] = sizes) -> None:
            sizes.extend(count_saved_bytes_by_length(layer, dim, [length]))

        note = try_workload(record_saved_bytes)
        if note is not None:
            rows.append(BenchRow(group, f"T = {length}", "bytes", [], note=note))
            continue
        (value,) = sizes
        previous = rows[-1].median if rows else None
        growth = {} if not previous else {"exponent": round(math.log2(value / previous), 3)}
        reference = (rows[0].median if rows else None) or value
        rows.append(build_counted_row(group, f"T = {length}", "bytes", value, reference, **growth))
    return rows


def _build_cache_rows(config: Mapping[str, Any]) -> list[BenchRow]:
    group = "bytes cached per token, all layers, batch 1"
    rows: list[BenchRow] = []
    shape = [f"model.{key}={config['model'][key]}" for key in ("dim", "n_layers", "n_heads")]
    for heads in sorted(list_options("heads"), key="mha".__ne__):  # the baseline first
        model = build_model(compose_run_config([*OVERRIDES, *shape, f"heads={heads}"]), VOCAB_SIZE).eval()
        measured_bytes = count_live_cache_bytes(model, torch.zeros(1, 7, dtype=torch.long))
        size = model.state_size()
        assert measured_bytes == size, (
            f"{heads}: the cache holds {measured_bytes} bytes per token, but the formula gives {size}"
        )
        bytes_read = {
            f"read_at_{n_cached}": sum(count_step_bytes(model, n_cached).values())
            for n_cached in (1024, 32768)
        }
        reference = (rows[0].median if rows else None) or size
        rows.append(build_counted_row(group, f"heads={heads}", "bytes", size, reference, **bytes_read))
    return rows
