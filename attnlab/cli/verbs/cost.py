"""`python -m attnlab cost CONFIG`: memory, FLOPs and shortest time of serving a model, from its config.json."""

import argparse
import json
import re
from pathlib import Path

from rich.console import Console
from rich.table import Table

from attnlab.errors import InvalidConfig
from attnlab.inference_cost.serving_cost import (
    Serving,
    ServingCost,
    compute_serving_cost,
    load_model_cost,
    parse_device,
    parse_number_format,
)

MAX_COUNT = 2**40  # of --length and --batch: beyond any model, and exact in a float


def main(options: argparse.Namespace) -> int:
    """Print the costs as a table, or as JSON."""
    serving = Serving(
        _parse_count("--length", options.length),
        _parse_count("--batch", options.batch),
        parse_number_format("--dtype", options.dtype),
        parse_number_format("--kv-dtype", options.kv_dtype or options.dtype),
        None if options.device is None else parse_device(options.device),
    )
    cost = compute_serving_cost(load_model_cost(Path(options.config)), serving)
    if options.json:
        print(json.dumps(cost.to_dict(), indent=1))
    else:
        _print_cost(cost, serving)
    return 0


def _print_cost(cost: ServingCost, serving: Serving) -> None:
    console = Console(width=None, highlight=False)
    table = Table(box=None, pad_edge=False)
    for title in ("layers", "window", "parameters", "KV bytes/token", "KV bytes", "FLOPs of a step"):
        table.add_column(title, justify="left" if title == "layers" else "right")
    for row in cost.layers:
        table.add_row(
            f"{row.count} {row.kind}", "" if row.window is None else f"{row.window:,}", f"{row.parameters:,}",
            f"{row.cache_bytes_per_token:,.0f}", _format_bytes(row.cache_bytes), f"{row.decode_flops:.4g}",
        )  # fmt: skip
    console.print(table)
    lines = [
        f"parameters           {cost.parameters:,}"
        + (f", {cost.active_parameters:,} of them for a token" * (cost.active_parameters < cost.parameters)),
        f"weights              {_format_bytes(cost.weight_bytes)}",
        f"KV cache             {cost.cache_bytes_per_token:,.0f} bytes per token; "
        f"{_format_bytes(cost.cache_bytes)} for {serving.batch:,} x {serving.length:,} tokens",
        f"prefill              {cost.prefill_flops:.4g} FLOPs",
        f"decoding step        {cost.decode_flops:.4g} FLOPs, {_format_bytes(cost.decode_bytes)} read, "
        f"{cost.intensity:.3g} FLOPs per byte",
    ]
    if cost.minimum_ms is not None:
        assert serving.device is not None
        lines += [
            f"shortest time        {cost.minimum_ms:.3g} ms per step, by {serving.device.source}",
            f"largest batch        {cost.largest_batch:,} sequences of this length beside the weights",
        ]
    console.print("\n".join(["", *lines]), soft_wrap=True)


def _format_bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"


def _parse_count(flag: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,13}", text) or not 1 <= int(text) <= MAX_COUNT:
        raise InvalidConfig(f"{flag} {text}: must be a whole number from 1 to {MAX_COUNT:,}")
    return int(text)
