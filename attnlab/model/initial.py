"""The initial values of all parameters of a model, each from a generator of its own."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.heads.projections import Fused, IntoResidual
from attnlab.model.parametrization import rows
from attnlab.store.seeds import seed_of


def named_generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator that depends on (seed, name) alone."""
    return torch.Generator().manual_seed(seed_of(seed, name))


@torch.no_grad()
def initialise(model: Any, seed: int, std: float, qk_gain: float | None) -> None:
    """Draws every weight anew; s is the initial scale of the model's parametrization, 1 in the standard one.

    | parameter                         | initial value                                  |
    |-----------------------------------|------------------------------------------------|
    | q, k slices of a projection       | N(0, qk_gain / sqrt(fan in)), or N(0, s * std) |
    | unit slices of a projection       | N(0, 1 / sqrt(fan in))                         |
    | projections back to the residual  | N(0, s * std / sqrt(2 * layers))               |
    | every other matrix and embedding  | N(0, s * std)                                  |
    | biases                            | 0                                              |
    | LSTM and GRU weights              | U(-1, 1) / sqrt(width), torch's own            |
    | everything else (gains, logits)   | s times what their module made                 |
    """
    drawn = set()
    scales = {name: row.init for name, row in rows(model).items()}
    if next(model.parameters()).is_meta:
        return
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | nn.Embedding | nn.RNNBase):
            for part, weight in module.named_parameters(recurse=False):
                weight.mul_(scales[f"{name}.{part}".lstrip(".")])
        if isinstance(module, nn.RNNBase):
            bound = 1 / math.sqrt(module.hidden_size)
            for part, weight in module.named_parameters():
                generator = named_generator(seed, f"{name}.{part}")
                weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))
        if not isinstance(module, nn.Linear | nn.Embedding) or id(module.weight) in drawn:
            continue
        drawn.add(id(module.weight))
        spread = std / math.sqrt(2 * len(model.blocks)) if isinstance(module, IntoResidual) else std
        spread *= scales[f"{name}.weight"]
        whole = {"": module.weight.shape[0]}
        parts, unit = (module.parts, module.unit) if isinstance(module, Fused) else (whole, ())
        slices = module.weight.split(tuple(parts.values()))
        for part, weight in zip(parts, slices, strict=True):
            gain = qk_gain if part in ("q", "k", "qkv") else None
            gain = 1.0 if part in unit else gain
            part_std = spread if gain is None else gain / math.sqrt(weight.shape[1])
            fresh = torch.empty(weight.shape).normal_(
                0.0, part_std, generator=named_generator(seed, f"{name}.{part}")
            )
            weight.copy_(fresh)
        bias: Tensor | None = getattr(module, "bias", None)
        if bias is not None:
            bias.zero_()
