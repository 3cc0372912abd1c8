"""Parameters, cached numbers and FLOPs of every layer of a built model, counted in two passes without data.

FLOPs are counted by torch in the eager reference, on the meta device, so parts of your own are included.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import Capabilities
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.conjunction import Conjunction
from attnlab.attention.masks.window import window as make_window
from attnlab.attention.mixers.memory_mixer import MemoryMixer
from attnlab.attention.stateful.convolution import ShortConvolution
from attnlab.attention.stateful.recurrent_state import RecurrentState
from attnlab.attention.token_positions import TokenPositions
from attnlab.inference_cost.layer_costs import LayerCost, ModelCost
from attnlab.measure.resources import reference_kernel
from attnlab.model.build import build_model, require_layer_per_patch
from attnlab.model.experts import Experts
from attnlab.model.lean_copy import absorb_heads
from attnlab.model.transformer import LearnedPositions, Transformer

LENGTHS = (2, 3, 4)  # at which FLOPs are counted: two determine a formula, the third must agree


def count_module_cost(config: Mapping[str, Any], vocab_size: int, dtype: torch.dtype) -> ModelCost:
    """Count the model of a resolved config.

    Args:
        dtype: Of the weights.

    Raises:
        ValueError: The model cannot be cached, or a part has no formula.
    """
    require_layer_per_patch(config)
    with torch.device("meta"):
        model = build_model(config, vocab_size).eval().to(dtype)
    windows = [_find_window(block.mixer) for block in model.blocks]
    with torch.no_grad(), torch.device("meta"), reference_kernel(model):
        prefills = [_count_flops(model, length, _make_caches(model)) for length in LENGTHS]
        absorb_heads(model)
        caches = _make_caches(model)
        model(torch.zeros(1, LENGTHS[0], dtype=torch.long), caches=caches)
        steps = [_count_flops(model, 1, caches) for _ in LENGTHS]
        layers: list[LayerCost] = []
        shared_widths: tuple[int, ...] = ()
        for n, block in enumerate(model.blocks):
            name = f"{type(model).__name__}.blocks.{n}"
            layer = _count_layer(
                block, windows[n], config["model"]["dim"], caches[n],
                [flops[name] for flops in prefills], [flops[name] for flops in steps],
            )  # fmt: skip
            if getattr(block.mixer, "reads_shared_kv", False):
                layer = replace(layer, read_widths=shared_widths)
            if getattr(block.mixer, "writes_shared_kv", False):
                shared_widths = layer.cached_widths
            layers.append(layer)
    step = steps[0]
    head_flops = step[f"{type(model).__name__}.head"]
    blocks_flops = sum(step[f"{type(model).__name__}.blocks.{n}"] for n in range(len(layers)))
    total = sum(parameter.numel() for parameter in model.parameters())
    return ModelCost(
        tuple(layers),
        other_parameters=total - sum(layer.parameters for layer in layers),
        head_flops=head_flops,
        lookup_parameters=_count_lookup_parameters(model),
        other_flops=step["Global"] - head_flops - blocks_flops,
        max_length=model.positions.length if isinstance(model.positions, LearnedPositions) else None,
    )


def _make_caches(model: Transformer) -> list[DynamicCache]:
    return [DynamicCache() for _ in model.blocks]


def _count_flops(model: Transformer, new: int, caches: list[DynamicCache]) -> Counter[str]:
    """FLOPs of `new` tokens after those of the caches, by module."""
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, new, dtype=torch.long), caches=caches)
    counts = counter.get_flop_counts().items()
    return Counter({name: sum(flops.values()) for name, flops in counts})


def _count_layer(
    block: Any, window: int | None, dim: int, cache: DynamicCache, prefills: list[int], steps: list[int]
) -> LayerCost:
    mixer, ffn = block.mixer, block.ffn
    parameters = sum(parameter.numel() for parameter in block.parameters())
    unused_weights = unused_parameters = 0
    if isinstance(ffn, Experts):  # the eager reference computes all experts
        unused = ffn.n_experts - ffn.n_chosen
        of_experts = [*ffn.up.parameters(), *ffn.down.parameters()]
        unused_weights = sum(part.numel() for part in of_experts if part.ndim == 2) // ffn.n_experts * unused
        unused_parameters = sum(part.numel() for part in of_experts) // ffn.n_experts * unused
    per_key, linear = _fit_step(steps)
    if isinstance(mixer, MemoryMixer):  # token by token, as the recurrence is defined
        prefill_per_key, prefill = per_key, linear
    else:
        prefill_per_key, prefill = _fit_prefill(prefills)
    dtype = next(block.parameters()).dtype
    members = cache.state or ()
    sums = -1  # index of the sums of a forget gate: float32 at least, in any format of weights and cache
    if isinstance(mixer, Attention) and mixer.forgetting is not None:
        sums = len(members) - len(mixer.token_state_parts) + mixer.token_state_parts.index(mixer.forgetting)
    fixed_members = [n for n, part in enumerate(members) if n == sums or part.dtype != dtype]
    sizes = [part.shape[1] * part.shape[3] for part in members]
    widths = tuple(size for n, size in enumerate(sizes) if n not in fixed_members)
    fixed = sum(sizes[n] * members[n].element_size() for n in fixed_members)
    return LayerCost(
        _describe_kind(mixer, window, dim),
        window,
        parameters,
        parameters - unused_parameters,
        linear - 2 * unused_weights,
        prefill - 2 * unused_weights,
        per_key,
        prefill_per_key,
        widths,
        widths,
        fixed,
        Capabilities.from_part(mixer).carried_size(),
    )


def _fit_step(flops: list[int]) -> tuple[int, int]:
    """FLOPs per key, and those of a step apart from them."""
    slope = flops[1] - flops[0]
    if flops[2] - flops[1] != slope:
        raise ValueError("the FLOPs of a decoding step are not linear in the cached tokens: no cost formula")
    return slope, flops[0] - slope * (LENGTHS[0] + 1)


def _fit_prefill(flops: list[int]) -> tuple[int, int]:
    """FLOPs per query and key, of all pairs of a prompt, and those per token apart from them."""
    per_pair = (flops[2] - 2 * flops[1] + flops[0]) // 2
    per_token = flops[0] // LENGTHS[0] - per_pair * LENGTHS[0]
    if [per_token * length + per_pair * length**2 for length in LENGTHS] != flops:
        raise ValueError("the FLOPs of a prompt are not quadratic in its tokens: no cost formula")
    return per_pair, per_token


def _find_window(mixer: nn.Module) -> int | None:
    """Tokens that a query sees; None sees all.

    Raises:
        ValueError: The number of visible keys is not known.
    """
    if not isinstance(mixer, Attention):
        return None
    if mixer.selection is not None:
        raise ValueError(
            "model.attention.selection has no cost formula: the keys that it reads depend on the text"
        )
    masks = mixer.mask.parts if isinstance(mixer.mask, Conjunction) else (mixer.mask,)
    bounds = [mask for mask in masks if mask is not causal]
    if any(getattr(mask, "__module__", None) != make_window.__module__ for mask in bounds) or len(bounds) > 1:
        raise ValueError("model.attention.masks has no cost formula: only causal masks and one window have")
    return sum(Capabilities.from_part(bounds[0]).visible_window or ()) if bounds else None


def _describe_kind(mixer: nn.Module, window: int | None, dim: int) -> str:
    if isinstance(mixer, MemoryMixer):
        weight = next(parameter for parameter in mixer.parameters() if parameter.ndim == 2)
        x_BTM = weight.new_zeros(1, 1, dim)
        positions = TokenPositions.continue_from(0, 1, x_BTM.device)
        inputs = mixer.project_tokens(x_BTM, RecurrentState(positions, None, None))
        kind = "linear state" if inputs.write is None and inputs.erase is None else "delta state"
    elif mixer.reads_shared_kv:
        kind = "shared K/V"
    elif Capabilities.from_part(mixer.heads).can_absorb:
        kind = "latent"
    else:
        kind = "full" if window is None else "sliding window"
    has_convolution = any(isinstance(part, ShortConvolution) and part.width for part in mixer.modules())
    return kind + ", convolution" * has_convolution


def _count_lookup_parameters(model: Transformer) -> int:
    """Parameters of tables of which a token reads one row."""
    tables = {id(part.weight): part.weight for part in model.modules() if isinstance(part, nn.Embedding)}
    tables.pop(id(model.head.weight), None)
    return sum(weight.numel() for weight in tables.values())
