"""Counted costs equal the formulas, exactly and on every machine; saved bytes grow with the right power."""

import itertools
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.cache import DynamicCache, SlidingWindowCache, StaticCache
from attnlab.attention.epilogue import Gate
from attnlab.attention.heads.differential import DifferentialHeads
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.window import window
from attnlab.attention.rotary import Rope
from attnlab.attention.selection import BlockSelection
from attnlab.attention.stateful.forget_gate import ForgetGate
from attnlab.measure import generation_costs
from attnlab.model.transformer import Mlp, Transformer

PROMPT, NEW = 3, 4


class CustomHeads(torch.nn.Module):
    """One head as wide as the model, whose values are recomputed from its keys; a user-defined class."""

    n_heads = n_kv_heads = 1

    def __init__(self, dim):
        super().__init__()
        self.dim = self.score_dim = self.rope_dim = dim
        self.projection = torch.nn.Linear(dim, dim, bias=False)
        self.values = torch.nn.Linear(dim, dim, bias=False)

    def project(self, x, rotate):
        x = self.projection(x)[:, None]
        return x, (x,)

    def expand(self, state):
        return state[0], self.values(state[0])

    def merge(self, y):
        return y[:, 0]

    def state_size(self):
        return 4 * self.dim

    def flops(self, new, held, absorbed=False):
        return 2 * self.dim * (new * self.dim + held * self.dim + 2 * new * held)

    def read_width(self, absorbed=False):
        return 2 * self.dim


def build_model(heads, kernel=eager, mask=causal, epilogue=None):
    def mixer(layer):
        return Attention(heads(), kernel, {"mask": mask}, rotary=Rope(), epilogue=epilogue and epilogue())

    return Transformer(
        mixer, vocab_size=17, dim=12, n_layers=2, ffn_width=20, ffn=Mlp, norm=torch.nn.LayerNorm,
        bias=False, tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0,
    ).eval()  # fmt: skip


HEADS = {
    "mha": lambda: GroupedHeads(12, 6, 6, None, False, False),
    "gqa": lambda: GroupedHeads(12, 6, 2, None, False, False),
    "mla": lambda: LatentHeads(12, 6, 5, 2, 4, False, False),
    "tied": lambda: GroupedHeads(12, 6, 6, None, False, False, tied=True),
    "differential": lambda: DifferentialHeads(12, 6, 2, None, False, False),
    "of one's own": lambda: CustomHeads(12),
}
CACHES = {"none": None, "dynamic": DynamicCache, "static": lambda: StaticCache(PROMPT + NEW)}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("heads", HEADS)
def test_counted_costs_equal_the_formula(heads, cache):
    model, make_cache = build_model(HEADS[heads]), CACHES[cache]
    prompt = torch.zeros(3, PROMPT, dtype=torch.long)
    assert generation_costs.count_generation_cost(
        model, prompt, NEW, make_cache
    ) == generation_costs.predict_generation_cost(model, 3, PROMPT, NEW, make_cache is not None)


def test_gated_heads_without_absorption_are_counted_correctly():
    model = build_model(HEADS["mla"], epilogue=lambda: Gate(12, 6, 2))
    prompt = torch.zeros(1, PROMPT, dtype=torch.long)
    assert generation_costs.count_generation_cost(
        model, prompt, NEW, DynamicCache
    ) == generation_costs.predict_generation_cost(model, 1, PROMPT, NEW, True)


@pytest.mark.parametrize("new", [3, 1])
@pytest.mark.parametrize(("heads", "absorbed"), [*((name, False) for name in HEADS), ("mla", True)])
def test_flops_of_heads_equal_torchs_count(heads, absorbed, new):
    layer = Attention(HEADS[heads](), eager, {"causal": causal})
    if absorbed:
        layer.heads.absorbed = True
    cached_tokens, cache = 7 - new, DynamicCache()
    layer(torch.zeros(2, cached_tokens, 12), cache=cache)
    with FlopCounterMode(display=False) as counter:
        layer(torch.zeros(2, new, 12), cache=cache)
    assert counter.get_total_flops() == 2 * layer.heads.flops(new, 7, absorbed)


@pytest.mark.parametrize("heads", ["mha", "gqa"])
def test_flops_of_block_selection_include_the_forget_gate(heads):
    layer = Attention(
        HEADS[heads](),
        eager,
        {"causal": causal},
        forgetting=ForgetGate(12, 6),
        selection=BlockSelection(2, 2),
    )
    with FlopCounterMode(display=False) as counter:
        layer(torch.zeros(2, 7, 12))
    assert counter.get_total_flops() == 2 * layer.flops(7, 7)


def test_1000_tokens_take_500500_projections_uncached_and_1000_cached():
    passes = {cached: generation_costs.list_forward_passes(1, 1000, cached) for cached in (False, True)}
    assert {cached: sum(new for new, _ in steps) for cached, steps in passes.items()} == {
        False: 500_500,
        True: 1000,
    }
    assert sum(new * keys for new, keys in passes[True]) == 500_500  # query-key products, per head and layer


@pytest.mark.parametrize("heads", ["mha", "gqa", "mla", "tied"])  # other heads expand their cached tensors
def test_a_step_reads_the_cached_bytes(heads):
    model = build_model(HEADS[heads])
    bytes_read = generation_costs.count_generation_cost(
        model, torch.zeros(1, PROMPT, dtype=torch.long), NEW, DynamicCache
    ).bytes_read
    assert bytes_read == generation_costs.count_step_bytes(model, PROMPT + NEW - 1)["cache"]


def test_a_sliding_window_reads_no_more_than_its_window():
    model = build_model(HEADS["gqa"], mask=window(3))
    bytes_read = {
        new: generation_costs.count_generation_cost(
            model, torch.zeros(1, PROMPT, dtype=torch.long), new, lambda: SlidingWindowCache(3)
        ).bytes_read
        for new in (2, 7)
    }
    assert (
        bytes_read[2] == bytes_read[7] == 4 * model.state_size()
    )  # the window, and the oldest token before it is dropped


def test_a_step_reads_all_weights_but_the_embedding():
    model = build_model(HEADS["mha"])
    total_bytes = sum(p.numel() for p in model.parameters()) * 4
    assert generation_costs.count_step_bytes(model, 0) == {"weights": total_bytes - 17 * 12 * 4, "cache": 0}


@pytest.mark.parametrize(("kernel", "order"), [(eager, 2), (sdpa, 1)])
def test_saved_bytes_are_a_polynomial_of_this_order(kernel, order):
    layer = Attention(HEADS["mha"](), kernel, {"causal": causal})
    lengths = [64, 128, 192, 256, 320]
    saved = generation_costs.count_saved_bytes_by_length(layer, 12, lengths)
    for _ in range(order):  # differences of this order are constant and positive
        saved = [later - earlier for earlier, later in itertools.pairwise(saved)]
    assert min(saved) > 0
    assert len(set(saved)) == 1


def test_saved_bytes_grow_quadratically_in_eager_and_linearly_in_sdpa():
    def exponent(kernel):
        layer = Attention(HEADS["mha"](), kernel, {"causal": causal})
        short, long = generation_costs.count_saved_bytes_by_length(layer, 12, [512, 1024])
        return math.log2(long / short)

    assert exponent(eager) > 1.9
    assert exponent(sdpa) == pytest.approx(1, abs=0.01)
