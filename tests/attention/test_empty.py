"""No rows, or no tokens: an empty answer of the right shape, from every part, and a cache that goes on."""

import itertools

import pytest
import torch

from attnlab.attention.cache import DynamicCache, SlidingWindowCache, StaticCache
from attnlab.attention.epilogue import Gate, Sinks
from attnlab.attention.heads.differential import DifferentialHeads
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.flex import Flex
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.data import real
from attnlab.attention.masks.window import window
from attnlab.attention.rotary import Rope
from attnlab.attention.scaling import DynamicNtk
from attnlab.attention.scores.alibi import Alibi
from attnlab.attention.scores.log_length import log_length
from attnlab.attention.scores.relative import RelativeBias
from attnlab.attention.scores.softcap import softcap
from attnlab.model.recurrent import Recurrent
from attnlab.model.transformer import LearnedPositions, Mlp, SinusoidalPositions, Transformer

DIM = 24
HEADS = {
    "mha": lambda: GroupedHeads(DIM, 6, 6, None, False, False),
    "gqa": lambda: GroupedHeads(DIM, 6, 2, None, False, False),
    "gqa, qk_norm": lambda: GroupedHeads(DIM, 6, 2, None, False, False, qk_norm=True),
    "single": lambda: GroupedHeads(DIM, 1, 1, None, False, False),
    "tied": lambda: GroupedHeads(DIM, 6, 6, None, False, False, tied=True),
    "latent": lambda: LatentHeads(DIM, 6, 5, 2, 4, False, False),
    "absorbed": lambda: LatentHeads(DIM, 6, 5, 2, 4, False, False, absorbed=True),
    "differential": lambda: DifferentialHeads(DIM, 6, 2, None, False, False),
}
KERNELS = {"eager": lambda: eager, "sdpa": lambda: sdpa, "flex": Flex}
PARTS = {
    "nothing": lambda: {},
    "rope": lambda: {"rotary": Rope()},
    "alibi": lambda: {"scores": {"own": Alibi(6)}},
    "relative": lambda: {"scores": {"own": RelativeBias(6)}},
    "softcap": lambda: {"scores": {"own": softcap(3.0)}},
    "log_length": lambda: {"scores": {"own": log_length(4)}},
    "sinks": lambda: {"epilogue": Sinks(6)},
    "gate": lambda: {"epilogue": Gate(DIM, 6, 4)},
    "dynamic_ntk": lambda: {"rotary": Rope(scaling=DynamicNtk(8))},
}
EMPTY = {"no tokens": (2, 0), "no rows": (0, 5), "no rows of one": (0, 1), "nothing": (0, 0)}
CACHES = {
    "growing": DynamicCache,
    "static": lambda: StaticCache(12),
    "rolling": lambda: SlidingWindowCache(3),
}


@pytest.fixture(autouse=True)
def _forward_only():
    """As flex on a CPU wants it."""
    with torch.no_grad():
        yield


def hidden(rows, tokens):
    return torch.randn(rows, tokens, DIM, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("heads", HEADS)
def test_of_nothing_a_layer_makes_nothing(heads, kernel):
    for mask in (None, causal, window(3, keep=1)):
        layer = Attention(HEADS[heads](), KERNELS[kernel](), {"own": mask} if mask else None, rotary=Rope())
        for shape in EMPTY.values():
            x = hidden(*shape)
            assert layer(x).shape == x.shape
            assert layer(x, mask=real).shape == x.shape


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
def test_so_do_scores_rotations_and_epilogues(part, shape):
    for kernel in (eager, Flex()):
        layer = Attention(HEADS["gqa"](), kernel, {"causal": causal}, **PARTS[part]())
        assert layer(hidden(*shape)).shape == (*shape, DIM)
    attended = layer.attend(hidden(*shape), kernel=eager, need=("lse", "weights"))
    assert attended.lse.shape == (shape[0], 6, shape[1])
    assert attended.weights.shape == (shape[0], 6, shape[1], shape[1])


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(("heads", "kernel"), [*itertools.product(HEADS, ("eager", "sdpa")), ("gqa", "flex")])
def test_a_cache_takes_nothing_and_goes_on(heads, kernel, cache):
    layer = Attention(HEADS[heads](), KERNELS[kernel](), {"window": window(3)}, rotary=Rope())
    x, held, found = hidden(2, 6), CACHES[cache](), []
    for begin, end in ((0, 0), (0, 4), (4, 4), (4, 5), (5, 5), (5, 6)):
        found.append(layer(x[:, begin:end], cache=held))
        assert (found[-1].shape, len(held)) == ((2, end - begin, DIM), end)
    torch.testing.assert_close(torch.cat(found, dim=1), layer(x))
    of_no_rows = CACHES[cache]()
    for count in (5, 1, 0):
        assert layer(x[:0, :count], cache=of_no_rows).shape == (0, count, DIM)


@pytest.mark.parametrize("kernel", [eager, sdpa])
@pytest.mark.parametrize("heads", HEADS)
def test_nothing_can_be_trained_on(heads, kernel):
    layer = Attention(HEADS[heads](), kernel, {"causal": causal}, rotary=Rope())
    for shape in EMPTY.values():
        with torch.enable_grad():
            layer(hidden(*shape)).sum().backward()
    assert not any(weight.grad.any() for weight in layer.parameters() if weight.grad is not None)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("positions", [None, LearnedPositions(5, DIM), SinusoidalPositions(DIM)])
def test_a_model_gives_logits_of_no_tokens(positions, kernel):
    def mixer(layer):
        return Attention(HEADS["gqa"](), KERNELS[kernel](), {"causal": causal})

    built = Transformer(
        mixer, vocab_size=19, dim=DIM, n_layers=2, ffn_width=20, ffn=Mlp, norm=torch.nn.RMSNorm, bias=False,
        tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0, positions=positions,
    )  # fmt: skip
    for shape in EMPTY.values():
        tokens = torch.zeros(shape, dtype=torch.long)
        assert built(tokens).shape == (*shape, 19)
        where = torch.arange(shape[1]).expand(shape)  # of no rows too
        assert built(tokens, positions=where).shape == (*shape, 19)
        assert built(tokens, mask=real, caches=[DynamicCache() for _ in range(2)]).shape == (*shape, 19)


@pytest.mark.parametrize("cell", [torch.nn.LSTM, torch.nn.GRU])
@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
def test_so_does_a_recurrent_mixer(cell, shape):
    with torch.enable_grad():
        for mask in (None, real):
            found = Recurrent(cell, DIM, 7)(hidden(*shape), mask=mask)
            assert found.shape == (*shape, DIM)
            found.sum().backward()
