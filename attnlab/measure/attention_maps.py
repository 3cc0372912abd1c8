"""Attention maps of a fixed probe text, computed by the eager kernel, never during training steps."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnlab.attention.contracts import SharedTensors, Unsupported
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.conjunction import compute_visibility
from attnlab.model.transformer import Transformer


class LayerInput(NamedTuple):
    """A layer's inputs in a forward pass.

    `shared_tensors` is a copy of the tensors shared by the model and earlier layers.
    """

    layer: Attention
    x: Tensor
    shared_tensors: SharedTensors | None

    def copy_shared_tensors(self) -> SharedTensors | None:
        """Return a shallow copy for another pass of the layer, so that its writes are discarded."""
        return None if self.shared_tensors is None else {**self.shared_tensors}

    def attend(self, **options: Any) -> Any:
        """Run the layer's attention on the captured inputs."""
        return self.layer.attend(self.x, shared_tensors=self.copy_shared_tensors(), **options)


class AttentionMaps(NamedTuple):
    """Attention of one text.

    Attributes:
        layers: indices of the layers with attention.
        weights: [layer, head, T, T]; a row is a query.
        visible: [layer, T, T].
        kv_groups: [layer, head], the KV group of a head.
        kernel_difference: largest |eager - configured kernel| over the layers' outputs; None if that kernel
            does not run on this device.
    """

    layers: list[int]
    weights: Tensor
    visible: Tensor
    kv_groups: Tensor
    kernel_difference: float | None


def select_first_document(batch: Mapping[str, Tensor], row: int) -> Tensor:
    """Return the tokens [1, T] of the first document in a row of a batch, without padding."""
    tokens = batch["tokens"][row]
    length = batch["lengths"][row] if "lengths" in batch else len(tokens)
    documents = batch["documents"][row] if "documents" in batch else torch.zeros_like(tokens)
    return tokens[:length][documents[:length] == documents[0]][None]


def find_attention_layers(model: Transformer) -> dict[int, Attention]:
    """Return the layers with attention, by their index in the model."""
    return {n: block.mixer for n, block in enumerate(model.blocks) if isinstance(block.mixer, Attention)}


def validate_head_counts(model: Transformer) -> None:
    """Validate that all layers' maps fit one array.

    Raises:
        ValueError: layers have different numbers of heads.
    """
    counts = sorted({layer.heads.n_heads for layer in find_attention_layers(model).values()})
    if len(counts) > 1:
        raise ValueError(
            f"attention layers have {', '.join(map(str, counts[:-1]))} and {counts[-1]} heads, but maps "
            "and head "
            "scores need the same number in every layer: set one model.n_heads for all"
        )


@contextmanager
def _evaluation_mode(model: Transformer) -> Iterator[None]:
    """Switch the model to evaluation mode and restore its mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def capture_layer_inputs(model: Transformer, tokens_1T: Tensor) -> list[LayerInput]:
    """Return the inputs of each attention layer in a forward pass in evaluation mode."""
    layer_inputs: list[LayerInput] = []

    def record_input(layer: Attention, positional: tuple[Tensor], keywords: Mapping[str, Any]) -> None:
        shared = keywords.get("shared_tensors")
        layer_inputs.append(LayerInput(layer, positional[0], None if shared is None else {**shared}))

    hooks = [
        layer.register_forward_pre_hook(record_input, with_kwargs=True)
        for layer in find_attention_layers(model).values()
    ]
    try:
        with _evaluation_mode(model):
            model(tokens_1T)
    finally:
        for hook in hooks:
            hook.remove()
    return layer_inputs


@torch.no_grad()
def compute_attention_maps(model: Transformer, tokens_1T: Tensor) -> AttentionMaps | None:
    """Return the maps of all attention layers for one text, or None if there are none."""
    layers_by_index = find_attention_layers(model)
    layers: list[Any] = list(layers_by_index.values())
    if not layers:
        return None
    inputs = capture_layer_inputs(model, tokens_1T)
    with _evaluation_mode(model):
        reference = [layer_input.attend(kernel=eager, need=("weights",)) for layer_input in inputs]
        kernel_difference = _compute_kernel_difference(inputs, [output.out for output in reference])
    weights = torch.stack([output.weights[0].float().cpu() for output in reference])
    T = tokens_1T.shape[1]
    positions = torch.arange(T)[None]
    visible = torch.stack(  # to any head
        [
            compute_visibility(layer.mask, positions, positions, layer.heads.n_heads)[0].any(0)
            for layer in layers
        ]
    )
    groups = torch.stack(
        [
            torch.arange(layer.heads.n_heads) // (layer.heads.n_heads // layer.heads.n_kv_heads)
            for layer in layers
        ]
    )
    return AttentionMaps(list(layers_by_index), weights, visible, groups, kernel_difference)


def _compute_kernel_difference(inputs: list[LayerInput], outputs: list[Tensor]) -> float | None:
    try:
        configured = [layer_input.attend().out for layer_input in inputs]
    except Unsupported:
        return None
    return max((a - b).abs().max().item() for a, b in zip(configured, outputs, strict=True))


def encode_weights(weights: Tensor) -> np.ndarray:
    """Return uint8 codes of 255 * sqrt(a): the error is at most 0.004, smallest for small weights."""
    return (weights.clamp(0, 1).sqrt() * 255).round().to(torch.uint8).numpy()
