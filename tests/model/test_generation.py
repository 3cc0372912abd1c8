"""Generation: caches change no logits, rows are independent, draws follow the probabilities."""

import functools

import pytest
import torch

from attnlab.attention.cache import DynamicCache, SlidingWindowCache, StaticCache
from attnlab.attention.contracts import Unsupported
from attnlab.attention.epilogue import ConvolutionEpilogue, ExclusiveEpilogue, Gate
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.data_masks import make_document_mask, make_padding_mask
from attnlab.attention.masks.window import window
from attnlab.attention.rotary import Rope
from attnlab.attention.rotary_scaling import DynamicNtk
from attnlab.attention.scores.alibi import Alibi
from attnlab.attention.stateful.forget_gate import ForgetGate
from attnlab.model import generation
from attnlab.model.generation import Decoder, Sampling, generate, pad_left
from attnlab.model.lean_copy import make_lean_copy
from attnlab.model.transformer import LearnedPositions, Mlp, Transformer
from attnlab.testing.invariants.variant import randomize

VOCABULARY, NEW = 19, 7
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5]]


def make_model(heads=None, kernel=sdpa, mask=causal, positions=None, scaling=None, **parts):
    def make_mixer(layer):
        layer_heads = heads() if heads else GroupedHeads(24, 6, 2, None, False, False)
        rotary = {"rotary": Rope(scaling=scaling)} if positions is None else {}
        return Attention(layer_heads, kernel, {"mask": mask}, **rotary, **{k: v() for k, v in parts.items()})

    transformer = Transformer(
        make_mixer, vocab_size=VOCABULARY, dim=24, n_layers=2, ffn_width=20, ffn=Mlp, norm=torch.nn.LayerNorm,
        bias=False, tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0, positions=positions,
    )  # fmt: skip
    return transformer.double().eval()


def make_latent_heads():
    return LatentHeads(24, 6, 5, 2, 4, False, False)


CACHES = {
    "dynamic": DynamicCache,
    "static": functools.partial(StaticCache, 12),
    "sliding": functools.partial(SlidingWindowCache, 4),
}
MODELS = {
    "grouped": make_model,
    "eager": functools.partial(make_model, kernel=eager),
    "biased": functools.partial(make_model, scores=lambda: {"alibi": Alibi(6)}),
    "latent": functools.partial(make_model, heads=make_latent_heads),
    "latent, gated": functools.partial(make_model, heads=make_latent_heads, epilogue=lambda: Gate(24, 6, 2)),
    "learned": functools.partial(make_model, positions=LearnedPositions(11, 24)),
    "exclusive": functools.partial(make_model, epilogue=ExclusiveEpilogue),
    "forgetting": functools.partial(make_model, forgetting=lambda: randomize(ForgetGate(24, 6))),
    "forgetting, latent": functools.partial(
        make_model, make_latent_heads, forgetting=lambda: randomize(ForgetGate(24, 6))
    ),
    "convolved": functools.partial(
        make_model,
        lambda: randomize(GroupedHeads(24, 6, 2, None, False, False, convolution=4)),
        epilogue=lambda: randomize(ConvolutionEpilogue(6, 4, 3)),
    ),
}


class Recorder:
    """Greedy sampling that stores the logits of every step."""

    def __init__(self):
        self.logits = []

    def draw_uniform(self, rows, count):
        return None

    def sample_tokens(self, logits, draw):
        self.logits.append(logits)
        return logits.argmax(-1, keepdim=True)


def generate_with_logits(decoder, prompts=PROMPTS, new=NEW):
    recorder = Recorder()
    tokens = decoder.generate(prompts, new, recorder)
    return tokens, torch.stack(recorder.logits)


@pytest.fixture
def stub_compile(monkeypatch):
    """Run the compiled step's cache path without the minute of compilation."""
    monkeypatch.setattr(generation, "SPAN", 8)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompts", [PROMPTS, [PROMPTS[0], PROMPTS[2] + [7]]], ids=["unequal", "equal"])
def test_cached_logits_equal_uncached_logits(name, cache, prompts):
    options = {"mask": window(4)} if cache == "sliding" else {}
    model = MODELS[name](**options)
    tokens, logits = generate_with_logits(Decoder(model, CACHES[cache]), prompts)
    expected, reference = generate_with_logits(Decoder(model, None), prompts)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["unequal", "one"])
def test_compiled_step_gives_equal_logits(name, prompts, stub_compile):
    model = MODELS[name]()
    tokens, logits = generate_with_logits(Decoder(model, CACHES["static"], compile=True), prompts)
    expected, reference = generate_with_logits(Decoder(model, None), prompts)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["unequal", "one"])
