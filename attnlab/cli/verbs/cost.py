"""`python -m attnlab cost CONFIG`: memory, FLOPs and shortest time of serving a model, from its config."""

import argparse
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attnlab.cli.own_options import list_search_path
from attnlab.errors import InvalidConfig, describe_read_error
from attnlab.inference_cost.count_format import format_amount, format_byte_count
from attnlab.inference_cost.devices import DEVICES
from attnlab.inference_cost.hf_config import load_hf_cost
from attnlab.inference_cost.layer_costs import ModelCost
from attnlab.inference_cost.serving_cost import (
    CACHE_FORMATS,
    WEIGHT_BYTES,
    Serving,
    ServingCost,
    compute_serving_cost,
    require_choice,
)
from attnlab.store.atomic_files import read_user_text

MAX_COUNT = 2**40  # of --length and --batch: beyond any model, and exact in a float
DEFAULT_LENGTH = 8192


def main(options: argparse.Namespace) -> int:
    """Print the costs of all models as tables, or as JSON, and write the page."""
    serving = Serving(
        DEFAULT_LENGTH if options.length is None else _parse_count("--length", options.length),
        _parse_count("--batch", options.batch),
        require_choice("--dtype", options.dtype, WEIGHT_BYTES),
        require_choice("--kv-dtype", options.kv_dtype or options.dtype, CACHE_FORMATS),
        None if options.device is None else require_choice("--device", options.device, DEVICES),
    )
    if options.page is not None:
        _require_writable_page(Path(options.page))
    search_path = list_search_path(options.config_dir)
    models = load_models(options.words, options.vs, serving.dtype, search_path)
    limits = [model.max_length for model in models.values() if model.max_length is not None]
    if options.length is None and limits:
        serving = replace(serving, length=min(DEFAULT_LENGTH, min(limits) - 1))
    costs = {name: compute_serving_cost(model, serving) for name, model in models.items()}
    if options.json:
        rows = [{"name": name, **cost.to_dict()} for name, cost in costs.items()]
        print(json.dumps({"serving": asdict(serving), "models": rows}, indent=1))
    else:
        _print_costs(costs, serving)
    if options.page is not None:
        from attnlab.report.pages.cost_page import write_cost_page

        write_cost_page(Path(options.page), models, serving)
        if not options.json:
            print(f"\npage: {options.page}")
    return 0


def _require_writable_page(page: Path) -> None:
    """Raise InvalidConfig unless `page` is a new file in an existing folder or an earlier page."""
    if not page.parent.is_dir() or page.is_dir():
        raise InvalidConfig(f"--page {page}: give a file in an existing folder")
    if page.exists():
        from attnlab.report.pages.cost_page import TITLE

        try:
            is_page = TITLE in read_user_text(page, errors="replace")
        except OSError as error:
            raise InvalidConfig(f"--page {page}: {describe_read_error(error)}: give another file") from error
        if not is_page:
            raise InvalidConfig(f"--page {page} exists and is no page of costs: give another file")


