"""Parameters in groups of one rate, by the table of the model's parametrization."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from attnlab.model.parametrization import Row, rows

Group = dict[str, Any]


def learned(model: nn.Module) -> Iterator[tuple[Tensor, Row]]:
    """The parameters that are trained, each with its row."""
    found = rows(model)
    return ((weight, found[name]) for name, weight in model.named_parameters() if weight.requires_grad)


def groups(rates: Iterable[tuple[Tensor, float]], lr: float, weight_decay: float) -> list[Group]:
    """Groups for an optimiser, of parameters and their share of `lr`; the first holds the first parameter.

    Decay falls on matrices only. A step takes off rate times decay, and that product is the same at every
    rate: else wider matrices would be forgotten more slowly than they are learned (Wang 2024, 2405.13698;
    the `MuAdamW` of Yang 2022 does so too).
    """
    parts: dict[tuple[bool, float], list[Tensor]] = {}
    for weight, rate in rates:
        parts.setdefault((weight.ndim >= 2, rate), []).append(weight)
    return [
        {"params": weights, "lr": lr * rate, "weight_decay": weight_decay / rate if decays else 0.0}
        for (decays, rate), weights in parts.items()
    ]
