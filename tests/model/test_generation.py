"""Generation: caches change nothing, rows do not see each other, draws follow the probabilities."""

import functools

import pytest
import torch

from attnlab.attention.cache import DynamicCache, SlidingWindowCache, StaticCache
from attnlab.attention.epilogue import Convolved, Exclusive, Gate
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.window import window
from attnlab.attention.past.forgetting import Forgetting
from attnlab.attention.rotary import Rope
from attnlab.attention.scores.alibi import Alibi
from attnlab.model import generation
from attnlab.model.generation import Decoder, Sampling, generate, left_padded
from attnlab.model.lean import lean
from attnlab.model.transformer import LearnedPositions, Mlp, Transformer
from attnlab.testing.laws.variant import randomised

VOCABULARY, NEW = 19, 7
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5]]


def model(heads=None, kernel=sdpa, mask=causal, positions=None, **parts):
    def mixer(layer):
        own = heads() if heads else GroupedHeads(24, 6, 2, None, False, False)
        turning = {"rotary": Rope()} if positions is None else {}
        return Attention(own, kernel, {"mask": mask}, **turning, **{k: v() for k, v in parts.items()})

    built = Transformer(
        mixer, vocab_size=VOCABULARY, dim=24, n_layers=2, ffn_width=20, ffn=Mlp, norm=torch.nn.LayerNorm,
        bias=False, tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0, positions=positions,
    )  # fmt: skip
    return built.double().eval()


def latent():
    return LatentHeads(24, 6, 5, 2, 4, False, False)


CACHES = {
    "growing": DynamicCache,
    "static": functools.partial(StaticCache, 12),
    "rolling": functools.partial(SlidingWindowCache, 4),
}
MODELS = {
    "grouped": model,
    "eager": functools.partial(model, kernel=eager),
    "biased": functools.partial(model, scores=lambda: {"alibi": Alibi(6)}),
    "latent": functools.partial(model, heads=latent),
    "latent, gated": functools.partial(model, heads=latent, epilogue=lambda: Gate(24, 6, 2)),
    "learned": functools.partial(model, positions=LearnedPositions(11, 24)),
    "exclusive": functools.partial(model, epilogue=Exclusive),
    "forgetting": functools.partial(model, forgetting=lambda: randomised(Forgetting(24, 6))),
    "forgetting, latent": functools.partial(model, latent, forgetting=lambda: randomised(Forgetting(24, 6))),
    "convolved": functools.partial(
        model,
        lambda: randomised(GroupedHeads(24, 6, 2, None, False, False, convolution=4)),
        epilogue=lambda: randomised(Convolved(6, 4, 3)),
    ),
}


class Recorder:
    """Greedy, and keeps the logits of every step."""

    def __init__(self):
        self.logits = []

    def draws(self, rows, count):
        return None

    def pick(self, logits, draw):
        self.logits.append(logits)
        return logits.argmax(-1, keepdim=True)


def recorded(decoder, prompts=PROMPTS, new=NEW):
    recorder = Recorder()
    tokens = decoder.generate(prompts, new, recorder)
    return tokens, torch.stack(recorder.logits)


@pytest.fixture
def uncompiled(monkeypatch):
    """The compiled step's own way through the cache, without its minute of compilation."""
    monkeypatch.setattr(generation, "SPAN", 8)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompts", [PROMPTS, [PROMPTS[0], PROMPTS[2] + [7]]], ids=["unequal", "equal"])