def load_models(
    words: Sequence[str], alternatives: Sequence[str], dtype: str, search_path: Sequence[str] = ()
) -> dict[str, ModelCost]:
    """The models of CONFIG and of every --vs, by their words.

    `search_path` holds the override that adds a folder of config groups.

    Raises:
        InvalidConfig: A word is neither a path nor an override, a key has two values, an alternative
            changes nothing, or `search_path` is given for a path.
    """
    if not words:
        raise InvalidConfig("cost needs a config.json, a run directory or overrides, as in cost heads=gqa")
    if search_path and _is_path(words):
        raise InvalidConfig(f"--config-dir has no effect on {words[0]}, which selects no options: remove it")
    _require_unique_keys(words)
    base = shlex.join(words)
    models = {base: _load_model(words, dtype, search_path)}
    for alternative in alternatives:
        try:
            changes = shlex.split(alternative)
        except ValueError as error:
            raise InvalidConfig(f"--vs {alternative}: {error}") from error
        if alternative in models:
            raise InvalidConfig(f"--vs {alternative}: is CONFIG or another --vs")
        if not changes:
            raise InvalidConfig("--vs is empty: give a path, or KEY=VALUE words")
        _require_unique_keys(changes)
        if _is_path(changes):
            if not Path(changes[0]).exists():
                raise InvalidConfig(f"--vs {alternative}: not found: give a path, or KEY=VALUE words")
            models[alternative] = _load_model(changes, dtype, search_path)
            continue
        if _is_path(words):
            if _is_run(Path(words[0])):
                raise InvalidConfig(
                    f"--vs {alternative}: CONFIG is a run, so give another run or config.json"
                )
            models[alternative] = load_hf_cost(Path(words[0]), changes)
        else:
            models[alternative] = _load_model(_replace_words(words, changes), dtype, search_path)
        if models[alternative] == models[base]:
            raise InvalidConfig(f"--vs {alternative}: changes no cost of {base}")
    return models


def _require_unique_keys(words: Sequence[str]) -> None:
    word_by_key = dict[str, str]()
    for word in words:
        other = word_by_key.setdefault(key := _get_key(word), word)
        if other is not word:
            raise InvalidConfig(f"{key} is set twice, {other} and {word}: remove one")


def _get_key(word: str) -> str:
    return word.partition("=")[0].lstrip("+")


def _replace_words(words: Sequence[str], changes: Sequence[str]) -> list[str]:
    keys = set(map(_get_key, changes))
    return [*(word for word in words if _get_key(word) not in keys), *changes]


def _is_path(words: Sequence[str]) -> bool:
    return len(words) == 1 and ("=" not in words[0] or Path(words[0]).exists())


def _is_run(path: Path) -> bool:
    return (path / "spec.json").is_file()


def _load_model(words: Sequence[str], dtype: str, search_path: Sequence[str]) -> ModelCost:
    if _is_path(words):
        path = Path(words[0])
        return _load_run_cost(path, dtype) if _is_run(path) else load_hf_cost(path)
    for word in words:
        if "=" not in word:
            raise InvalidConfig(f"{word}: CONFIG is one path, or KEY=VALUE words")
    return _compose_cost([*search_path, *words], dtype)


def _load_run_cost(folder: Path, dtype: str) -> ModelCost:
    from attnlab.store.guards import trust

    spec = trust.load_trusted_run(folder)
    if "vocab_size" not in spec.estimate.data:
        raise InvalidConfig(f"{folder}: the run has no vocabulary: choose a training run")
    return _count_attnlab_model(spec.config, spec.estimate.data["vocab_size"], dtype)


def _compose_cost(words: Sequence[str], dtype: str) -> ModelCost:
    from attnlab.cli.run_config import compose_run_config
    from attnlab.model.build import instantiate_config
    from attnlab.training.targets import validate_targets
    from attnlab.training.validation.build_errors import convert_build_errors

    config = compose_run_config(words)
    validate_targets(config)
    with convert_build_errors("data"):
        vocab_size = instantiate_config(config["data"]).task.vocab_size
    return _count_attnlab_model(config, vocab_size, dtype)


def _count_attnlab_model(config: Mapping[str, Any], vocab_size: int, dtype: str) -> ModelCost:
    import torch

    from attnlab.measure.module_costs import count_module_cost
    from attnlab.training.validation.build_errors import convert_build_errors

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    with convert_build_errors("model"):
        return count_module_cost(config, vocab_size, dtypes[dtype])


def _print_costs(costs: Mapping[str, ServingCost], serving: Serving) -> None:
    console = Console(highlight=False, markup=False)
    for name, cost in costs.items():
        if len(costs) > 1:
            console.print(f"{name}:", soft_wrap=True)
        _print_cost(console, cost, serving)
        if len(costs) > 1:
            console.print()
    if len(costs) > 1:
        console.print(_build_comparison(costs))


