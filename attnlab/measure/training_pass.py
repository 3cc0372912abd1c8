"""Forward passes as in training, for measurements of a trained model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnlab.data.data_module import take_rows
from attnlab.data.task import Batch
from attnlab.model.build import WEIGHT_DTYPES


def list_device_passes(batch: Batch, micro_batches: int, devices: int) -> list[Batch]:
    """Return the parts of a batch that the first of several devices computes one after the other."""
    parts = micro_batches * devices
    return [take_rows(batch, part * devices, parts) for part in range(micro_batches)]


def make_autocast(config: Mapping[str, Any], device: str) -> torch.autocast:
    """Return the context in which `trainer.precision` computes on "cpu" or "cuda"."""
    return torch.autocast(device, torch.bfloat16, enabled=config["trainer"]["precision"] == "bf16-mixed")


def get_weight_dtype(config: Mapping[str, Any]) -> torch.dtype:
    """Return the dtype of weights under `trainer.precision`."""
    return WEIGHT_DTYPES.get(config["trainer"]["precision"], torch.float32)


def compute_training_loss(module: Any, batch: Batch) -> Tensor:
    """Return the mean cross-entropy in nats, plus the auxiliary losses of the model by their weights."""
    weights = module.model.auxiliary_weights
    if not weights:
        return module.losses(batch).mean()
    auxiliary: dict[str, Tensor] = {}
    loss = module.losses(batch, auxiliary).mean()
    return loss + sum(weights[name] * value for name, value in auxiliary.items())