def test_cached_logits_equal_uncached_ones(name, cache, prompts):
    options = {"mask": window(4)} if cache == "rolling" else {}
    built = MODELS[name](**options)
    tokens, logits = recorded(Decoder(built, CACHES[cache]), prompts)
    wanted, reference = recorded(Decoder(built, None), prompts)
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["unequal", "one"])
def test_the_step_that_is_compiled_gives_the_same_logits(name, prompts, uncompiled):
    built = MODELS[name]()
    tokens, logits = recorded(Decoder(built, CACHES["static"], compile=True), prompts)
    wanted, reference = recorded(Decoder(built, None), prompts)
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["unequal", "one"])
def test_a_prefill_in_pieces_gives_the_same_logits(name, prompts):
    built = MODELS[name]()
    decoder = Decoder(built, CACHES["static"])
    decoder.piece = 2
    tokens, logits = recorded(decoder, prompts)
    wanted, reference = recorded(Decoder(built, None), prompts)
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "name", ["grouped", *(pytest.param(name, marks=pytest.mark.rare) for name in ("forgetting", "convolved"))]
)
def test_the_step_is_one_graph(name, monkeypatch):
    """Traced for real, and run without a C++ compiler."""
    graphs = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda function, **options: graphs(function))
    monkeypatch.setattr(generation, "SPAN", 8)
    built = MODELS[name]()
    tokens = Decoder(built, CACHES["static"], compile=True).generate(PROMPTS, NEW)
    assert torch.equal(tokens, generate(built, PROMPTS, NEW, DynamicCache))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_cuda_graphs_give_the_same_tokens():
    built = model().float().cuda()
    decoder = Decoder(built, CACHES["static"], compile=True)
    first, again = (decoder.generate(PROMPTS, NEW) for _ in range(2))
    assert torch.equal(first, generate(built, PROMPTS, NEW, DynamicCache))
    assert torch.equal(first, again)


@pytest.mark.parametrize("cache", [None, *CACHES])
def test_a_row_of_a_batch_gets_what_it_gets_alone(cache):
    built = model(mask=window(4))
    tokens = generate(built, PROMPTS, NEW, CACHES.get(cache))
    for row, prompt in enumerate(PROMPTS):
        alone = generate(built, [prompt], NEW, CACHES.get(cache))
        assert torch.equal(tokens[row, -len(alone[0]) :], alone[0])


def test_streamed_tokens_are_those_of_generate():
    built = model()
    streamed = torch.cat(list(Decoder(built, DynamicCache).stream(PROMPTS, NEW)), dim=1)
    assert torch.equal(streamed, generate(built, PROMPTS, NEW, DynamicCache)[:, -NEW:])


def test_latent_heads_read_their_cache_as_it_is_and_the_model_is_left_alone():
    built = model(latent, eager)
    decoder = Decoder(built, DynamicCache)
    assert [block.mixer.heads.absorbed for block in decoder.stepper.blocks] == [True, True]
    assert not any(block.mixer.heads.absorbed for block in built.blocks)


def test_matrices_are_laid_out_by_columns_once_and_the_model_is_left_alone():
    built = model()
    decoder = Decoder(built, DynamicCache)
    assert decoder.model.head.weight is decoder.stepper.head.weight
    assert decoder.stepper.head.weight.t().is_contiguous()
    assert built.head.weight.is_contiguous()
    assert torch.equal(decoder.stepper.head.weight, built.head.weight)


def test_every_token_is_drawn_as_often_as_it_is_probable():
    probability = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2], dtype=torch.float64)
    draws = (torch.arange(1000, dtype=torch.float64)[:, None] + 0.5) / 1000
    logits = probability.log().expand(1000, -1)

    def shares(**options):
        picked = Sampling(temperature=1.0, **options).pick(logits, draws)
        return (torch.bincount(picked.flatten(), minlength=5) / 1000).tolist()

    assert shares() == pytest.approx([0.1, 0.4, 0.05, 0.25, 0.2])
    assert shares(top_k=2) == pytest.approx([0, 0.615, 0, 0.385, 0], abs=1e-3)
    assert shares(top_p=0.65) == pytest.approx([0, 0.615, 0, 0.385, 0], abs=1e-3)
    assert shares(top_p=0.66) == pytest.approx([0, 0.471, 0, 0.294, 0.235], abs=1e-3)
    assert shares(top_p=1e-9) == [0, 1, 0, 0, 0]
    assert shares(top_k=9) == shares()
    # a half of the temperature squares the odds
    picked = Sampling(temperature=0.5).pick(logits, draws).flatten()
    squares = (probability**2 / (probability**2).sum()).tolist()
    assert (torch.bincount(picked, minlength=5) / 1000).tolist() == pytest.approx(squares, abs=1e-3)