def _print_cost(console: Console, cost: ServingCost, serving: Serving) -> None:
    table = _make_table(
        ("layers", "window", "params", "cache/token", "cache", "read/step", "FLOPs/step", "FLOPs/B")
    )
    for row in cost.layers:
        table.add_row(
            f"{row.count} {row.kind}", "" if row.window is None else f"{row.window:,}",
            format_amount(row.parameters), format_byte_count(row.cache_bytes_per_token),
            format_byte_count(row.cache_bytes), format_byte_count(row.decode_bytes),
            format_amount(row.decode_flops), f"{row.intensity:.3g}",
        )  # fmt: skip
    console.print(table)
    active = f", {cost.active_parameters:,} of them for a token" * (cost.active_parameters < cost.parameters)
    state = f" and {format_byte_count(cost.state_bytes)} per sequence" * (cost.state_bytes > 0)
    lines = [
        f"parameters       {cost.parameters:,}{active}",
        f"weights          {format_byte_count(cost.weight_bytes)} in {serving.dtype}",
        f"cache            {cost.cache_bytes_per_token:,} bytes per token{state} in {serving.kv_dtype}; "
        f"{format_byte_count(cost.cache_bytes)} for {serving.batch:,} x {serving.length:,} tokens",
        f"prefill          {cost.prefill_flops:.4g} FLOPs",
        f"decoding step    {cost.decode_flops:.4g} FLOPs, {format_byte_count(cost.decode_bytes)} read, "
        f"{cost.intensity:.3g} FLOPs per byte",
    ]
    if cost.quantization is not None:
        lines.append(
            f"quantization     the checkpoint's {cost.quantization} weights are counted in {serving.dtype}: "
            "they need less memory and time"
        )
    if cost.transformers_repeats > 1:
        lines.append(
            f"transformers     caches keys and values once per query head: {cost.transformers_repeats} times "
            "these bytes"
        )
    if cost.minimum_ms is not None and serving.device is not None:
        lines.append(f"shortest time    {cost.minimum_ms:.3g} ms per step: {DEVICES[serving.device].source}")
        lines.append(f"largest batch    {describe_largest_batch(cost)}")
    console.print("\n".join(["", *lines]), soft_wrap=True)


def describe_largest_batch(cost: ServingCost) -> str:
    """The largest batch of a cost for a device, as text."""
    if cost.largest_batch is None:
        return "not limited by memory: nothing is cached"
    if cost.largest_batch == 0:
        return "0: the weights do not fit, or leave no room for a sequence of this length"
    return f"{cost.largest_batch:,} of this length beside the weights"


def _make_table(titles: Sequence[str]) -> Table:
    """A table whose first column is text, the only one that wraps."""
    table = Table(box=None, pad_edge=False)
    table.add_column(titles[0], overflow="fold")
    for title in titles[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _build_comparison(costs: Mapping[str, ServingCost]) -> Table:
    has_device = any(cost.minimum_ms is not None for cost in costs.values())
    titles = ["model", "cache/token", "cache", "read/step"]
    table = _make_table([*titles, *(["ms/step", "max batch"] if has_device else ["FLOPs/step"])])
    for name, cost in costs.items():
        cells = [
            name, format_byte_count(cost.cache_bytes_per_token), format_byte_count(cost.cache_bytes),
            format_byte_count(cost.decode_bytes),
        ]  # fmt: skip
        if has_device:
            largest = "-" if cost.largest_batch is None else f"{cost.largest_batch:,}"
            cells += [f"{cost.minimum_ms:.3g}", largest]
        else:
            cells.append(format_amount(cost.decode_flops))
        table.add_row(*cells)
    return table


def _parse_count(flag: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,13}", text) or not 1 <= int(text) <= MAX_COUNT:
        raise InvalidConfig(f"{flag} {text}: must be a whole number from 1 to {MAX_COUNT:,}")
    return int(text)
