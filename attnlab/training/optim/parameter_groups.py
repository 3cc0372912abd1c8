"""Parameter groups of one learning rate each, from the table of the model's parametrization."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from attnlab.model.parametrization import ScalingRow, map_scaling_rows

ParameterGroup = dict[str, Any]


def iterate_trained_parameters(model: nn.Module) -> Iterator[tuple[Tensor, ScalingRow]]:
    """Yield the trained parameters, each with its table row."""
    rows = map_scaling_rows(model)
    return ((weight, rows[name]) for name, weight in model.named_parameters() if weight.requires_grad)


def build_parameter_groups(
    lr_factors: Iterable[tuple[Tensor, float]], lr: float, weight_decay: float
) -> list[ParameterGroup]:
    """Group parameters by learning-rate factor and decay; the first group holds the first parameter.

    Only matrices decay. A step removes rate times decay, and that product is the same at every rate:
    otherwise wider matrices would decay more slowly than they learn (Wang 2024, 2405.13698; the `MuAdamW` of
    Yang 2022 does so too).

    Args:
        lr_factors: Parameters and their factors of `lr`.
    """
    parts: dict[tuple[bool, float], list[Tensor]] = {}
    for weight, rate in lr_factors:
        parts.setdefault((weight.ndim >= 2, rate), []).append(weight)
    return [
        {"params": weights, "lr": lr * rate, "weight_decay": weight_decay / rate if decays else 0.0}
        for (decays, rate), weights in parts.items()
    ]
