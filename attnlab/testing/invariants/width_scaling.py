"""Invariant of width scaling, for models whose parametrization scales with the width.

It is the coordinate check of Yang et al. 2022 (2203.03466, appendix D.1), on every activation at once.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.contracts import AttentionInputs, AttentionOutput, Kernel, Unsupported
from attnlab.attention.layer import Attention
from attnlab.model.parametrization import iterate_parameter_kinds, map_scaling_rows
from attnlab.model.transformer import Transformer
from attnlab.testing.invariants.variant import VOCABULARY, Variant, make_named_generator

MAX_SLOPE = 0.1  # slope of log size over log width
MIN_SLOPE = -0.15  # of changes; normalized narrow heads change a little more than wide ones
WIDTH_FACTORS = (2, 8)
MEASURED_STEPS = (1, 3)
SEEDS = (0, 1)
LEARNING_RATE = 1e-3
WIDTH_KEYS = ("dim", "width", "head_dim", "rank", "rope_dim")
HEAD_COUNT_KEYS = ("dim", "width", "n_heads", "n_kv_heads")
# 0 at initialization, in the limit
MAY_SHRINK = re.compile(r"(scores|score_map|score_modules\.\d+|^head|^logits)$")

ActivationKey = tuple[str, int, str]  # "size" or "change", number of steps, name of the activation
MakeOptimizer = Callable[[Transformer], torch.optim.Optimizer]


def has_parametrization(variant: Variant) -> bool:
    """Whether the config sets a parametrization."""
    return variant.parametrization is not None


def check_activations_are_width_invariant(variant: Variant) -> None:
    """25. Under a parametrization that scales with the width, no activation grows with it, at initialization
    or in training, and training steps change all activations equally; readout and scores may shrink at
    initialization.
    """
    require_flat_slopes(fit_width_slopes(functools.partial(build_wider_model, variant)))


def require_flat_slopes(slopes: Mapping[ActivationKey, float], min_slope: float = MIN_SLOPE) -> None:
    """Check that no activation and no change of one depends on the width.

    Raises:
        AssertionError: A slope is too steep; the message names the first.
    """
    for (quantity, step, name), slope in slopes.items():
        message = f"after {step} steps the {quantity} of {name} scales as width^{slope:.2f}"
        assert slope <= MAX_SLOPE, message
        if quantity == "change" and not MAY_SHRINK.search(name):
            assert slope >= min_slope, message


def build_wider_model(variant: Variant, factor: int, seed: int, n_layers: int = 1) -> Transformer:
    """Build the variant's initialized model, `factor` times as wide.

    Every width of the config is multiplied. If the parametrization assumes heads of a fixed width, the number
    of heads is multiplied instead.

    Raises:
        Unsupported: The wider config does not build.
    """
    scaled_keys = (
        WIDTH_KEYS if (variant.parametrization or {}).get("base_head_dim") is None else HEAD_COUNT_KEYS
    )
    wider_variant = dataclasses.replace(
        variant,
        attention=_scale_config_values(variant.attention, scaled_keys, factor),
        positions=_scale_config_values(variant.positions, scaled_keys, factor),
    )
    try:
        model = wider_variant.make_model(n_layers=n_layers, seed=seed, ffn_width=2 * variant.dim * factor)
    except ValueError as error:
        raise Unsupported(
            f"{', '.join(scaled_keys)} multiplied by {factor} cannot be built: {error}"
        ) from error
    return model.float().train()


def fit_width_slopes(
    build: Callable[[int, int], Transformer],
    factors: Sequence[int] = WIDTH_FACTORS,
    steps: Sequence[int] = MEASURED_STEPS,
    seeds: Sequence[int] = SEEDS,
    optimizer: MakeOptimizer | None = None,
) -> dict[ActivationKey, float]:
    """Fit the slope of log root mean square over log width, by activation.

    Each model trains on one batch of 4 x 16 tokens; logarithms are averaged over `seeds`. Activations that
    are zero in some model have no logarithm and are left out.

    Args:
        build: `build(factor, seed)` makes a model.
        factors: Multiples of the base width.
        steps: Numbers of training steps after which activations are measured.
        seeds: Seeds of the initialization and the batch.
        optimizer: Makes the optimizer; AdamW at the rates of the scaling table by default.
    """
    logs: dict[ActivationKey, dict[int, list[float]]] = {}
    for factor in factors:
        for seed in seeds:
            for key, size in _measure_activation_sizes(
                build(factor, seed), steps, seed, optimizer or _make_adamw
            ).items():
                logs.setdefault(key, {}).setdefault(factor, []).append(math.log2(size) if size else -math.inf)
    widths = torch.tensor([math.log2(factor) for factor in factors], dtype=torch.float64)
    centered = widths - widths.mean()
    slopes = {}
    for key, logs_by_factor in logs.items():
        means = torch.tensor([sum(logs_by_factor[f]) / len(seeds) for f in factors], dtype=torch.float64)
        if means.isfinite().all():
            slopes[key] = float((centered * means).sum() / centered.square().sum())
    return slopes


def _measure_activation_sizes(
    model: Transformer, steps: Sequence[int], seed: int, make_optimizer: MakeOptimizer
) -> dict[ActivationKey, float]:
    tokens = torch.randint(VOCABULARY, (4, 16), generator=make_named_generator(seed, "width"))
    initial = _record_activations(model, tokens)
    sizes = {("size", 0, name): _compute_rms(value) for name, value in initial.items()}
    optimizer = make_optimizer(model)
    parameters = dict(model.named_parameters())
    for step in range(1, max(steps) + 1):
        logits = model(tokens)[:, :-1]
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        if step in steps:
            for name, value in _record_activations(model, tokens).items():
                if name in parameters and step > 1:
                    continue  # parameters of few entries, whose gradients may change sign
                sizes["size", step, name] = _compute_rms(value)
                sizes["change", step, name] = _compute_rms(value - initial[name])
    return sizes


def _make_adamw(model: Transformer) -> torch.optim.Optimizer:
    """Make an AdamW optimizer at the learning rates of the scaling table."""
    rates = map_scaling_rows(model)
    groups = [
        {"params": [p], "lr": LEARNING_RATE * rates[name].adam_lr} for name, p in model.named_parameters()
    ]
    return torch.optim.AdamW(groups, weight_decay=0.0, eps=1e-16)


@torch.no_grad()
def _record_activations(model: Transformer, tokens: Tensor) -> dict[str, Tensor]:
    """Record activations by name.

    They are the output of every module; the queries, keys, values and scores of attention; vector parameters;
    and the products of factor parameters.
    """
    activations: dict[str, Tensor] = {}

    def make_hook(name: str) -> Callable[..., None]:
        def record_output(module: nn.Module, args: Any, out: Any) -> None:
            tensor = out[0] if isinstance(out, tuple) else out
            if isinstance(tensor, Tensor):
                activations[name or "logits"] = tensor

        return record_output

    hooks = [module.register_forward_hook(make_hook(name)) for name, module in model.named_modules()]
    with _record_kernel_inputs(model, activations):
        model(tokens)
    for handle in hooks:
        handle.remove()
    kinds = dict(iterate_parameter_kinds(model))
    for name, parameter in model.named_parameters():
        if kinds[name] == "vector":
            activations[name] = parameter.clone()
        elif kinds[name] == "factor":
            activations[name] = parameter @ parameter.mT
    return activations


@contextmanager
def _record_kernel_inputs(model: Transformer, activations: dict[str, Tensor]) -> Iterator[None]:
    """Add the queries, keys, values and scores of every attention kernel to `activations`."""
    layers = [
        (index, block.mixer) for index, block in enumerate(model.blocks) if isinstance(block.mixer, Attention)
    ]
    original_kernels = [layer.kernel for _, layer in layers]
    heads = {index: layer.heads for index, layer in layers}

    def wrap_kernel(index: int, kernel: Kernel) -> Kernel:
        def call_and_record(inputs: AttentionInputs) -> AttentionOutput:
            q, k, v = inputs[:3]
            repeated_k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            score_dim = heads[index].score_dim  # features beyond it enter scores only
            recorded = {
                "q": q[..., :score_dim],
                "k": k[..., :score_dim],
                "v": v,
                "scores": q @ repeated_k.mT * inputs.scale,
            }
            activations.update({f"blocks.{index}.{name}": tensor for name, tensor in recorded.items()})
            return kernel(inputs)

        return call_and_record

    for index, layer in layers:
        layer.kernel = wrap_kernel(index, layer.kernel)
    try:
        yield
    finally:
        for (_, layer), kernel in zip(layers, original_kernels, strict=True):
            layer.kernel = kernel


def _scale_config_values(node: Any, names: Sequence[str], factor: int) -> Any:
    """Multiply the integer values of the keys `names`; a single KV head stays single."""
    if isinstance(node, Mapping):
        return {
            key: value * factor
            if key in names and type(value) is int and (key, value) != ("n_kv_heads", 1)
            else _scale_config_values(value, names, factor)
            for key, value in node.items()
        }
    return [_scale_config_values(value, names, factor) for value in node] if isinstance(node, list) else node


def _compute_rms(value: Tensor) -> float:
    return float(value.double().square().mean().sqrt())
