"""What a GPU asks of a model, seen without one: a step writes only to memory that stays where it is, makes
nothing on another device, and waits for no number.
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
from attnlab.testing.laws.compose import combination, options

AXES = (
    "model", "heads", "position", "convolution", "score", "normaliser", "mask", "epilogue", "values",
    "layers", "block", "residual",
)  # fmt: skip
WAITS = {"mask=moba", "mask=random_blocks"}  # in a step through a cache: how many blocks there are by now
PROMPTS = ([3, 1, 4, 1, 5], [2, 2, 6])
RARE = [pytest.param(each, marks=pytest.mark.rare) for each in ("convolution=kv", "score=forget")]


def built(choice: str, kernel: str = "eager") -> nn.Module:
    """A model of its own; the parts of a variant are shared by all who ask for it."""
    return copy.deepcopy(combination(**dict([choice.split("=")]), kernel=kernel).model())


@pytest.fixture
def decoder(monkeypatch):
    """`decoder(choice)`: with a compiled step that is not compiled, and the model."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)

    def make(choice: str) -> tuple[Decoder, nn.Module]:
        model = built(choice)
        return Decoder(model, partial(StaticCache, 32), compile=True), model

    return make


def places(decoder: Decoder) -> list[int]:
    """Where what its steps write is."""
    [rooms] = decoder._held.values()
    written = [
        tensor for each in rooms.layers for tensor in (*each.state, each.positions, *each.carried.values())
    ]
    return [tensor.data_ptr() for tensor in (rooms.slot, rooms.at, *written)]


@pytest.mark.parametrize("choice", ["heads=gqa", *RARE])
def test_each_generation_writes_where_the_one_before_it_wrote(choice, decoder):
    made, model = decoder(choice)
    for prompts, new in ((PROMPTS, 6), (PROMPTS[::-1], 9), ([[7, 7, 7], [1]], 4)):
        before = places(made) if made._held else None
        wanted = Decoder(model, None).generate(prompts, new)
        assert torch.equal(made.generate(prompts, new), wanted)
        assert before in (None, places(made))
    assert torch.equal(made.generate(PROMPTS[:1], 6), Decoder(model, None).generate(PROMPTS[:1], 6))
    assert len(made._held) == 1, "the last ones only"


def test_two_generations_at_a_time_have_their_own_memory(decoder):
    made, model = decoder("heads=gqa")
    made.generate(PROMPTS, 3)
    wanted = [Decoder(model, None).generate(prompts, 6)[:, 5:] for prompts in (PROMPTS, PROMPTS[::-1])]
    both = zip(made.stream(PROMPTS, 6), made.stream(PROMPTS[::-1], 6), strict=True)
    got = [torch.cat(tokens, dim=1) for tokens in zip(*both, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("choice", ["heads=gqa", *RARE])
def test_a_graph_writes_only_to_what_stays_where_it_is(choice, monkeypatch):
    """Else torch records no CUDA graph, and says so in a log that nobody reads."""
    compiling, written = torch.compile, []

    def keep(graph: torch.fx.GraphModule, _inputs: list) -> object:
        for node in graph.graph.nodes:
            if node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__"):
                [given] = [each for each in node.args if isinstance(each, torch.fx.Node)][:1]
                while given.op != "placeholder" and given.args and isinstance(given.args[0], torch.fx.Node):
                    given = given.args[0]  # a view of it
                if given.op == "placeholder":
                    written.append(given.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))
        return graph.forward

    graphs = partial(compiling, backend=keep, fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda function, **options: graphs(function))
    Decoder(built(choice), partial(StaticCache, 32), compile=True).generate(PROMPTS, 3)
    assert len(written) >= 3
    assert set(written) == {"unguarded"}


@pytest.mark.rare
@pytest.mark.parametrize("axis", AXES)
def test_a_step_makes_nothing_elsewhere_and_waits_for_nothing(axis):
    """On the device `meta`, where tensors have no numbers: to ask for one fails, and so does what is made on
    the CPU beside it.
    """
    tokens, newest = (torch.zeros(2, length, dtype=torch.long, device="meta") for length in (12, 1))
    waits = set()
    for choice in (f"{axis}={option}" for option in options(axis)):
        for kernel in ("eager", "sdpa"):
            model = built(choice, kernel).to("meta")
            with suppress(Unsupported):
                model(tokens).sum().backward()
            decoder = Decoder(model, partial(StaticCache, 16))
            with suppress(Unsupported), torch.inference_mode(), decoder._rooms(2, False) as rooms:
                try:
                    _logits, advance = decoder._begin(tokens, None, 3, rooms)
                    advance(newest)
                except RuntimeError as error:
                    if "item() cannot be called on meta" not in str(error):
                        raise
                    waits.add(choice)
    assert waits == {choice for choice in WAITS if choice.startswith(f"{axis}=")}