def test_draws_depend_on_the_seed_and_the_row_alone():
    built = model()

    def drawn(prompts, seed):
        return generate(built, prompts, NEW, DynamicCache, Sampling(temperature=2.0, seed=seed))[:, -NEW:]

    assert torch.equal(drawn(PROMPTS, 5), drawn(PROMPTS, 5))
    assert torch.equal(drawn(PROMPTS, 5)[:1], drawn(PROMPTS[:1], 5))
    assert not torch.equal(drawn(PROMPTS, 5), drawn(PROMPTS, 6))
    same = drawn([PROMPTS[0], PROMPTS[0]], 5)
    assert not torch.equal(same[0], same[1])


def test_a_row_that_stops_repeats_its_stop_and_the_end_is_when_all_have():
    built = model()
    free = generate(built, PROMPTS, NEW, DynamicCache)[:, -NEW:]
    stop = [free[0, 1].item(), free[1, 3].item(), free[2, 2].item()]
    tokens = generate(built, PROMPTS, NEW, DynamicCache, stop=stop)[:, 5:]
    ends = [next(n for n, token in enumerate(row) if token in stop) for row in free.tolist()]
    assert tokens.shape[1] == max(ends) + 1
    for row, end in enumerate(ends):
        assert tokens[row, : end + 1].tolist() == free[row, : end + 1].tolist()
        assert set(tokens[row, end:].tolist()) == {free[row, end].item()}


def test_unequal_prompts_are_padded_on_the_left_at_negative_positions():
    tokens, positions = left_padded([[7, 8, 9], [5]])
    assert tokens.tolist() == [[7, 8, 9], [0, 0, 5]]
    assert positions.tolist() == [[0, 1, 2], [-2, -1, 0]]
    assert left_padded([[1], [2]])[1] is None


def test_learned_positions_are_used_to_their_last_and_not_past_it():
    built = model(positions=LearnedPositions(8, 24))
    assert generate(built, [[1, 2, 3]], 6, DynamicCache).shape == (1, 9)  # the ninth is never read
    with pytest.raises(ValueError, match="need 9 positions; the model has learned 8"):
        generate(built, [[1, 2, 3]], 7, DynamicCache)


@pytest.mark.parametrize(
    ("told", "call"),
    [
        ("prompt is empty", lambda: generate(model(), [], 3, DynamicCache)),
        ("prompt is empty", lambda: generate(model(), [[1], []], 3, DynamicCache)),
        ("prompt is empty", lambda: generate(model(), torch.zeros(1, 0, dtype=torch.long), 3, DynamicCache)),
        ("new_tokens=0", lambda: generate(model(), [[1]], 0, DynamicCache)),
        ("outside the vocabulary of 19", lambda: generate(model(), [[19]], 3, DynamicCache)),
        ("static cache of 4", lambda: generate(model(), [[1, 2]], 4, functools.partial(StaticCache, 4))),
        ("use decode=static", lambda: Decoder(model(), DynamicCache, compile=True)),
        ("temperature=-1", lambda: Sampling(temperature=-1)),
        ("temperature=nan", lambda: Sampling(temperature=float("nan"))),
        ("top_k=0", lambda: Sampling(top_k=0)),
        ("top_p=0", lambda: Sampling(top_p=0)),
        ("top_p=1.5", lambda: Sampling(top_p=1.5)),
    ],
)
def test_what_cannot_be_generated_is_refused(told, call):
    with pytest.raises(ValueError, match=told):
        call()


def test_a_lean_copy_computes_the_same_shares_its_tensors_and_keeps_hooks():
    built, x = model(), torch.tensor([PROMPTS[0]])
    heard = []
    built.blocks[1].mixer.heads.qkv.register_forward_pre_hook(lambda module, given: heard.append(module))
    copy = lean(built)
    assert torch.equal(copy(x), built(x))
    assert len(heard) == 2
    assert copy.head.weight is built.head.weight
    assert {type(module).__name__ for module in copy.modules()} == {
        type(module).__name__ for module in built.modules()
    }
