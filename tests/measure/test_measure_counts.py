"""Counted costs equal the formulas; bytes grow as they should. Exact, and the same on every machine."""

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
from attnlab.attention.past.forgetting import Forgetting
from attnlab.attention.rotary import Rope
from attnlab.attention.selection import Blocks
from attnlab.measure import counts
from attnlab.model.transformer import Mlp, Transformer

PROMPT, NEW = 3, 4


class Own(torch.nn.Module):
    """One head as wide as the model, whose values are made anew from its keys; of no class of ours."""

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


def model(heads, kernel=eager, mask=causal, epilogue=None):
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
    "of one's own": lambda: Own(12),
}
CACHES = {"none": None, "growing": DynamicCache, "static": lambda: StaticCache(PROMPT + NEW)}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("heads", HEADS)
def test_counting_and_formula_agree(heads, cache):
    built, make_cache = model(HEADS[heads]), CACHES[cache]
    prompt = torch.zeros(3, PROMPT, dtype=torch.long)
    assert counts.counted(built, prompt, NEW, make_cache) == counts.formula(
        built, 3, PROMPT, NEW, make_cache is not None
    )


def test_heads_that_a_gate_keeps_from_reading_their_cache_as_it_is_are_counted_so():
    built = model(HEADS["mla"], epilogue=lambda: Gate(12, 6, 2))
    prompt = torch.zeros(1, PROMPT, dtype=torch.long)
    assert counts.counted(built, prompt, NEW, DynamicCache) == counts.formula(built, 1, PROMPT, NEW, True)


@pytest.mark.parametrize("new", [3, 1])
@pytest.mark.parametrize(("heads", "absorbed"), [*((name, False) for name in HEADS), ("mla", True)])
def test_the_flops_that_heads_tell_are_those_that_torch_counts(heads, absorbed, new):
    layer = Attention(HEADS[heads](), eager, {"causal": causal})
    if absorbed:
        layer.heads.absorbed = True
    past, cache = 7 - new, DynamicCache()
    layer(torch.zeros(2, past, 12), cache=cache)
    with FlopCounterMode(display=False) as counter:
        layer(torch.zeros(2, new, 12), cache=cache)
    assert counter.get_total_flops() == 2 * layer.heads.flops(new, 7, absorbed)


@pytest.mark.parametrize("heads", ["mha", "gqa"])
def test_choosing_blocks_scores_the_features_of_forgetting_too(heads):
    layer = Attention(
        HEADS[heads](), eager, {"causal": causal}, forgetting=Forgetting(12, 6), selection=Blocks(2, 2)
    )
    with FlopCounterMode(display=False) as counter:
        layer(torch.zeros(2, 7, 12))
    assert counter.get_total_flops() == 2 * layer.flops(7, 7)


def test_a_thousand_tokens_take_500500_projections_without_a_cache_and_1000_with_one():
    made = {cached: counts.passes(1, 1000, cached) for cached in (False, True)}
    assert {cached: sum(new for new, _ in steps) for cached, steps in made.items()} == {
        False: 500_500,
        True: 1000,
    }
    assert sum(new * held for new, held in made[True]) == 500_500  # query-key products, per head and layer


@pytest.mark.parametrize("heads", ["mha", "gqa", "mla", "tied"])  # others make more of what they keep
def test_a_step_reads_the_bytes_that_are_stored(heads):
    built = model(HEADS[heads])
    read = counts.counted(built, torch.zeros(1, PROMPT, dtype=torch.long), NEW, DynamicCache).read
    assert read == counts.bytes_per_step(built, PROMPT + NEW - 1)["cache"]


def test_a_rolling_window_reads_no_more_than_its_window():
    built = model(HEADS["gqa"], mask=window(3))
    reads = {
        new: counts.counted(
            built, torch.zeros(1, PROMPT, dtype=torch.long), new, lambda: SlidingWindowCache(3)
        ).read
        for new in (2, 7)
    }
    assert reads[2] == reads[7] == 4 * built.state_size()  # the window and the token before it is dropped


def test_weights_read_are_all_but_the_embedding():
    built = model(HEADS["mha"])
    everything = sum(p.numel() for p in built.parameters()) * 4
    assert counts.bytes_per_step(built, 0) == {"weights": everything - 17 * 12 * 4, "cache": 0}


@pytest.mark.parametrize(("kernel", "order"), [(eager, 2), (sdpa, 1)])
def test_saved_bytes_grow_with_this_power_of_the_length(kernel, order):
    layer = Attention(HEADS["mha"](), kernel, {"causal": causal})
    lengths = [64, 128, 192, 256, 320]
    saved = counts.saved_by_length(layer, 12, lengths)
    for _ in range(order):  # differences of this order are constant and positive
        saved = [later - earlier for earlier, later in itertools.pairwise(saved)]
    assert min(saved) > 0
    assert len(set(saved)) == 1


def test_exponents_of_saved_bytes():
    def exponent(kernel):
        layer = Attention(HEADS["mha"](), kernel, {"causal": causal})
        short, long = counts.saved_by_length(layer, 12, [512, 1024])
        return math.log2(long / short)

    assert exponent(eager) > 1.9
    assert exponent(sdpa) == pytest.approx(1, abs=0.01)
