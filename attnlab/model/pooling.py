"""Pooling of trained KV heads, from MHA to GQA or MQA (Ainslie et al. 2023, arXiv 2305.13245, §2.1).

Query head h still reads group h // (heads per group), so neighboring KV heads are pooled. The result is a
starting point for further training. It equals the original model only if the pooled heads were equal.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Protocol, TypeGuard, overload

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Capabilities, Heads
from attnlab.attention.heads.projections import FusedLinear
from attnlab.attention.layer import Attention
from attnlab.model.initialization import make_named_generator
from attnlab.model.transformer import Transformer

StateDict = dict[str, Tensor]
QKV_PREFIX = "heads.qkv."
LATENT_PREFIX = "heads.down."


def _pool_mean(heads: Tensor, generator: torch.Generator) -> Tensor:
    precise_heads = heads.to(torch.promote_types(heads.dtype, torch.float32))
    first = precise_heads[:, :1]
    return (first + (precise_heads - first).mean(1, keepdim=True)).to(
        heads.dtype
    )  # relative to the first, so that equal heads do not change


def _pool_first(heads: Tensor, generator: torch.Generator) -> Tensor:
    return heads[:, :1]


def _pool_random(heads: Tensor, generator: torch.Generator) -> Tensor:
    std = heads.float().std(correction=0).item()
    return torch.empty(heads[:, :1].shape).normal_(0.0, std, generator=generator).to(heads)


POOL_METHODS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "mean": _pool_mean,
    "first": _pool_first,
    "random": _pool_random,
}


class PoolableHeads(Heads, Protocol):
    """Interface of heads that declare `can_pool`, in addition to `contracts.Heads`."""

    head_dim: int
    qkv: FusedLinear
    training: bool

    def state_dict(self) -> dict[str, Tensor]: ...


def _can_pool(heads: Heads) -> TypeGuard[PoolableHeads]:
    return Capabilities.from_part(heads).can_pool


@overload
def pool_heads(source: Transformer, n_kv_heads: int, how: str, seed: int = 0) -> Transformer: ...
@overload
def pool_heads(
    source: Mapping[str, Tensor], n_kv_heads: int, how: str, seed: int, head_dim: int
) -> StateDict: ...
def pool_heads(
    source: Transformer | Mapping[str, Tensor],
    n_kv_heads: int,
    how: str,
    seed: int = 0,
    head_dim: int | None = None,
) -> Transformer | StateDict:
    """Copy a model, or a state dict with `head_dim`, with `n_kv_heads` KV heads in every layer.

    A layer that already has `n_kv_heads` does not change. The caller updates `attention.heads.n_kv_heads` in
    the model's config.

    Args:
        how: "mean" of a group's heads, its "first", or "random": drawn by (seed, tensor name) with the
            standard deviation of the replaced heads.
    """
    if how not in POOL_METHODS:
        raise ValueError(f"pooling method {how!r} is not known (known: {', '.join(POOL_METHODS)})")
    if isinstance(source, Transformer):
        return _pool_model(source, n_kv_heads, how, seed)
    if head_dim is None:
        raise ValueError("a state dict does not contain the head dimension: pass head_dim, or the model")
    if any(LATENT_PREFIX in name for name in source):
        raise ValueError("latent heads have no key and value heads to pool: they already share one latent")
    fused = [name for name in source if QKV_PREFIX in name]
    if not fused:
        raise ValueError("the weights contain no attention heads to pool")
    state = dict(source)
    for name in fused:
        prefix = name.rpartition(QKV_PREFIX)[0]
        q_rows = source[prefix + "heads.out.weight"].shape[1]
        state[name] = _pool_tensor(source[name], q_rows, head_dim, n_kv_heads, POOL_METHODS[how], seed, name)
    return state


def _pool_tensor(
    fused: Tensor,
    q_rows: int,
    head_dim: int,
    n_kv_heads: int,
    pool: Callable[[Tensor, torch.Generator], Tensor],
    seed: int,
    name: str,
) -> Tensor:
    """Pool the k and v rows of one fused weight or bias; q, the first `q_rows` rows, does not change."""
    kv_rows = (len(fused) - q_rows) // 2
    if kv_rows <= 0:
        raise ValueError("heads=tied_qkv has no separate key and value heads to pool")
    if kv_rows % head_dim or q_rows % head_dim:
        raise ValueError(f"head_dim={head_dim} does not divide {name} of shape {tuple(fused.shape)}")
    old_kv_heads = kv_rows // head_dim
    if n_kv_heads < 1 or old_kv_heads % n_kv_heads:
        raise ValueError(
            f"{old_kv_heads} KV heads cannot be pooled into {n_kv_heads}: use a divisor of {old_kv_heads}"
        )
    if old_kv_heads == n_kv_heads:
        return fused.clone()
    q, k, v = fused.split((q_rows, kv_rows, kv_rows))
    parts = [q]
    for part, part_rows in (("k", k), ("v", v)):
        groups = part_rows.unflatten(0, (n_kv_heads, old_kv_heads // n_kv_heads, head_dim))
        parts.append(pool(groups, make_named_generator(seed, f"{name}.{part}")).flatten(0, 2))
    return torch.cat(parts)


def _pool_model(model: Transformer, n_kv_heads: int, how: str, seed: int) -> Transformer:
    model = copy.deepcopy(model)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Attention)}
    if not layers:
        raise ValueError("the model contains no attention heads to pool")
    for name, heads in ((f"{name}.heads", layer.heads) for name, layer in layers.items()):
        if not _can_pool(heads):
            raise ValueError(f"{type(heads).__name__} have no separate key and value heads to pool")
        state = {f"{name}.{key}": tensor for key, tensor in heads.state_dict().items()}
        pooled_state = pool_heads(state, n_kv_heads, how, seed, heads.score_dim)
        q_rows = heads.n_heads * heads.head_dim
        kv_rows = n_kv_heads * heads.head_dim
        weight = pooled_state[f"{name}.qkv.weight"]
        bias = pooled_state.get(f"{name}.qkv.bias")
        with torch.device("meta"):
            fused = FusedLinear(weight.shape[1], {"q": q_rows, "k": kv_rows, "v": kv_rows}, bias is not None)
        fused.weight = nn.Parameter(weight)
        if bias is not None:
            fused.bias = nn.Parameter(bias)
        heads.qkv = fused.train(heads.training)
        heads.n_kv_heads = n_kv_heads
    return model
