"""Sizes that no machine holds, found before memory is allocated for them."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

MOST = 2**20  # of whatever a drawn task counts: symbols, pairs, distances
_COUNTED = ("length", "batch_size", "val_batch_size", "val_windows", "num_workers", "max_chars", "seed")
_COPIES = 4  # of each parameter in training: itself, its gradient, two moments
_BYTES = 64  # of a token, while examples are drawn: several numbers of 8 bytes each


def check_data(config: Mapping[str, Any]) -> None:
    """ValueError where a batch, or validation examples that are drawn at once, would not fit into memory."""
    data, room = config["data"], memory("cpu")
    for key, value in data.items():
        ours = str(data.get("_target_", "")).startswith("attnlab.") and key not in _COUNTED
        if ours and type(value) is int and value > MOST:
            raise ValueError(f"data.{key}={value}: more than {MOST} is more than a task can have")
    text = (data.get("tokenizer"), data.get("path"), data.get("name")) != (None, None, None)
    for key in ("batch_size", "val_batch_size", "val_windows"):
        rows, length = data.get(key), data.get("length")
        read = text and key != "batch_size"  # as many as the text has, and no more
        whole = type(rows) is int and type(length) is int and not read
        if whole and (takes := rows * length * _BYTES) > room:
            raise ValueError(
                f"data.{key}={rows}, data.length={length}: their tokens take {_gb(takes)}, and this machine "
                f"has {_gb(room)}"
            )


def check_model(config: Mapping[str, Any], model: nn.Module, vocabulary: int, device: str) -> None:
    """ValueError where weights, gradients and moments, or a batch's logits, would not fit into the memory of
    this device. `model` lives on the meta device. What trains elsewhere, or not at all, is not asked.
    """
    if (config.get("sweep") or {}).get("device") or config.get("measurement"):
        return
    data, room = config["data"], memory(device)
    takes = _COPIES * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if takes > room:
        raise ValueError(
            f"the model takes {_gb(takes)} in training, and there are {_gb(room)} here: make model.dim, "
            "model.n_layers or model.ffn_width smaller, or set sweep.device where it trains elsewhere"
        )
    logits = 4 * data["batch_size"] * data["length"] * vocabulary
    if logits > room:
        raise ValueError(
            f"data.batch_size={data['batch_size']}, data.length={data['length']}: one batch's logits over "
            f"{vocabulary} words take {_gb(logits)}, and there are {_gb(room)} here"
        )


def memory(device: str) -> int:
    """Bytes of the device's memory in all."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gb(count: int) -> str:
    return f"{count / 2**30:.3g} GB"
