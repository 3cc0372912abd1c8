"""The laws that only a GPU can break: kernels in its precisions, and steps that were captured as graphs."""

import copy
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from attnlab import testing
from attnlab.attention.cache import StaticCache
from attnlab.attention.contracts import Unsupported
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.flex import Flex
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.model.generation import Decoder
from attnlab.testing.laws.compose import options

SIZES = ("model.dim=128", "model.n_heads=4", "data.length=128")
AXES = ("heads", "position", "convolution", "score", "normaliser", "mask", "epilogue")
EVERY = [f"{axis}={value}" for axis in AXES for value in options(axis)]
COMPILED = [  # a kind of score and a kind of mask each: compiling takes seconds
    "heads=mha", "heads=gqa", "heads=mla", "position=alibi", "position=relative", "score=softcap",
    "score=forget", "mask=window", "mask=window_sinks", "mask=prefix", "epilogue=sinks",
]  # fmt: skip
OFF = {"32-true": 1e-4, "bf16-mixed": 5e-2}  # of the largest value, by what runs call their precision


def layer_of(choice):
    """A layer of four heads of 32, its weights drawn, and an input: [2, 128, 128]."""
    [variant] = testing.composed([choice, *SIZES])
    generator = torch.Generator().manual_seed(0)
    return variant.layer(), torch.randn(2, 128, 128, dtype=torch.float64, generator=generator)


def passed(layer, x, mixed=False):
    """The output, and the gradients of a weighted sum of it by the input and all matrices, as float64 on the
    CPU. Those by gains and biases are small sums of large terms, of which 16 bits tell little.
    """
    x = x.detach().requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=mixed):
        out = layer(x)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out).to(out)
    (out * weights).sum().backward()
    told = {"output": out, "gradient of the input": x.grad}
    told |= {f"gradient of {name}": each.grad for name, each in layer.named_parameters() if each.ndim > 1}
    return {name: each.detach().double().cpu() for name, each in told.items() if each is not None}


def agree(choice, kernel, precision, card):
    if (choice, precision) == ("mask=moba", "bf16-mixed"):
        pytest.skip("scores in 16 bits choose other blocks")
    layer, x = layer_of(choice)
    there = copy.deepcopy(layer).to(card, torch.float32)
    layer.kernel, there.kernel = eager, kernel
    wanted = passed(layer, x)
    try:
        got = passed(there, x.to(card, torch.float32), precision == "bf16-mixed")
    except Unsupported as error:
        pytest.skip(str(error))
    for name, value in wanted.items():
        off, most = (got[name] - value).abs().max(), value.abs().max()
        assert off <= OFF[precision] * max(most, 1e-3), f"{name} is off by {off:.2g} of {most:.2g}"


@pytest.mark.filterwarnings(
    "ignore:Mismatch dtype between input and weight:UserWarning"
)  # of a norm of heads
@pytest.mark.parametrize("precision", OFF)
@pytest.mark.parametrize("kernel", [eager, sdpa], ids=["eager", "sdpa"])
@pytest.mark.parametrize("choice", EVERY)
def test_kernels_agree_with_float64(choice, kernel, precision, card):
    agree(choice, kernel, precision, card)


@pytest.mark.parametrize("choice", COMPILED)
def test_flex_agrees_with_float64(choice, card):
    agree(choice, Flex(), "bf16-mixed", card)


@pytest.mark.parametrize("choice", ["heads=gqa", "score=softcap"])
def test_flex_agrees_with_float64_in_float32(choice, card):
    agree(choice, Flex(), "32-true", card)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch.compile
@pytest.mark.parametrize(
    "choice",
    ["heads=mha", "heads=gqa", "heads=mqa", "heads=mla", "heads=gta", "position=alibi", "epilogue=gate"],
)
def test_a_captured_step_decodes_what_full_passes_do(choice, card):
    [variant] = testing.composed([choice, *SIZES])
    model = variant.model().float().to(card)
    prompt = variant.tokens()[:, :8].to(card)
    counters.clear()
    whole = Decoder(model, None).generate(prompt, 40)
    captured = Decoder(model, partial(StaticCache, 48), compile=True)
    assert torch.equal(captured.generate(prompt, 40), whole)
    assert torch.equal(captured.generate(prompt, 40), whole), "the second time, from the graph"
    assert not counters["inductor"]["cudagraph_skips"], "torch recorded no graph"
