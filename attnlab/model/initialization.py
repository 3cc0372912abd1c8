"""Initial values of all parameters of a model, each drawn from its own named generator."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.heads.projections import FusedLinear, ResidualProjection
from attnlab.model.parametrization import map_scaling_rows
from attnlab.store.seeds import derive_seed


def make_named_generator(seed: int, name: str) -> torch.Generator:
    """Make a CPU generator whose state depends on (seed, name) alone."""
    return torch.Generator().manual_seed(derive_seed(seed, name))


@torch.no_grad()
def initialize_parameters(model: Any, seed: int, std: float, qk_gain: float | None) -> None:
    """Initialize every weight; s is the initial scale of the model's parametrization, 1 for `standard`.

    | parameter                         | initial value                                  |
    |-----------------------------------|------------------------------------------------|
    | q, k slices of a projection       | N(0, qk_gain / sqrt(fan in)), or N(0, s * std) |
    | unit slices of a projection       | N(0, 1 / sqrt(fan in))                         |
    | projections back to the residual  | N(0, s * std / sqrt(2 * layers))               |
    | every other matrix and embedding  | N(0, s * std)                                  |
    | biases                            | 0                                              |
    | LSTM and GRU weights              | U(-1, 1) / sqrt(width), torch's own            |
    | everything else (gains, logits)   | s times the module's own value                 |
    """
    initialized_ids = set()
    scales = {name: row.init for name, row in map_scaling_rows(model).items()}
    if next(model.parameters()).is_meta:
        return
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | nn.Embedding | nn.RNNBase):
            for part, weight in module.named_parameters(recurse=False):
                weight.mul_(scales[f"{name}.{part}".lstrip(".")])
        if isinstance(module, nn.RNNBase):
            bound = 1 / math.sqrt(module.hidden_size)
            for part, weight in module.named_parameters():
                generator = make_named_generator(seed, f"{name}.{part}")
                weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))
        if not isinstance(module, nn.Linear | nn.Embedding) or id(module.weight) in initialized_ids:
            continue
        initialized_ids.add(id(module.weight))
        spread = std / math.sqrt(2 * len(model.blocks)) if isinstance(module, ResidualProjection) else std
        spread *= scales[f"{name}.weight"]
        all_rows = {"": module.weight.shape[0]}
        parts, unit = (module.parts, module.unit_parts) if isinstance(module, FusedLinear) else (all_rows, ())
        slices = module.weight.split(tuple(parts.values()))
        for part, weight in zip(parts, slices, strict=True):
            gain = qk_gain if part in ("q", "k", "qkv") else None
            gain = 1.0 if part in unit else gain
            part_std = spread if gain is None else gain / math.sqrt(weight.shape[1])
            initial_weight = torch.empty(weight.shape).normal_(
                0.0, part_std, generator=make_named_generator(seed, f"{name}.{part}")
            )
            weight.copy_(initial_weight)
        bias: Tensor | None = getattr(module, "bias", None)
        if bias is not None:
            bias.zero_()
