"""Sizes that no machine holds, found before memory is allocated for them."""

import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

MOST = 2**20  # of whatever a drawn task counts: symbols, pairs, distances
_COUNTED = ("length", "batch_size", "val_batch_size", "val_windows", "num_workers", "max_chars", "seed")
_COPIES = 4  # of each parameter in training: itself, its gradient, two moments
_BYTES = 64  # of a token, while examples are drawn: several numbers of 8 bytes each
CARDS = {  # GiB that torch sees of a card, where its name does not say
    "A10": 22, "A10G": 22, "B200": 178, "GeForce RTX 3090": 23.6, "GeForce RTX 4090": 23.6,
    "GeForce RTX 5090": 31.4, "H100 NVL": 93, "H100 PCIe": 79, "H200": 139.8, "L4": 22, "L40": 44.4,
    "L40S": 44.4, "RTX A6000": 47.5, "Tesla T4": 14.6,
}  # fmt: skip


def check_data(config: Mapping[str, Any]) -> None:
    """ValueError where a batch, or validation examples that are drawn at once, would not fit into memory."""
    data = config["data"]
    room = memory("cpu")
    for key, value in data.items():
        ours = str(data.get("_target_", "")).startswith("attnlab.") and key not in _COUNTED
        if ours and type(value) is int and value > MOST:
            raise ValueError(f"data.{key}={value}: more than {MOST} is more than a task can have")
    text = (data.get("tokenizer"), data.get("path"), data.get("name")) != (None, None, None)
    for key in ("batch_size", "val_batch_size", "val_windows"):
        rows = data.get(key)
        length = data.get("length")
        read = text and key != "batch_size"  # as many as the text has, and no more
        whole = type(rows) is int and type(length) is int and not read
        if whole and (takes := rows * length * _BYTES) > room:
            raise ValueError(
                f"data.{key}={rows}, data.length={length}: their tokens take {_gb(takes)}, and this machine "
                f"has {_gb(room)}"
            )


def check_model(config: Mapping[str, Any], model: nn.Module, vocabulary: int, device: str) -> int | None:
    """Bytes of memory of the device that is planned for; None where that is unknown, or nothing is trained.
    ValueError where weights, gradients and moments, or a batch's logits, would not fit into it. `model` lives
    on the meta device.
    """
    data = config["data"]
    room = room_of(config, device)
    if room is None or config.get("measurement"):
        return None
    where = elsewhere(config) or "here"
    takes = _COPIES * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if takes > room:
        raise ValueError(
            f"the model takes {_gb(takes)} in training, and there are {_gb(room)} ({where}): make model.dim, "
            "model.n_layers or model.ffn_width smaller, or set sweep.device where it trains elsewhere"
        )
    logits = 4 * data["batch_size"] * data["length"] * vocabulary
    if logits > room:
        raise ValueError(
            f"data.batch_size={data['batch_size']}, data.length={data['length']}: one batch's logits over "
            f"{vocabulary} words take {_gb(logits)}, and there are {_gb(room)} ({where})"
        )
    return room


def elsewhere(config: Mapping[str, Any]) -> str | None:
    """The card that runs are planned for where that is none of this machine's; else None."""
    return (config.get("sweep") or {}).get("device")


def room_of(config: Mapping[str, Any], device: str) -> int | None:
    """Bytes of the memory of the device that is planned for, in all; None of an unknown card."""
    card = elsewhere(config)
    if card is None:
        return memory(device)
    named = re.search(r"(\d+) ?GB", card)  # as in NVIDIA H100 80GB HBM3
    gib = int(named[1]) * 0.98 if named else CARDS.get(card.removeprefix("NVIDIA "))
    return None if gib is None else int(gib * 2**30)


def memory(device: str) -> int:
    """Bytes of the device's memory in all."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gb(count: int) -> str:
    return f"{count / 2**30:.3g} GB"
