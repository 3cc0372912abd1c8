"""Rejection of weights with NaN or infinite values, before a model computes with them."""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from attnlab.errors import InvalidConfig


def require_finite(tensors: Iterable[tuple[str, Tensor]], source: Path | str) -> None:
    """Raise InvalidConfig for the first (name, tensor) with such values; `source` begins the message."""
    for name, tensor in tensors:
        if not torch.isfinite(tensor).all():
            count = int((~torch.isfinite(tensor)).sum())
            raise InvalidConfig(
                f"{source}: {name} has {count:,} NaN or infinite values of {tensor.numel():,}: the weights "
                "are damaged, or training diverged; use another checkpoint"
            )


def require_finite_file(path: Path) -> None:
    """Apply `require_finite` to a safetensors file, one tensor at a time.

    Raises:
        InvalidConfig: One line with the file, if a tensor has such values or the file cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            require_finite(((name, file.get_tensor(name)) for name in names), path)
    except (SafetensorError, OSError) as error:
        raise InvalidConfig(
            f"{path} cannot be read as safetensors: {' '.join(str(error).split())}"
        ) from error
