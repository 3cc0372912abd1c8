"""The law of width, for models whose parametrization scales with it: the coordinate check of Yang 2022
(2203.03466, appendix D.1), on every activation at once.
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

from attnlab.attention.contracts import Attended, AttentionInputs, Kernel, Unsupported
from attnlab.attention.layer import Attention
from attnlab.model.parametrization import kinds, rows
from attnlab.model.transformer import Transformer
from attnlab.testing.laws.variant import VOCABULARY, Variant, named_generator

MOST = 0.1  # slope of log size over log width
LEAST = -0.15  # of changes; narrow heads, normalised, move a little more than wide ones
FACTORS = (2, 8)
STEPS = (1, 3)
SEEDS = (0, 1)
RATE = 1e-3
WIDE = ("dim", "width", "head_dim", "rank", "rope_dim")
MANY = ("dim", "width", "n_heads", "n_kv_heads")
SHRINK = re.compile(r"(scores|score_modules\.\d+|^head|^logits)$")  # 0 in the limit, at the start

Place = tuple[str, int, str]  # "size" or "change", after so many steps, and of what
MakeOptimizer = Callable[[Transformer], torch.optim.Optimizer]


def is_scaled(variant: Variant) -> bool:
    """Whether its config asks for a parametrization."""
    return variant.parametrization is not None


def check_width_changes_no_size(variant: Variant) -> None:
    """25. Under a parametrization that scales with the width no activation grows with it, at the start and
    in training, and steps change all of them alike; readout and scores may shrink at the start.
    """
    require_flat(slopes(functools.partial(wider, variant)))


def require_flat(found: Mapping[Place, float], least: float = LEAST) -> None:
    """AssertionError with the first slope that is too steep."""
    for (what, step, name), slope in found.items():
        told = f"after {step} steps the {what} of {name} goes as the width to the power of {slope:.2f}"
        assert slope <= MOST, told
        if what == "change" and not SHRINK.search(name):
            assert slope >= least, told


def wider(variant: Variant, factor: int, seed: int, n_layers: int = 1) -> Transformer:
    """The variant's model, as initialised, so many times as wide: each of its widths is multiplied; where the
    parametrization counts from heads of a fixed width, their number. Unsupported where that builds no model.
    """
    names = WIDE if (variant.parametrization or {}).get("base_head_dim") is None else MANY
    grown = dataclasses.replace(
        variant,
        attention=_grown(variant.attention, names, factor),
        positions=_grown(variant.positions, names, factor),
    )
    try:
        model = grown.model(n_layers=n_layers, seed=seed, ffn_width=2 * variant.dim * factor)
    except ValueError as error:
        raise Unsupported(f"{', '.join(names)} times {factor} make no model: {error}") from error
    return model.float().train()


def slopes(
    build: Callable[[int, int], Transformer],
    factors: Sequence[int] = FACTORS,
    steps: Sequence[int] = STEPS,
    seeds: Sequence[int] = SEEDS,
    optimizer: MakeOptimizer | None = None,
) -> dict[Place, float]:
    """By place: the slope of the logarithm of its root mean square over that of the width, of the mean over
    `seeds`. `build(factor, seed)` makes a model; each is trained on one batch of 4 x 16 tokens.

    What is 0 somewhere has no logarithm, and is left out.
    """
    logs: dict[Place, dict[int, list[float]]] = {}
    for factor in factors:
        for seed in seeds:
            for place, size in _sizes(build(factor, seed), steps, seed, optimizer or _adamw).items():
                logs.setdefault(place, {}).setdefault(factor, []).append(
                    math.log2(size) if size else -math.inf
                )
    widths = torch.tensor([math.log2(factor) for factor in factors], dtype=torch.float64)
    away = widths - widths.mean()
    found = {}
    for place, by_factor in logs.items():
        means = torch.tensor([sum(by_factor[f]) / len(seeds) for f in factors], dtype=torch.float64)
        if means.isfinite().all():
            found[place] = float((away * means).sum() / away.square().sum())
    return found


def _sizes(
    model: Transformer, steps: Sequence[int], seed: int, make_optimizer: MakeOptimizer
) -> dict[Place, float]:
    tokens = torch.randint(VOCABULARY, (4, 16), generator=named_generator(seed, "width"))
    first = _activations(model, tokens)
    found = {("size", 0, name): _rms(value) for name, value in first.items()}
    optimizer = make_optimizer(model)
    parameters = dict(model.named_parameters())
    for step in range(1, max(steps) + 1):
        logits = model(tokens)[:, :-1]
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        if step in steps:
            for name, value in _activations(model, tokens).items():
                if name in parameters and step > 1:
                    continue  # a few numbers, whose gradients may change their sign
                found["size", step, name] = _rms(value)
                found["change", step, name] = _rms(value - first[name])
    return found


def _adamw(model: Transformer) -> torch.optim.Optimizer:
    """At the rates of the table."""
    rates = rows(model)
    groups = [{"params": [p], "lr": RATE * rates[name].adam} for name, p in model.named_parameters()]
    return torch.optim.AdamW(groups, weight_decay=0.0, eps=1e-16)


@torch.no_grad()
def _activations(model: Transformer, tokens: Tensor) -> dict[str, Tensor]:
    """Name to value: what every module gives, the queries, keys, values and scores of attention, and of the
    parameters those that no product is taken over: vectors, and vectors' products.
    """
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, out: Any) -> None:
            first = out[0] if isinstance(out, tuple) else out
            if isinstance(first, Tensor):
                seen[name or "logits"] = first

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_modules()]
    with _watched_kernels(model, seen):
        model(tokens)
    for handle in hooks:
        handle.remove()
    own = dict(kinds(model))
    for name, parameter in model.named_parameters():
        if own[name] == "vector":
            seen[name] = parameter.clone()
        elif own[name] == "factor":
            seen[name] = parameter @ parameter.mT
    return seen


@contextmanager
def _watched_kernels(model: Transformer, seen: dict[str, Tensor]) -> Iterator[None]:
    """Keeps what the kernels are given."""
    layers = [(n, block.mixer) for n, block in enumerate(model.blocks) if isinstance(block.mixer, Attention)]
    plain = [layer.kernel for _, layer in layers]
    heads = {n: layer.heads for n, layer in layers}

    def watched(n: int, kernel: Kernel) -> Kernel:
        def watching(inputs: AttentionInputs) -> Attended:
            q, k, v = inputs[:3]
            each = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            own = heads[n].score_dim  # beyond it are features that scores alone are made of
            parts = {"q": q[..., :own], "k": k[..., :own], "v": v, "scores": q @ each.mT * inputs.scale}
            seen.update({f"blocks.{n}.{name}": part for name, part in parts.items()})
            return kernel(inputs)

        return watching

    for n, layer in layers:
        layer.kernel = watched(n, layer.kernel)
    try:
        yield
    finally:
        for (_, layer), kernel in zip(layers, plain, strict=True):
            layer.kernel = kernel


def _grown(node: Any, names: Sequence[str], factor: int) -> Any:
    """A config in which the values of these names are multiplied; a single KV head stays the only one."""
    if isinstance(node, Mapping):
        return {
            key: value * factor
            if key in names and type(value) is int and (key, value) != ("n_kv_heads", 1)
            else _grown(value, names, factor)
            for key, value in node.items()
        }
    return [_grown(value, names, factor) for value in node] if isinstance(node, list) else node


def _rms(value: Tensor) -> float:
    return float(value.double().square().mean().sqrt())
