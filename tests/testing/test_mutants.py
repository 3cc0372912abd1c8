"""Attention with one error each, which the dedicated invariant must catch."""

import dataclasses

import pytest
import torch
from torch import nn

from attnlab import testing
from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import AttentionOutput, Unsupported
from attnlab.attention.epilogue import Sinks
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.rotary import Rope
from attnlab.attention.scores.alibi import Alibi


def sees_the_next(inputs):
    return eager(inputs._replace(q_idx=inputs.q_idx + 1))


def misses_itself(inputs):
    return eager(inputs._replace(q_idx=inputs.q_idx - 1))


def masks_after_softmax(inputs):
    q, _, v, q_idx, kv_idx = inputs[:5]
    weights = eager(inputs._replace(mask=None, need=("weights",))).weights
    if inputs.mask is not None:
        weights = weights * inputs.mask(torch.zeros(1).long(), torch.zeros(1).long(), q_idx, kv_idx)
    return AttentionOutput(weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1), None, weights)


def transposes_the_mask(inputs):
    return eager(inputs._replace(q_idx=inputs.kv_idx, kv_idx=inputs.q_idx))


def forgets_the_scale(inputs):
    return eager(inputs._replace(scale=inputs.scale**2))


def ignores_blind_rows(inputs):
    q, k, v, q_idx, kv_idx = inputs[:5]
    score = q @ k.transpose(-1, -2) * inputs.scale
    if inputs.mask is not None:
        b, h = torch.arange(len(q))[:, None, None, None], torch.arange(q.shape[1])[None, :, None, None]
        score = score.masked_fill(~inputs.mask(b, h, q_idx, kv_idx), -torch.inf)
    return AttentionOutput(score.softmax(-1) @ v)


def ignores_requested_outputs(inputs):
    return eager(inputs._replace(need=()))


def falls_back(inputs):
    try:
        return sdpa(inputs)
    except Unsupported:
        return eager(inputs)


def causal_from_the_top_left(inputs):
    q, k, v = inputs[:3]
    return AttentionOutput(
        nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=inputs.scale)
    )


def starts_again(positions, **options):
    return Rope(**options)(positions - positions[:, :1])


def turns_only_queries(positions, **options):
    rotate, calls = Rope(**options)(positions), []
    return lambda x: rotate(x) if calls.append(1) or len(calls) % 2 else x


def tiled_groups(**options):
    heads = GroupedHeads(**options)
    times = heads.n_heads // heads.n_kv_heads
    heads.expand = lambda state: tuple(part.repeat(1, times, 1, 1) for part in state)
    return heads


def scaled_by_d(**options):
    heads = GroupedHeads(**options)
    heads.score_dim = heads.head_dim**2
    return heads


def half_counted(**options):
    heads = GroupedHeads(**options)
    heads.state_size = lambda: heads.n_kv_heads * heads.head_dim * 8
    return heads


class SwappedAbsorption(LatentHeads):
    """Latent heads that absorb the value matrix instead of the key matrix."""

    def _split_up_projection(self):
        k, v = super()._split_up_projection()
        return (v, k) if self.absorbed else (k, v)


class Forgetful(DynamicCache):
    """A cache that forgets its oldest step."""

    def append(self, state, positions):
        state, positions = super().append(state, positions)
        if positions.shape[1] > 4:
            state, positions = tuple(part[:, :, 1:] for part in state), positions[:, 1:]
        return state, positions


class SinkWithValue(Sinks):
    """A sink whose weight is added instead of removed."""

    def forward(self, out, lse, x):
        return out * (2 - torch.sigmoid(lse - self.logit[:, None])).unsqueeze(-1)


class AlibiOfSlots(Alibi):
    """A bias by distances between cache slots."""

    def compute_bias(self, b, h, q_idx, kv_idx):
        if kv_idx.ndim < 4:
            return super().compute_bias(b, h, q_idx, kv_idx)
        return -self.slopes[h] * (q_idx - torch.arange(kv_idx.shape[-1])).abs()


