"""Tensor layouts of families whose files order rows in another way than our modules do."""

import torch
from torch import Tensor

from attnlab.model.huggingface.families.parts import Layout
from attnlab.model.huggingface.rotation import Config


def _heads(config: Config) -> Config:
    heads: Config = config["attention"]["heads"]
    return heads


def _transposed(tensor: Tensor, config: Config) -> Tensor:
    return tensor.t()  # a vector stays as it is


def _by_part(tensor: Tensor, config: Config) -> Tensor:
    heads = _heads(config)["n_heads"]
    groups = _heads(config)["n_kv_heads"]
    parts = tensor.unflatten(0, (groups, heads // groups + 2, -1)).tensor_split((-2, -1), dim=1)
    return torch.cat([part.flatten(0, 2) for part in parts])


def _by_group(tensor: Tensor, config: Config) -> Tensor:
    heads = _heads(config)["n_heads"]
    groups = _heads(config)["n_kv_heads"]
    parts = tensor.unflatten(0, (heads + 2 * groups, -1)).split((heads, groups, groups))
    return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 2)


TRANSPOSED = Layout(_transposed, _transposed)
GROUPED = Layout(_by_part, _by_group)  # by KV head: its queries, its key, its value
PLUS_ONE = Layout(  # gains stored as what they are beyond 1; the sum as theirs is computed
    lambda tensor, config: tensor.to(torch.promote_types(tensor.dtype, torch.float32)) + 1,
    lambda tensor, config: tensor - 1,
)


def _flip(tensor: Tensor) -> Tensor:
    """Matrices of experts the other way round, to theirs or back; biases as they are."""
    return tensor.transpose(1, -1) if tensor.ndim > 2 else tensor


EXPERTS_UP = Layout(  # gate and up are interleaved
    lambda tensor, config: _flip(tensor).unflatten(1, (-1, 2)).transpose(1, 2).flatten(0, 2),
    lambda tensor, config: _flip(
        tensor.unflatten(0, (config["ffn"]["n_experts"], 2, -1)).transpose(1, 2).flatten(1, 2)
    ),
)
EXPERTS_DOWN = Layout(
    lambda tensor, config: _flip(tensor).flatten(0, 1),
    lambda tensor, config: _flip(tensor.unflatten(0, (config["ffn"]["n_experts"], -1))),
)


def _wide_values(tensor: Tensor, config: Config, outer: int) -> Tensor:
    """A wide value is two heads of theirs, half of all apart; here they are neighbors."""
    groups = _heads(config)["n_kv_heads"]
    narrow = len(tensor) // (_heads(config)["n_heads"] + 2 * groups) * groups
    before, v = tensor.tensor_split((len(tensor) - narrow,))
    return torch.cat((before, v.unflatten(0, (outer, groups // outer, -1)).transpose(0, 1).flatten(0, 2)))


WIDE_VALUES = Layout(
    lambda tensor, config: _wide_values(tensor, config, 2),
    lambda tensor, config: _wide_values(tensor, config, _heads(config)["n_kv_heads"] // 2),
)
LAMBDAS = Layout(lambda tensor, config: tensor.unflatten(0, (4, -1)), lambda tensor, config: tensor.flatten())


_HALVES = (-1, 2)
_PAIRS = (2, -1)  # pairs (0, 1), (2, 3), ... as first members, then second ones; and back


def _turn(rows: Tensor, blocks: int, turning: int, shape: tuple[int, int]) -> Tensor:
    """The last `turning` rows of each block in another order, the others as they are."""
    rows = rows.unflatten(0, (blocks, -1))
    still, turned = rows.tensor_split((rows.shape[1] - turning,), dim=1)
    return torch.cat((still, turned.unflatten(1, shape).transpose(1, 2).flatten(1, 2)), 1).flatten(0, 1)


def _turn_queries(rows: Tensor, config: Config, shape: tuple[int, int]) -> Tensor:
    return _turn(rows, _heads(config)["n_heads"], _heads(config)["rope_dim"], shape)


def _turn_down(rows: Tensor, config: Config, shape: tuple[int, int]) -> Tensor:
    """Queries, unless they come from a latent of their own, and the key that all heads share."""
    heads = _heads(config)
    q, kv = rows.tensor_split((len(rows) - heads["rank"] - heads["rope_dim"],))
    q = _turn_queries(q, config, shape) if heads.get("q_rank") is None else q
    return torch.cat((q, _turn(kv, 1, heads["rope_dim"], shape)))


def _up(rows: Tensor, config: Config) -> Tensor:
    parts = rows.unflatten(0, (_heads(config)["n_heads"], -1)).tensor_split(
        (_heads(config)["head_dim"],), dim=1
    )
    return torch.cat([part.flatten(0, 1) for part in parts])


def _by_head(rows: Tensor, config: Config) -> Tensor:
    heads = _heads(config)
    parts = rows.tensor_split((heads["n_heads"] * heads["head_dim"],))
    return torch.cat([part.unflatten(0, (heads["n_heads"], -1)) for part in parts], 1).flatten(0, 1)


LATENT_DOWN = Layout(
    lambda rows, config: _turn_down(rows, config, _HALVES),
    lambda rows, config: _turn_down(rows, config, _PAIRS),
)
LATENT_Q_UP = Layout(
    lambda rows, config: _turn_queries(rows, config, _HALVES),
    lambda rows, config: _turn_queries(rows, config, _PAIRS),
)
LATENT_UP = Layout(_up, _by_head)
