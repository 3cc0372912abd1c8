"""Tensor layouts of families whose files order rows differently from our modules."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnlab.model.huggingface.families.checkpoint_family import Layout
from attnlab.model.huggingface.rope_config import Config

if TYPE_CHECKING:  # reading a config does not import torch
    from torch import Tensor


def _concatenate(tensors: "Sequence[Tensor]", axis: int = 0) -> "Tensor":
    import torch

    return torch.cat(tuple(tensors), axis)


def _get_heads_config(config: Config) -> Config:
    heads: Config = config["attention"]["heads"]
    return heads


def _transpose(tensor: "Tensor", config: Config) -> "Tensor":
    return tensor.t()  # no effect on a vector


def _group_by_part(tensor: "Tensor", config: Config) -> "Tensor":
    heads = _get_heads_config(config)["n_heads"]
    groups = _get_heads_config(config)["n_kv_heads"]
    parts = tensor.unflatten(0, (groups, heads // groups + 2, -1)).tensor_split((-2, -1), dim=1)
    return _concatenate([part.flatten(0, 2) for part in parts])


def _group_by_kv_head(tensor: "Tensor", config: Config) -> "Tensor":
    heads = _get_heads_config(config)["n_heads"]
    groups = _get_heads_config(config)["n_kv_heads"]
    parts = tensor.unflatten(0, (heads + 2 * groups, -1)).split((heads, groups, groups))
    return _concatenate([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 2)


def _widen(tensor: "Tensor") -> "Tensor":
    """Convert to at least float32."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


TRANSPOSED_LAYOUT = Layout(_transpose, _transpose)
GROUPED_LAYOUT = Layout(_group_by_part, _group_by_kv_head)  # by KV head: its queries, its key, its value
PLUS_ONE = Layout(  # gains are stored minus 1; the sum is computed as in transformers
    lambda tensor, config: _widen(tensor) + 1,
    lambda tensor, config: tensor - 1,
)

UNUSED_POSITIONS = Layout(  # the table starts with two rows that no token of an unpadded text reads
    lambda tensor, config: tensor[2:],
    lambda tensor, config: _concatenate((tensor.new_zeros(2, tensor.shape[1]), tensor)),
)


def _flip_expert_matrices(tensor: "Tensor") -> "Tensor":
    """Transpose the matrices of experts, in either direction; biases do not change."""
    return tensor.transpose(1, -1) if tensor.ndim > 2 else tensor


EXPERTS_UP = Layout(  # gate and up are interleaved
    lambda tensor, config: _flip_expert_matrices(tensor).unflatten(1, (-1, 2)).transpose(1, 2).flatten(0, 2),
    lambda tensor, config: _flip_expert_matrices(
        tensor.unflatten(0, (config["ffn"]["n_experts"], 2, -1)).transpose(1, 2).flatten(1, 2)
    ),
)
EXPERTS_DOWN = Layout(
    lambda tensor, config: _flip_expert_matrices(tensor).flatten(0, 1),
    lambda tensor, config: _flip_expert_matrices(tensor.unflatten(0, (config["ffn"]["n_experts"], -1))),
)