def test_chunked_prefill_gives_equal_logits(name, prompts):
    model = MODELS[name]()
    decoder = Decoder(model, CACHES["static"])
    decoder.prefill_chunk = 2
    tokens, logits = generate_with_logits(decoder, prompts)
    expected, reference = generate_with_logits(Decoder(model, None), prompts)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "name", ["grouped", *(pytest.param(name, marks=pytest.mark.rare) for name in ("forgetting", "convolved"))]
)
def test_compiled_step_is_one_graph(name, monkeypatch):
    """torch traces the step; the backend "eager" needs no C++ compiler."""
    graphs = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda function, **options: graphs(function))
    monkeypatch.setattr(generation, "SPAN", 8)
    model = MODELS[name]()
    tokens = Decoder(model, CACHES["static"], compile=True).generate(PROMPTS, NEW)
    assert torch.equal(tokens, generate(model, PROMPTS, NEW, DynamicCache))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_cuda_graphs_give_equal_tokens():
    model = make_model().float().cuda()
    decoder = Decoder(model, CACHES["static"], compile=True)
    first, second = (decoder.generate(PROMPTS, NEW) for _ in range(2))
    assert torch.equal(first, generate(model, PROMPTS, NEW, DynamicCache))
    assert torch.equal(first, second)


@pytest.mark.parametrize("cache", [None, *CACHES])
def test_batched_rows_equal_single_generations(cache):
    model = make_model(mask=window(4))
    tokens = generate(model, PROMPTS, NEW, CACHES.get(cache))
    for row, prompt in enumerate(PROMPTS):
        single = generate(model, [prompt], NEW, CACHES.get(cache))
        assert torch.equal(tokens[row, -len(single[0]) :], single[0])


@torch.no_grad()
def test_rotation_by_the_longest_row_accepts_rows_of_equal_length_only():
    """The factor of dynamic NTK would be that of the longest row, also for shorter and packed ones."""
    model = make_model(scaling=DynamicNtk(3))
    prompts = torch.tensor([PROMPTS[0], PROMPTS[0][::-1]])
    alone = [generate(model, row[None], NEW, None) for row in prompts]
    assert torch.equal(generate(model, prompts, NEW, None), torch.cat(alone))
    documents = make_document_mask(torch.tensor([[0, 0, 1, 1, 1]]))
    for call in (
        lambda: generate(model, PROMPTS, NEW, None),
        lambda: model(prompts, mask=make_padding_mask(torch.tensor([5, 3]))),
        lambda: model(prompts[:1], mask=documents),
        lambda: model(prompts, positions=torch.arange(5) - torch.tensor([[0], [2]])),
    ):
        with pytest.raises(Unsupported, match="the longest row, so padded and packed rows would change"):
            call()
    assert make_model()(prompts[:1], mask=documents).isfinite().all()


def test_streamed_tokens_equal_generate():
    model = make_model()
    streamed = torch.cat(list(Decoder(model, DynamicCache).stream_tokens(PROMPTS, NEW)), dim=1)
    assert torch.equal(streamed, generate(model, PROMPTS, NEW, DynamicCache)[:, -NEW:])


def test_latent_heads_are_absorbed_in_the_step_model_only():
    model = make_model(make_latent_heads, eager)
    decoder = Decoder(model, DynamicCache)
    assert [block.mixer.heads.absorbed for block in decoder.step_model.blocks] == [True, True]
    assert not any(block.mixer.heads.absorbed for block in model.blocks)


def test_decoder_shares_column_major_copies_and_keeps_the_model():
    model = make_model()
    decoder = Decoder(model, DynamicCache)
    assert decoder.model.head.weight is decoder.step_model.head.weight
    assert decoder.step_model.head.weight.t().is_contiguous()
    assert model.head.weight.is_contiguous()
    assert torch.equal(decoder.step_model.head.weight, model.head.weight)


def test_sampling_frequencies_equal_probabilities():
    probability = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2], dtype=torch.float64)
    draws = (torch.arange(1000, dtype=torch.float64)[:, None] + 0.5) / 1000
    logits = probability.log().expand(1000, -1)

    def measure_frequencies(**options):
        tokens = Sampling(temperature=1.0, **options).sample_tokens(logits, draws)
        return (torch.bincount(tokens.flatten(), minlength=5) / 1000).tolist()

    assert measure_frequencies() == pytest.approx([0.1, 0.4, 0.05, 0.25, 0.2])
    assert measure_frequencies(top_k=2) == pytest.approx([0, 0.615, 0, 0.385, 0], abs=1e-3)
    assert measure_frequencies(top_p=0.65) == pytest.approx([0, 0.615, 0, 0.385, 0], abs=1e-3)
    assert measure_frequencies(top_p=0.66) == pytest.approx([0, 0.471, 0, 0.294, 0.235], abs=1e-3)
    assert measure_frequencies(top_p=1e-9) == [0, 1, 0, 0, 0]
    assert measure_frequencies(top_k=9) == measure_frequencies()
    # half the temperature squares the odds
    tokens = Sampling(temperature=0.5).sample_tokens(logits, draws).flatten()
    squares = (probability**2 / (probability**2).sum()).tolist()
    assert (torch.bincount(tokens, minlength=5) / 1000).tolist() == pytest.approx(squares, abs=1e-3)


