"""GPU requirements of a decoding step, tested on a CPU.

A step writes only to memory at fixed addresses, creates no tensor on another device and reads no value back.
"""

import copy
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn

from attnlab.attention.cache import StaticCache
from attnlab.attention.contracts import Unsupported
from attnlab.model.generation import Decoder
from attnlab.testing.invariants.variant_composition import combine_choices, list_options

AXES = (
    "model", "heads", "position", "convolution", "keys", "score", "normalizer", "mask", "epilogue", "values",
    "layers", "block", "residual",
)  # fmt: skip
READS_VALUES = {
    f"mask={name}" for name in ("moba", "random_blocks", "top_tokens", "indexed_tokens", "indexed_blocks")
}  # a cached step reads the current number of blocks
PROMPTS = ([3, 1, 4, 1, 5], [2, 2, 6])
RARE = [pytest.param(each, marks=pytest.mark.rare) for each in ("convolution=kv", "score=forget")]


def make_model(choice: str, kernel: str = "eager") -> nn.Module:
    """Make a deep copy of the model, because `combine_choices` shares the parts of a variant."""
    return copy.deepcopy(combine_choices(**dict([choice.split("=")]), kernel=kernel).make_model())


@pytest.fixture
def make_decoder(monkeypatch):
    """Function of a choice: a decoder whose compiled step runs uncompiled, and the model."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)

    def make(choice: str) -> tuple[Decoder, nn.Module]:
        model = make_model(choice)
        return Decoder(model, partial(StaticCache, 32), compile=True), model

    return make


def get_written_addresses(decoder: Decoder) -> list[int]:
    """Return the addresses of the tensors that decoding steps write to."""
    [caches] = decoder._reusable_caches.values()
    tensors = [
        tensor
        for layer in caches.layers
        for tensor in (*layer.state, layer.positions, *layer.carried.values())
    ]
    return [tensor.data_ptr() for tensor in (caches.slot, caches.position, *tensors)]


@pytest.mark.parametrize("choice", ["heads=gqa", *RARE])
def test_generations_reuse_the_same_addresses(choice, make_decoder):
    decoder, model = make_decoder(choice)
    for prompts, new in ((PROMPTS, 6), (PROMPTS[::-1], 9), ([[7, 7, 7], [1]], 4)):
        before = get_written_addresses(decoder) if decoder._reusable_caches else None
        expected = Decoder(model, None).generate(prompts, new)
        assert torch.equal(decoder.generate(prompts, new), expected)
        assert before in (None, get_written_addresses(decoder))
    assert torch.equal(decoder.generate(PROMPTS[:1], 6), Decoder(model, None).generate(PROMPTS[:1], 6))
    assert len(decoder._reusable_caches) == 1, "only the caches of the last generation"


def test_concurrent_generations_have_separate_caches(make_decoder):
    decoder, model = make_decoder("heads=gqa")
    decoder.generate(PROMPTS, 3)
    expected = [Decoder(model, None).generate(prompts, 6)[:, 5:] for prompts in (PROMPTS, PROMPTS[::-1])]
    pairs = zip(decoder.stream_tokens(PROMPTS, 6), decoder.stream_tokens(PROMPTS[::-1], 6), strict=True)
    actual = [torch.cat(tokens, dim=1) for tokens in zip(*pairs, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("choice", ["heads=gqa", *RARE])
def test_graph_writes_only_to_static_inputs(choice, monkeypatch):
    """For other writes torch silently records no CUDA graph."""
    compile_function, input_types = torch.compile, []

    def collect_writes(graph: torch.fx.GraphModule, _inputs: list) -> object:
        for node in graph.graph.nodes:
            if node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__"):
                [source] = [argument for argument in node.args if isinstance(argument, torch.fx.Node)][:1]
                while (
                    source.op != "placeholder" and source.args and isinstance(source.args[0], torch.fx.Node)
                ):
                    source = source.args[0]  # follow views to their base
                if source.op == "placeholder":
                    input_types.append(source.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))
        return graph.forward

    graphs = partial(compile_function, backend=collect_writes, fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda function, **options: graphs(function))
    Decoder(make_model(choice), partial(StaticCache, 32), compile=True).generate(PROMPTS, 3)
    assert len(input_types) >= 3
    assert set(input_types) == {"unguarded"}


@pytest.mark.rare
@pytest.mark.parametrize("axis", AXES)
def test_step_stays_on_its_device_and_reads_no_value(axis):
    """On the device `meta`, reading a value fails, and so does mixing with tensors on the CPU."""
    tokens, newest = (torch.zeros(2, length, dtype=torch.long, device="meta") for length in (12, 1))
    reading_choices = set()
    for choice in (f"{axis}={option}" for option in list_options(axis)):
        for kernel in ("eager", "sdpa"):
            model = make_model(choice, kernel).to("meta")
            with suppress(Unsupported):
                model(tokens).sum().backward()
            decoder = Decoder(model, partial(StaticCache, 16))
            with suppress(Unsupported), torch.inference_mode(), decoder._acquire_caches(2, False) as caches:
                try:
                    _logits, advance = decoder._prefill(tokens, None, 3, caches)
                    advance(newest)
                except RuntimeError as error:
                    if "item() cannot be called on meta" not in str(error):
                        raise
                    reading_choices.add(choice)
    assert reading_choices == {choice for choice in READS_VALUES if choice.startswith(f"{axis}=")}
