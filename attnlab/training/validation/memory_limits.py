"""Rejection of sizes beyond memory, before the memory is allocated."""

import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

MAX_TASK_VALUE = 2**20  # of any count of a synthetic task: symbols, pairs, distances
_UNLIMITED_KEYS = (
    "length",
    "batch_size",
    "val_batch_size",
    "val_windows",
    "num_workers",
    "max_chars",
    "seed",
)
_COPIES_PER_PARAMETER = 4  # weight, gradient, two moments
_BYTES_PER_TOKEN = 64  # while examples are generated: several 8-byte numbers per token
GPU_MEMORY_GIB = {  # memory visible to torch, for GPUs whose names lack it
    "A10": 22, "A10G": 22, "B200": 178, "GeForce RTX 3090": 23.6, "GeForce RTX 4090": 23.6,
    "GeForce RTX 5090": 31.4, "H100 NVL": 93, "H100 PCIe": 79, "H200": 139.8, "L4": 22, "L40": 44.4,
    "L40S": 44.4, "RTX A6000": 47.5, "Tesla T4": 14.6,
}  # fmt: skip


def validate_data_memory(config: Mapping[str, Any]) -> None:
    """Check the memory of a batch and of validation examples generated at once."""
    data = config["data"]
    available = get_device_memory("cpu")
    for key, value in data.items():
        is_task_count = str(data.get("_target_", "")).startswith("attnlab.") and key not in _UNLIMITED_KEYS
        if is_task_count and type(value) is int and value > MAX_TASK_VALUE:
            raise ValueError(f"data.{key} must be at most {MAX_TASK_VALUE}, got {value}")
    is_corpus = (data.get("tokenizer"), data.get("path"), data.get("name")) != (None, None, None)
    for key in ("batch_size", "val_batch_size", "val_windows"):
        rows = data.get(key)
        length = data.get("length")
        is_limited = is_corpus and key != "batch_size"  # limited by the corpus
        is_checked = type(rows) is int and type(length) is int and not is_limited
        if is_checked and (required := rows * length * _BYTES_PER_TOKEN) > available:
            raise ValueError(
                f"data.{key}={rows} windows of data.length={length} take {_format_gigabytes(required)}, "
                f"but this machine has {_format_gigabytes(available)}: lower one of them"
            )


def validate_model_memory(
    config: Mapping[str, Any], model: nn.Module, vocab_size: int, device: str
) -> int | None:
    """Return the memory of the planned device in bytes; None if unknown, or nothing is trained.

    `model` lives on the meta device.

    Raises:
        ValueError: Weights, gradients and moments, or a batch's logits, would not fit into it.
    """
    data = config["data"]
    available = get_planned_memory(config, device)
    if available is None or config.get("measurement"):
        return None
    location = get_planned_device(config) or "this machine"
    required = _COPIES_PER_PARAMETER * sum(
        parameter.numel() * parameter.element_size() for parameter in model.parameters()
    )
    if required > available:
        raise ValueError(
            f"training the model takes {_format_gigabytes(required)}, but the memory is "
            f"{_format_gigabytes(available)} ({location}): lower model.dim, model.n_layers or "
            "model.ffn_width, or set sweep.device to the GPU that it trains on"
        )
    logits = 4 * data["batch_size"] * data["length"] * vocab_size
    if logits > available:
        raise ValueError(
            f"data.batch_size={data['batch_size']}, data.length={data['length']}: the logits of one "
            "batch over "
            f"{vocab_size} tokens take {_format_gigabytes(logits)}, but the memory is "
            f"{_format_gigabytes(available)} ({location}): lower data.batch_size or data.length"
        )
    return available


def get_planned_device(config: Mapping[str, Any]) -> str | None:
    """Return the GPU that runs are planned for, if it is not of this machine; else None."""
    return (config.get("sweep") or {}).get("device")


def get_planned_memory(config: Mapping[str, Any], device: str) -> int | None:
    """Return the total memory of the planned device in bytes; None for an unknown GPU."""
    gpu = get_planned_device(config)
    if gpu is None:
        return get_device_memory(device)
    match = re.search(r"(\d+) ?GB", gpu)  # as in NVIDIA H100 80GB HBM3
    gib = int(match[1]) * 0.98 if match else GPU_MEMORY_GIB.get(gpu.removeprefix("NVIDIA "))
    return None if gib is None else int(gib * 2**30)


def get_device_memory(device: str) -> int:
    """Return the total memory of a device in bytes."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _format_gigabytes(count: int) -> str:
    return f"{count / 2**30:.3g} GB"
