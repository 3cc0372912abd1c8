"""Attention maps of a fixed probe text, taken by running it through the eager kernel, never during training
steps.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnlab.attention.contracts import Channel, Unsupported
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.combine import seen
from attnlab.model.transformer import Transformer


class Given(NamedTuple):
    """What a pass gives a layer: its input, and a copy of what the model and the layers before it share."""

    layer: Attention
    x: Tensor
    shared: Channel | None

    def channel(self) -> Channel | None:
        """For one more look at the layer: what that publishes is thrown away."""
        return None if self.shared is None else {**self.shared}

    def attend(self, **how: Any) -> Any:
        """As in that pass."""
        return self.layer.attend(self.x, channel=self.channel(), **how)


class Maps(NamedTuple):
    """Of the `layers` that have attention, by their numbers in the model: weights [layer, head, T, T] (row =
    query); visible [layer, T, T]; groups [layer, head]: the KV group of a head; difference: largest |eager -
    configured kernel| over the layers' outputs, None where that kernel cannot run here.
    """

    layers: list[int]
    weights: Tensor
    visible: Tensor
    groups: Tensor
    difference: float | None


def attention_layers(model: Transformer) -> dict[int, Attention]:
    """The layers that have attention, by their numbers."""
    return {n: block.mixer for n, block in enumerate(model.blocks) if isinstance(block.mixer, Attention)}


def check(model: Transformer) -> None:
    """ValueError for layers whose maps are no one array."""
    counts = sorted({layer.heads.n_heads for layer in attention_layers(model).values()})
    if len(counts) > 1:
        raise ValueError(
            f"layers of attention with {', '.join(map(str, counts[:-1]))} and {counts[-1]} heads: maps and "
            "scores of heads are taken of layers that have as many; set one model.n_heads for all"
        )


@contextmanager
def _evaluating(model: Transformer) -> Iterator[None]:
    """In evaluation, and afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def given(model: Transformer, tokens_1T: Tensor) -> list[Given]:
    """What a pass in evaluation gives each layer of attention."""
    found: list[Given] = []

    def keep(layer: Attention, positional: tuple[Tensor], named: Mapping[str, Any]) -> None:
        shared = named.get("channel")
        found.append(Given(layer, positional[0], None if shared is None else {**shared}))

    hooks = [
        layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in attention_layers(model).values()
    ]
    try:
        with _evaluating(model):
            model(tokens_1T)
    finally:
        for hook in hooks:
            hook.remove()
    return found


@torch.no_grad()
def attention_maps(model: Transformer, tokens_1T: Tensor) -> Maps | None:
    """Maps of all attention layers for one text; None where there is none."""
    found = attention_layers(model)
    layers: list[Any] = list(found.values())
    if not layers:
        return None
    inputs = given(model, tokens_1T)
    with _evaluating(model):
        reference = [one.attend(kernel=eager, need=("weights",)) for one in inputs]
        difference = _difference(inputs, [attended.out for attended in reference])
    weights = torch.stack([attended.weights[0].float().cpu() for attended in reference])
    T = tokens_1T.shape[1]
    where = torch.arange(T)[None]
    visible = torch.stack(  # by any head
        [seen(layer.mask, where, where, layer.heads.n_heads)[0].any(0) for layer in layers]
    )
    groups = torch.stack(
        [
            torch.arange(layer.heads.n_heads) // (layer.heads.n_heads // layer.heads.n_kv_heads)
            for layer in layers
        ]
    )
    return Maps(list(found), weights, visible, groups, difference)


def _difference(inputs: list[Given], outputs: list[Tensor]) -> float | None:
    try:
        own = [one.attend().out for one in inputs]
    except Unsupported:
        return None
    return max((a - b).abs().max().item() for a, b in zip(own, outputs, strict=True))


def encode(weights: Tensor) -> np.ndarray:
    """uint8 of 255 * sqrt(a): an error of at most 0.004, smallest where weights are small."""
    return (weights.clamp(0, 1).sqrt() * 255).round().to(torch.uint8).numpy()