def make_node(name, **changes):
    """Make a config node whose target is in this file."""
    return {"_target_": f"{__name__}.{name}", **changes}


def make_function_node(name):
    return {"_target_": "hydra.utils.get_method", "path": f"{__name__}.{name}"}


def with_kernel(name, **choices):
    return testing.combine_choices(**choices).with_changes(kernel=make_function_node(name))


def with_heads(name, **choices):
    variant = testing.combine_choices(**choices)
    return variant.with_changes(heads={**variant.attention["heads"], "_target_": f"{__name__}.{name}"})


def with_cache(node, **choices):
    return dataclasses.replace(testing.combine_choices(**choices), cache=node)


def with_rotary(name):
    return testing.combine_choices().with_changes(
        rotary={**make_node(name), "_partial_": True, "base": 100.0}
    )


MUTANTS = {
    "a mask that is one too wide": (with_kernel("sees_the_next"), "causality"),
    "a mask that is one too narrow": (with_kernel("misses_itself"), "kernel_matches_reference"),
    "a window that is one too wide": (
        with_kernel("misses_itself", mask="window"),
        "kernel_matches_reference",
    ),
    "a mask after the softmax": (with_kernel("masks_after_softmax"), "causality"),
    "a transposed mask": (with_kernel("transposes_the_mask"), "causality"),
    "is_causal with a past": (with_kernel("causal_from_the_top_left"), "cache"),
    "rotation that starts again at decode": (with_rotary("starts_again"), "cache"),
    "queries turned, keys not": (with_rotary("turns_only_queries"), "rotation_is_relative"),
    "KV groups tiled, not repeated": (
        with_heads("tiled_groups", heads="gqa"),
        "grouped_heads_equal_repeated_heads",
    ),
    "scale by d, in the kernel": (with_kernel("forgets_the_scale"), "kernel_matches_reference"),
    "scale by d, in the layer": (with_heads("scaled_by_d"), "scale"),
    "blind rows that are not a number": (with_kernel("ignores_blind_rows"), "fully_masked_rows_are_zero"),
    "a kernel that ignores what it is asked for": (
        with_kernel("ignores_requested_outputs"),
        "kernel_returns_requested_outputs",
    ),
    "a kernel that falls back silently": (
        with_kernel("falls_back", kernel="sdpa", score="softcap"),
        "builds",
    ),
    "a cache that forgets a step": (with_cache(make_node("Forgetful")), "cache"),
    "a sliding-window cache smaller than the window": (
        with_cache({"_target_": "attnlab.attention.cache.SlidingWindowCache", "size": 3}, mask="window"),
        "cache",
    ),
    "half of the state counted": (with_heads("half_counted"), "state_size"),
    "values and keys swapped when absorbed": (with_heads("SwappedAbsorption", heads="mla"), "absorbed_heads"),
    "a sink that adds": (
        testing.combine_choices(epilogue="sinks").with_changes(
            epilogue=make_node("SinkWithValue", n_heads=6)
        ),
        "sink",
    ),
    "a bias of slots": (
        testing.combine_choices(position="none").with_changes(
            scores={"alibi": make_node("AlibiOfSlots", n_heads=6)}
        ),
        "left_padding",
    ),
}


def collect_failures(variant, invariant_names=None):
    """Collect the names of failed invariants."""
    outcomes = testing.evaluate_variant(variant, invariant_names)
    return {outcome.invariant for outcome in outcomes if outcome.status == "failed"}


@pytest.mark.parametrize("mistake", MUTANTS)
def test_dedicated_invariant_catches_mutant(mistake):
    """Without the error all invariants hold: `test_invariant_combinations.py` checks each value alone."""
    variant, invariant = MUTANTS[mistake]
    assert invariant in collect_failures(variant, {invariant}), (
        f"caught by {', '.join(collect_failures(variant)) or 'nothing'}"
    )


def test_smallest_failing_case_is_reported():
    (outcome,) = testing.evaluate_variant(with_cache(make_node("Forgetful")), {"cache"})
    assert outcome.detail.startswith("at T=5, B=1: chunks 4+1")
