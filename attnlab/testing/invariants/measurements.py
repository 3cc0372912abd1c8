"""Invariants of measurements: those of a run succeed, and declared costs equal counted ones."""

from dataclasses import replace
from typing import Any

import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import Unsupported
from attnlab.measure import resources
from attnlab.measure.attention_maps import compute_attention_maps
from attnlab.measure.generation_costs import count_generation_cost, predict_generation_cost
from attnlab.measure.head_scoring import compute_head_scores
from attnlab.testing.invariants.variant import Variant

COST_METHODS = ("flops", "read_width", "projection")


def check_measurements_succeed(variant: Variant) -> None:
    """22. All measurements of a run succeed: attention maps, head scores, parameters, FLOPs, cached bytes,
    and bytes saved for the backward pass.
    """
    model = variant.make_model().float()
    tokens = variant.make_tokens()[:1]
    compute_attention_maps(model, tokens)
    compute_head_scores(model, [tokens], variant.length)
    resources.count_parameters(model)
    resources.count_kv_bytes(model, tokens)
    with torch.device("meta"):
        meta_model = variant.make_model(seed=0).float()
    resources.count_flops_per_token(meta_model, variant.length)
    resources.count_saved_bytes(lambda: model(tokens).sum(), model)


def check_declared_costs_match_counts(variant: Variant) -> None:
    """22. The declared FLOPs of heads equal the counted FLOPs of generation, and heads read no more bytes
    than they declare: keys that are also values are read once. Products within rotations, scores and
    epilogues do not count.
    """
    changes: dict[str, Any] = {"epilogue": None, "rotary": None, "scores": {}}
    if variant.prototype.heads.n_heads == 1:
        changes["normalizer"] = None  # torch counts no mixture of one head
    model = variant.with_changes(**changes).make_model()
    prompt = torch.zeros(1, 5, dtype=torch.long)
    for make_cache in (None, DynamicCache):
        try:
            counted = count_generation_cost(model, prompt, 3, make_cache)
        except Unsupported:
            continue
        predicted = predict_generation_cost(model, 1, 5, 3, make_cache is not None)
        message = f"counted {counted}, but the heads declare {predicted}"
        projections = counted.projections or predicted.projections  # 0 if they use the weights alone
        counted = replace(counted, projections=projections)
        assert replace(counted, bytes_read=0) == replace(predicted, bytes_read=0), message
        assert counted.bytes_read <= predicted.bytes_read, message


def has_declared_costs(variant: Variant) -> bool:
    """Whether the heads declare their costs; only cost counts require it."""
    return variant.is_attention and all(hasattr(variant.prototype.heads, name) for name in COST_METHODS)