def test_draws_depend_only_on_seed_and_row():
    model = make_model()

    def sample(prompts, seed):
        return generate(model, prompts, NEW, DynamicCache, Sampling(temperature=2.0, seed=seed))[:, -NEW:]

    assert torch.equal(sample(PROMPTS, 5), sample(PROMPTS, 5))
    assert torch.equal(sample(PROMPTS, 5)[:1], sample(PROMPTS[:1], 5))
    assert not torch.equal(sample(PROMPTS, 5), sample(PROMPTS, 6))
    rows = sample([PROMPTS[0], PROMPTS[0]], 5)
    assert not torch.equal(rows[0], rows[1])


def test_stopped_rows_repeat_their_stop_token_until_all_stop():
    model = make_model()
    free = generate(model, PROMPTS, NEW, DynamicCache)[:, -NEW:]
    stop = [free[0, 1].item(), free[1, 3].item(), free[2, 2].item()]
    tokens = generate(model, PROMPTS, NEW, DynamicCache, stop=stop)[:, 5:]
    ends = [next(n for n, token in enumerate(row) if token in stop) for row in free.tolist()]
    assert tokens.shape[1] == max(ends) + 1
    for row, end in enumerate(ends):
        assert tokens[row, : end + 1].tolist() == free[row, : end + 1].tolist()
        assert set(tokens[row, end:].tolist()) == {free[row, end].item()}


def test_unequal_prompts_are_left_padded_at_negative_positions():
    tokens, positions = pad_left([[7, 8, 9], [5]])
    assert tokens.tolist() == [[7, 8, 9], [0, 0, 5]]
    assert positions.tolist() == [[0, 1, 2], [-2, -1, 0]]
    assert pad_left([[1], [2]])[1] is None


def test_generation_uses_all_learned_positions_and_no_more():
    model = make_model(positions=LearnedPositions(8, 24))
    assert generate(model, [[1, 2, 3]], 6, DynamicCache).shape == (1, 9)  # the last token needs no position
    with pytest.raises(ValueError, match="need 9 positions, but the model has 8 learned"):
        generate(model, [[1, 2, 3]], 7, DynamicCache)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("prompt is empty", lambda: generate(make_model(), [], 3, DynamicCache)),
        ("prompt is empty", lambda: generate(make_model(), [[1], []], 3, DynamicCache)),
        (
            "prompt is empty",
            lambda: generate(make_model(), torch.zeros(1, 0, dtype=torch.long), 3, DynamicCache),
        ),
        ("new_tokens=0", lambda: generate(make_model(), [[1]], 0, DynamicCache)),
        ("outside the vocabulary of 19", lambda: generate(make_model(), [[19]], 3, DynamicCache)),
        ("static cache of 4", lambda: generate(make_model(), [[1, 2]], 4, functools.partial(StaticCache, 4))),
        ("use decode=static", lambda: Decoder(make_model(), DynamicCache, compile=True)),
        ("temperature=-1", lambda: Sampling(temperature=-1)),
        ("temperature=nan", lambda: Sampling(temperature=float("nan"))),
        ("top_k=0", lambda: Sampling(top_k=0)),
        ("top_p=0", lambda: Sampling(top_p=0)),
        ("top_p=1.5", lambda: Sampling(top_p=1.5)),
    ],
)
def test_invalid_generation_arguments_raise(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def test_lean_copy_gives_equal_logits_shares_tensors_and_calls_hooks():
    model, x = make_model(), torch.tensor([PROMPTS[0]])
    hook_calls = []
    model.blocks[1].mixer.heads.qkv.register_forward_pre_hook(
        lambda module, inputs: hook_calls.append(module)
    )
    copy = make_lean_copy(model)
    assert torch.equal(copy(x), model(x))
    assert len(hook_calls) == 2
    assert copy.head.weight is model.head.weight
    assert {type(module).__name__ for module in copy.modules()} == {
        type(module).__name__ for module in model.modules()
    }
