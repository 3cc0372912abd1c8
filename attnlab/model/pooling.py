"""Fewer key/value heads in a trained model: MHA to GQA or MQA (Ainslie et al. 2023, arXiv 2305.13245, §2.1).

Query head h keeps reading group h // (heads per group), so neighbouring KV heads are what is pooled. The
result is a starting point for more training, not an equal model, unless the pooled heads were equal.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Protocol, TypeGuard, overload

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Capabilities, Heads
from attnlab.attention.heads.projections import Fused
from attnlab.attention.layer import Attention
from attnlab.model.initial import named_generator
from attnlab.model.transformer import Transformer

State = dict[str, Tensor]
QKV = "heads.qkv."
LATENT = "heads.down."


def _mean(heads: Tensor, generator: torch.Generator) -> Tensor:
    exact = heads.to(torch.promote_types(heads.dtype, torch.float32))
    first = exact[:, :1]
    return (first + (exact - first).mean(1, keepdim=True)).to(
        heads.dtype
    )  # so that equal heads stay as they are


def _first(heads: Tensor, generator: torch.Generator) -> Tensor:
    return heads[:, :1]


def _random(heads: Tensor, generator: torch.Generator) -> Tensor:
    spread = heads.float().std(correction=0).item()
    return torch.empty(heads[:, :1].shape).normal_(0.0, spread, generator=generator).to(heads)


POOLS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "mean": _mean,
    "first": _first,
    "random": _random,
}


class PoolingHeads(Heads, Protocol):
    """What heads that declare `pools` have beside what all have (`contracts.Heads`)."""

    head_dim: int
    qkv: Fused
    training: bool

    def state_dict(self) -> dict[str, Tensor]: ...


def _pools(heads: Heads) -> TypeGuard[PoolingHeads]:
    return Capabilities.of(heads).pools


@overload
def pool_heads(source: Transformer, n_kv_heads: int, how: str, seed: int = 0) -> Transformer: ...
@overload
def pool_heads(
    source: Mapping[str, Tensor], n_kv_heads: int, how: str, seed: int, head_dim: int
) -> State: ...
def pool_heads(
    source: Transformer | Mapping[str, Tensor],
    n_kv_heads: int,
    how: str,
    seed: int = 0,
    head_dim: int | None = None,
) -> Transformer | State:
    """A copy with `n_kv_heads` KV heads in every layer; of a state dict (it needs `head_dim`), a state dict.

    `how`: "mean" of a group's heads, its "first", or "random", drawn anew by (seed, tensor name) with the
    standard deviation of what it replaces. A layer that has `n_kv_heads` already stays as it is. The model's
    config has to follow: `attention.heads.n_kv_heads`. ValueError where the heads cannot be pooled.
    """
    if how not in POOLS:
        raise ValueError(f"heads are pooled by {', '.join(POOLS)}, not {how!r}")
    if isinstance(source, Transformer):
        return _pooled_model(source, n_kv_heads, how, seed)
    if head_dim is None:
        raise ValueError("a state dict does not say how wide its heads are: pass head_dim, or the model")
    if any(LATENT in name for name in source):
        raise ValueError("latent heads share one latent already: there are no key and value heads to pool")
    fused = [name for name in source if QKV in name]
    if not fused:
        raise ValueError("the weights hold no attention heads to pool")
    state = dict(source)
    for name in fused:
        before = name.rpartition(QKV)[0]
        wide = source[before + "heads.out.weight"].shape[1]
        state[name] = _pooled(source[name], wide, head_dim, n_kv_heads, POOLS[how], seed, name)
    return state


def _pooled(
    fused: Tensor,
    wide: int,
    head_dim: int,
    n_kv_heads: int,
    pool: Callable[[Tensor, torch.Generator], Tensor],
    seed: int,
    name: str,
) -> Tensor:
    """One fused weight or bias: q as it is (the first `wide` rows), then k and v with fewer heads."""
    narrow = (len(fused) - wide) // 2
    if narrow <= 0:
        raise ValueError("tied q, k, v are one projection: there are no key and value heads to pool")
    if narrow % head_dim or wide % head_dim:
        raise ValueError(f"heads of width {head_dim} do not divide {name} of shape {tuple(fused.shape)}")
    had = narrow // head_dim
    if n_kv_heads < 1 or had % n_kv_heads:
        raise ValueError(f"{had} KV heads cannot be pooled into {n_kv_heads}: it must divide them")
    if had == n_kv_heads:
        return fused.clone()
    q, k, v = fused.split((wide, narrow, narrow))
    pooled = [q]
    for part, rows in (("k", k), ("v", v)):
        groups = rows.unflatten(0, (n_kv_heads, had // n_kv_heads, head_dim))
        pooled.append(pool(groups, named_generator(seed, f"{name}.{part}")).flatten(0, 2))
    return torch.cat(pooled)


def _pooled_model(model: Transformer, n_kv_heads: int, how: str, seed: int) -> Transformer:
    model = copy.deepcopy(model)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Attention)}
    if not layers:
        raise ValueError("the model holds no attention heads to pool")
    for name, heads in ((f"{name}.heads", layer.heads) for name, layer in layers.items()):
        if not _pools(heads):
            raise ValueError(f"{type(heads).__name__} have no key and value heads of their own to pool")
        own = {f"{name}.{key}": tensor for key, tensor in heads.state_dict().items()}
        new = pool_heads(own, n_kv_heads, how, seed, heads.score_dim)
        wide = heads.n_heads * heads.head_dim
        narrow = n_kv_heads * heads.head_dim
        weight = new[f"{name}.qkv.weight"]
        bias = new.get(f"{name}.qkv.bias")
        with torch.device("meta"):
            fused = Fused(weight.shape[1], {"q": wide, "k": narrow, "v": narrow}, bias is not None)
        fused.weight = nn.Parameter(weight)
        if bias is not None:
            fused.bias = nn.Parameter(bias)
        heads.qkv = fused.train(heads.training)
        heads.n_kv_heads = n_kv_heads
    return model
