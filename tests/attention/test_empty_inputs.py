"""Empty inputs: without rows or tokens every part returns an empty output, and caches continue."""

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
from attnlab.attention.masks.data_masks import non_padding
from attnlab.attention.masks.window import window
from attnlab.attention.rotary import Rope
from attnlab.attention.rotary_scaling import DynamicNtk
from attnlab.attention.scores.alibi import Alibi
from attnlab.attention.scores.log_length import log_length
from attnlab.attention.scores.relative import RelativeBias
from attnlab.attention.scores.softcap import softcap
from attnlab.model.recurrent import RecurrentMixer
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
    "dynamic": DynamicCache,
    "static": lambda: StaticCache(12),
    "sliding": lambda: SlidingWindowCache(3),
}


@pytest.fixture(autouse=True)
def _forward_only():
    """Disable gradients: flex has no backward pass on a CPU."""
    with torch.no_grad():
        yield


def make_hidden(rows, tokens):
    return torch.randn(rows, tokens, DIM, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("heads", HEADS)
def test_layer_maps_empty_input_to_empty_output(heads, kernel):
    for mask in (None, causal, window(3, keep=1)):
        layer = Attention(HEADS[heads](), KERNELS[kernel](), {"own": mask} if mask else None, rotary=Rope())
        for shape in EMPTY.values():
            x = make_hidden(*shape)
            assert layer(x).shape == x.shape
            assert layer(x, mask=non_padding).shape == x.shape


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
def test_scores_rotations_and_epilogues_accept_empty_input(part, shape):
    for kernel in (eager, Flex()):
        layer = Attention(HEADS["gqa"](), kernel, {"causal": causal}, **PARTS[part]())
        assert layer(make_hidden(*shape)).shape == (*shape, DIM)
    output = layer.attend(make_hidden(*shape), kernel=eager, need=("lse", "weights"))
    assert output.lse.shape == (shape[0], 6, shape[1])
    assert output.weights.shape == (shape[0], 6, shape[1], shape[1])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(("heads", "kernel"), [*itertools.product(HEADS, ("eager", "sdpa")), ("gqa", "flex")])
def test_cache_continues_after_empty_chunks(heads, kernel, cache):
    layer = Attention(HEADS[heads](), KERNELS[kernel](), {"window": window(3)}, rotary=Rope())
    x, layer_cache, outputs = make_hidden(2, 6), CACHES[cache](), []
    for begin, end in ((0, 0), (0, 4), (4, 4), (4, 5), (5, 5), (5, 6)):
        outputs.append(layer(x[:, begin:end], cache=layer_cache))
        assert (outputs[-1].shape, len(layer_cache)) == ((2, end - begin, DIM), end)
    torch.testing.assert_close(torch.cat(outputs, dim=1), layer(x))
    rowless_cache = CACHES[cache]()
    for count in (5, 1, 0):
        assert layer(x[:0, :count], cache=rowless_cache).shape == (0, count, DIM)


@pytest.mark.parametrize("kernel", [eager, sdpa])
@pytest.mark.parametrize("heads", HEADS)
def test_backward_on_empty_input_gives_no_gradient(heads, kernel):
    layer = Attention(HEADS[heads](), kernel, {"causal": causal}, rotary=Rope())
    for shape in EMPTY.values():
        with torch.enable_grad():
            layer(make_hidden(*shape)).sum().backward()
    assert not any(weight.grad.any() for weight in layer.parameters() if weight.grad is not None)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("positions", [None, LearnedPositions(5, DIM), SinusoidalPositions(DIM)])
def test_model_returns_empty_logits(positions, kernel):
    def mixer(layer):
        return Attention(HEADS["gqa"](), KERNELS[kernel](), {"causal": causal})

    model = Transformer(
        mixer, vocab_size=19, dim=DIM, n_layers=2, ffn_width=20, ffn=Mlp, norm=torch.nn.RMSNorm, bias=False,
        tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0, positions=positions,
    )  # fmt: skip
    for shape in EMPTY.values():
        tokens = torch.zeros(shape, dtype=torch.long)
        assert model(tokens).shape == (*shape, 19)
        position_ids = torch.arange(shape[1]).expand(shape)  # without rows too
        assert model(tokens, positions=position_ids).shape == (*shape, 19)
        assert model(tokens, mask=non_padding, caches=[DynamicCache() for _ in range(2)]).shape == (
            *shape,
            19,
        )


@pytest.mark.parametrize("cell", [torch.nn.LSTM, torch.nn.GRU])
@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
def test_recurrent_mixer_accepts_empty_input(cell, shape):
    with torch.enable_grad():
        for mask in (None, non_padding):
            output = RecurrentMixer(cell, DIM, 7)(make_hidden(*shape), mask=mask)
            assert output.shape == (*shape, DIM)
            output.sum().backward()