def _reorder_wide_values(tensor: "Tensor", config: Config, outer: int) -> "Tensor":
    """Reorder wide values: their two halves are heads n/2 apart in theirs and neighbors in ours."""
    groups = _get_heads_config(config)["n_kv_heads"]
    n_value_rows = len(tensor) // (_get_heads_config(config)["n_heads"] + 2 * groups) * groups
    qk, v = tensor.tensor_split((len(tensor) - n_value_rows,))
    return _concatenate((qk, v.unflatten(0, (outer, groups // outer, -1)).transpose(0, 1).flatten(0, 2)))


WIDE_VALUES = Layout(
    lambda tensor, config: _reorder_wide_values(tensor, config, 2),
    lambda tensor, config: _reorder_wide_values(tensor, config, _get_heads_config(config)["n_kv_heads"] // 2),
)
LAMBDAS = Layout(lambda tensor, config: tensor.unflatten(0, (4, -1)), lambda tensor, config: tensor.flatten())


_HALVES = (-1, 2)
_PAIRS = (2, -1)  # rotary pairs (0, 1), (2, 3), ... to first members followed by second members, and back


def _reorder_rotary_rows(rows: "Tensor", blocks: int, n_rotary: int, shape: tuple[int, int]) -> "Tensor":
    """Reorder the last `n_rotary` rows of each block; the others do not change."""
    rows = rows.unflatten(0, (blocks, -1))
    other_rows, rotary_rows = rows.tensor_split((rows.shape[1] - n_rotary,), dim=1)
    return _concatenate(
        (other_rows, rotary_rows.unflatten(1, shape).transpose(1, 2).flatten(1, 2)), 1
    ).flatten(0, 1)


def _reorder_first_rows_of_qk(rows: "Tensor", config: Config, shape: tuple[int, int]) -> "Tensor":
    """Reorder the first rows of each head of queries and keys, as many as RoPE rotates."""
    heads = _get_heads_config(config)
    n_values = heads["n_kv_heads"]
    rows = rows.unflatten(0, (heads["n_heads"] + 2 * n_values, -1))
    fraction = config["attention"].get("rotary", {}).get("fraction", 1.0)
    n_rotary = round(rows.shape[1] * fraction) // 2 * 2  # RoPE itself raises an error for an odd number
    qk, v = rows.tensor_split((-n_values,))
    rotary_rows, other_rows = qk.tensor_split((n_rotary,), dim=1)
    rotary_rows = rotary_rows.unflatten(1, shape).transpose(1, 2).flatten(1, 2)
    return _concatenate((_concatenate((rotary_rows, other_rows), 1), v)).flatten(0, 1)


ROTARY_PAIRS = Layout(
    lambda rows, config: _reorder_first_rows_of_qk(rows, config, _HALVES),
    lambda rows, config: _reorder_first_rows_of_qk(rows, config, _PAIRS),
)


def _reorder_query_rows(rows: "Tensor", config: Config, shape: tuple[int, int]) -> "Tensor":
    return _reorder_rotary_rows(
        rows, _get_heads_config(config)["n_heads"], _get_heads_config(config)["rope_dim"], shape
    )


def _reorder_down_rows(rows: "Tensor", config: Config, shape: tuple[int, int]) -> "Tensor":
    """Reorder the shared rotary key, and the queries unless they have their own latent."""
    heads = _get_heads_config(config)
    q, kv = rows.tensor_split((len(rows) - heads["rank"] - heads["rope_dim"],))
    q = _reorder_query_rows(q, config, shape) if "q_rank" not in heads else q
    return _concatenate((q, _reorder_rotary_rows(kv, 1, heads["rope_dim"], shape)))


def _split_up_rows(rows: "Tensor", config: Config) -> "Tensor":
    parts = rows.unflatten(0, (_get_heads_config(config)["n_heads"], -1)).tensor_split(
        (_get_heads_config(config)["head_dim"],), dim=1
    )
    return _concatenate([part.flatten(0, 1) for part in parts])


def _interleave_up_rows(rows: "Tensor", config: Config) -> "Tensor":
    heads = _get_heads_config(config)
    parts = rows.tensor_split((heads["n_heads"] * heads["head_dim"],))
    return _concatenate([part.unflatten(0, (heads["n_heads"], -1)) for part in parts], 1).flatten(0, 1)


LATENT_DOWN = Layout(
    lambda rows, config: _reorder_down_rows(rows, config, _HALVES),
    lambda rows, config: _reorder_down_rows(rows, config, _PAIRS),
)
LATENT_Q_UP = Layout(
    lambda rows, config: _reorder_query_rows(rows, config, _HALVES),
    lambda rows, config: _reorder_query_rows(rows, config, _PAIRS),
)
LATENT_UP = Layout(_split_up_rows, _interleave_up_rows)
