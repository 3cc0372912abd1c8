"""Checks of attention modules of other projects: every defect fails its check, and correct modules pass."""

import json
import math
import random
import re
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attnlab import testing
from attnlab.cli.main import main
from attnlab.errors import InvalidConfig
from attnlab.testing.checks import CHECKS
from attnlab.testing.module_checks.foreign_module import ADAPTERS, choose_adapter, prepare_subject
from attnlab.testing.module_checks.runner import get_check_name, parametrize_attention_checks, run_check

DIM, N_HEADS = 30, 5
CHECK_BY_NAME = {get_check_name(check): check for check in CHECKS}


class CorrectAttention(nn.Module):
    """Causal attention with a cache and a padding mask. Mutants override methods with a defect."""

    ahead = 0  # future tokens that a query sees

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.memo = {}
        self.set_up()

    def set_up(self):
        pass

    def prepare(self, x):
        return x

    def position(self, n_cached):
        return n_cached

    def forward(self, x, key_padding_mask=None):
        return self.attend(self.prepare(x), key_padding_mask, None)[0]

    def start(self):
        return None

    def step(self, x, state):
        return self.attend(x, None, state)

    def attend(self, x, is_padding, state):
        B, T, _ = x.shape
        n_cached = 0 if state is None else state[2]
        position = torch.arange(T, device=x.device) + self.position(n_cached)
        if is_padding is not None:
            position = (~is_padding).long().cumsum(1) - 1
        q, k, v = self.split_heads(self.qkv(x + self.embed(position).to(x)))
        if state is not None:
            k, v = torch.cat([state[0], k], 2), torch.cat([state[1], v], 2)
        y = self.weigh(q, k, self.see(B, T, k.shape[2], is_padding)) @ v
        return self.finish(self.out(y.transpose(1, 2).reshape(B, T, DIM))), (*self.keep(k, v), n_cached + T)

    def embed(self, position):
        angle = position[..., None] * torch.arange(1, DIM + 1) / DIM
        return angle.sin()

    def see(self, rows, n_queries, n_keys, is_padding):
        allowed = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries + self.ahead)
        allowed = allowed.expand(rows, 1, -1, -1).clone()
        if is_padding is not None:
            allowed &= ~is_padding[:, None, None]
            allowed |= torch.eye(n_queries, dtype=torch.bool)
        return allowed

    def weigh(self, q, k, allowed):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1)

    def keep(self, k, v):
        return k, v

    def split_heads(self, qkv):
        return [part.unflatten(-1, (N_HEADS, -1)).transpose(1, 2) for part in qkv.chunk(3, -1)]

    def finish(self, y):
        return y


def mutate(**overrides):
    """Make a subclass of `CorrectAttention`."""
    return type("Mutant", (CorrectAttention,), overrides)


def see_more(change):
    """Make a mutant whose visible keys `change(allowed, is_padding)` alters."""

    def see(self, rows, n_queries, n_keys, is_padding):
        allowed = CorrectAttention.see(self, rows, n_queries, n_keys, is_padding)
        return change(allowed, is_padding)

    return mutate(see=see)


def finish(change):
    """Make a mutant whose outputs `change(module, y)` alters."""
    return mutate(finish=change)


def open_tile(allowed, is_padding):
    allowed[..., 96:128, 128:160] = True
    return allowed


def keep_last(n):
    return mutate(keep=lambda self, k, v: (k[:, :, -n:], v[:, :, -n:]))


def see_padding_if(condition):
    """Make a mutant that ignores the padding mask under a condition."""

    def see(self, rows, n_queries, n_keys, is_padding):
        ignored = is_padding is not None and condition(is_padding)
        return CorrectAttention.see(self, rows, n_queries, n_keys, None if ignored else is_padding)

    return mutate(see=see)


SHARED_LAYER = nn.Linear(DIM, DIM)


class LateCachedPositions(CorrectAttention):
    def position(self, n_cached):
        return n_cached + (n_cached > 0)


class TrainsWithBatchNorm(CorrectAttention):
    def set_up(self):
        self.norm = nn.BatchNorm1d(DIM)

    def prepare(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class UninitializedWeights(CorrectAttention):
    count = 0

    def set_up(self):
        UninitializedWeights.count += 1
        self.scale = nn.Parameter(torch.tensor([1.0, 1 + 0.01 * UninitializedWeights.count]))

    def finish(self, y):
        return y * self.scale[1]


class Randomized(CorrectAttention):
    """A random basis that is not saved with the weights."""

    def set_up(self):
        self.register_buffer("basis", torch.randn(DIM), persistent=False)

    def finish(self, y):
        return y * self.basis


class DetachesValues(CorrectAttention):
    first = 0

    def split_heads(self, qkv):
        q, k, v = super().split_heads(qkv)
        return q, k, torch.cat([v[:, :, : self.first], v[:, :, self.first :].detach()], 2)


class SharesItsCaches(CorrectAttention):
    def start(self):
        self.shared = None
        return ()

    def step(self, x, state):
        y, self.shared = self.attend(x, None, self.shared)
        return y, ()


class ClassParameter(CorrectAttention):
    gain = nn.Parameter(torch.full((DIM,), 1.5))

    def finish(self, y):
        return y * type(self).gain.to(y)


class InputDropout(CorrectAttention):
    """Correct: dropout before the softmax."""

    def set_up(self):
        self.dropout = nn.Dropout(0.5)

    def prepare(self, x):
        return self.dropout(x)


class RoundedConstants(CorrectAttention):
    """Frequencies in a buffer, which `.to(dtype)` rounds."""

    def set_up(self):
        self.register_buffer("frequencies", torch.arange(1, DIM + 1) / DIM, persistent=False)

    def embed(self, position):
        return (position[..., None] * self.frequencies.float()).sin()


def attend_over_heads():
    def attend(q, k, v):  # the adapter gives [B, H, T, D], and it takes [B, T, H, D]
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    return attend


def add_shared_memo():
    memo = {}
    return finish(lambda self, y: y + memo.setdefault(y.shape[1], 0.1 * self.out.bias.detach()).to(y))


def mask_by_addition(self, q, k, allowed):
    allowed = allowed & ~torch.eye(k.shape[2], dtype=torch.bool)[-q.shape[2] :]  # the first sees nothing
    scores = q @ k.mT + torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1).nan_to_num()


def recall_first_mask(self, rows, n_queries, n_keys, is_padding):
    return self.memo.setdefault(
        (rows, n_queries, n_keys), CorrectAttention.see(self, rows, n_queries, n_keys, is_padding)
    )


def limit_to_first_length(self, n_cached):
    return min(n_cached, self.memo.setdefault("length", n_cached))


def reset(library):
    def prepare(self, x):
        library.seed(0) if library is not torch else torch.manual_seed(0)
        return x

    return mutate(prepare=prepare)


def drop(self, q, k, allowed):
    weights = CorrectAttention.weigh(self, q, k, allowed)
    return weights * (torch.rand_like(weights) > 0.1) if self.training else weights


# Check -> modules with one defect that it finds.
DEFECTS = {
    "causality": {
        "sees the next token": mutate(ahead=1),
        "without a gradient": mutate(prepare=lambda self, x: x + F.pad(x[:, 1:], (0, 0, 0, 1)).detach()),
        "a tile at 128 keys is open": see_more(open_tile),
        "multiples of 64 tokens are open": see_more(
            lambda allowed, _: allowed | (allowed.shape[2] % 64 == 0)
        ),
        "all after token 256": finish(lambda self, y: torch.cat([y[:, :256], y[:, 256:] + y[:, -1:]], 1)),
        "hidden scores of minus ten": mutate(
            weigh=lambda self, q, k, allowed: (q @ k.mT).masked_fill(~allowed, -10.0).softmax(-1)
        ),
    },
    "context": {"attention over the heads": attend_over_heads},
    "cache": {
        "late positions": LateCachedPositions,
        "forgets beyond 48 tokens": keep_last(48),
        "forgets beyond 200 tokens": keep_last(200),
        "positions restart at 64": mutate(position=lambda self, n: n % 64),
        "one row of many": mutate(keep=lambda self, k, v: (k, torch.cat([v[:4], 0 * v[4:]]))),
        "full blocks lose their last": mutate(
            keep=lambda self, k, v: (k, F.pad(v[:, :, :-1], (0, 0, 0, 1)) if v.shape[2] % 128 == 0 else v)
        ),
    },
    "left_padding": {
        "ignored": see_padding_if(lambda is_padding: True),
        "ignored in a batch of one": see_padding_if(lambda is_padding: len(is_padding) == 1),
        "that of the first row": see_more(lambda allowed, _: allowed[:1].expand_as(allowed)),
        "NaN": mutate(
            forward=lambda self, x, key_padding_mask=None: (
                CorrectAttention.forward(self, x, key_padding_mask)
                + (
                    0
                    if key_padding_mask is None
                    else torch.zeros(1).masked_fill(key_padding_mask[..., None], torch.nan)
                )
            )
        ),
        "NaN in gradients": mutate(weigh=mask_by_addition),
        "a mask of the first call": mutate(see=recall_first_mask),
    },
    "right_padding": {
        "ignored on the right": see_padding_if(lambda is_padding: bool(is_padding[:, -1].any())),
        "ignored between tokens": see_padding_if(lambda is_padding: not is_padding[0, [0, -1]].any()),
    },
    "batch": {
        "centered": mutate(prepare=lambda self, x: x - 0.01 * x.mean((0, 2), keepdim=True)),
        "batch norm": TrainsWithBatchNorm,
        "rows beyond 32": finish(lambda self, y: torch.cat([y[:32], y[32:] + 0.1 * y[:1]])),
    },
    "training_mode": {
        "scaled": finish(lambda self, y: 1.01 * y if self.training else y),
        "scaled in long sequences": finish(
            lambda self, y: 1.01 * y if self.training and len(y[0]) > 64 else y
        ),
        "dropout that is not made up for": mutate(weigh=drop),
        "dropout made up for twice": finish(
            lambda self, y: F.dropout(y, 0.1, self.training) * (1.1 if self.training else 1)
        ),
    },
    "determinism": {
        "dropout in evaluation": mutate(prepare=lambda self, x: F.dropout(x, 0.1, training=True)),
        "uninitialized": UninitializedWeights,
        "random and not saved": Randomized,
    },
    "random_state": {
        "draws": mutate(prepare=lambda self, x: (x, torch.rand(1))[0]),
        "resets torch": reset(torch),
        "resets Python": reset(random),
        "resets NumPy": reset(numpy.random),
        "construction resets": mutate(set_up=lambda self: torch.manual_seed(0)),
    },
    "dtypes": {
        "returns float32": finish(lambda self, y: y.float()),
        "rounds float32": finish(lambda self, y: y.bfloat16().float() if y.dtype == torch.float32 else y),
        "overflows float16": finish(lambda self, y: y.masked_fill(torch.zeros_like(y).bool(), -1e9)),
        "mixes dtypes": mutate(
            prepare=lambda self, x: x @ torch.eye(DIM) if x.dtype == torch.bfloat16 else x
        ),
        "promotes long sequences": finish(lambda self, y: y.float() if y.shape[1] > 128 else y),
        "positions in low precision": mutate(
            embed=lambda self, position: CorrectAttention.embed(self, position.to(self.out.bias))
        ),
        "constants in low precision": RoundedConstants,
    },
    "strides": {
        "views its input": mutate(prepare=lambda self, x: x.view(-1, DIM).view(x.shape)),
        "reads the storage": mutate(
            prepare=lambda self, x: x.as_strided(x.shape, (x.shape[1] * DIM, DIM, 1))
        ),
    },
    "gradients": {
        "values detached": DetachesValues,
        "values detached beyond 64 tokens": type("Long", (DetachesValues,), {"first": 64}),
    },
    "parameters": {
        "in the class": ClassParameter,
        "in a list": mutate(
            set_up=lambda self: self.memo.update(gain=[nn.Parameter(torch.ones(DIM))]),
            finish=lambda self, y: y * self.memo["gain"][0],
        ),
        "unused": mutate(set_up=lambda self: setattr(self, "unused", nn.Linear(3, 3))),
        "shared": mutate(set_up=lambda self: setattr(self, "out", SHARED_LAYER)),
    },
    "state": {
        "counts calls": finish(
            lambda self, y: y + 1e-7 * (self.memo.update(n=self.memo.get("n", 0) + 1) or self.memo["n"])
        ),
        "shares its caches": SharesItsCaches,
        "changes its input": mutate(prepare=lambda self, x: x if x.requires_grad else x.mul_(1.5)),
        "a length of the first call": mutate(
            embed=lambda self, position: CorrectAttention.embed(
                self, position.clamp(max=self.memo.setdefault("length", position.shape[-1]))
            )
        ),
        "a memo of all instances": add_shared_memo(),
        "changes a buffer": mutate(
            set_up=lambda self: self.register_buffer("calls", torch.zeros(())),
            prepare=lambda self, x: (x, self.calls.add_(1))[0],
        ),
    },
}


def list_failed(factory, **options):
    results = testing.check_module(factory, on_fail="return", **options)
    return {result.name for result in results if result.outcome == "failed"}


def test_correct_module_passes_every_check():
    results = testing.check_module(CorrectAttention)
    assert [(result.name, result.outcome) for result in results] == [
        (name, "passed") for name in CHECK_BY_NAME
    ]
    assert all(result.statement and result.measured is not None for result in results)


@pytest.mark.parametrize(
    ("check", "defect"), [(check, defect) for check, defects in DEFECTS.items() for defect in defects]
)
def test_defect_fails_its_check(check, defect):
    subject = prepare_subject(DEFECTS[check][defect], None, True)
    assert run_check(CHECK_BY_NAME[check], subject).outcome == "failed"


def test_every_check_has_a_defect():
    assert [*CHECK_BY_NAME] == [*DEFECTS]


def reproduce_late_positions():
    """The reproduction of the only check that fails."""
    results = testing.check_module(LateCachedPositions, on_fail="return")
    [failure] = [result for result in results if result.outcome == "failed"]
    return failure.reproduction


def test_failure_has_the_smallest_input_and_raises():
    reproduction = reproduce_late_positions()
    assert (reproduction.x_shape, reproduction.dtype, reproduction.case) == (
        (1, 2, DIM),
        "float64",
        "chunks 1+1",
    )
    assert reproduction.position.startswith("row 0, token 1")
    assert reproduction.largest_difference > 1e-3
    with pytest.raises(AssertionError, match=r"LateCachedPositions: cache failed: chunks 1\+1"):
        testing.check_module(LateCachedPositions)


def test_reproduction_gives_the_reported_difference():
    reproduction = reproduce_late_positions()
    torch.manual_seed(reproduction.seed)
    module = LateCachedPositions().double().eval()
    generator = torch.Generator().manual_seed(reproduction.seed)
    x = torch.randn(reproduction.x_shape, generator=generator, dtype=torch.float64)
    full, (_, state) = module(x), module.step(x[:, :1], module.start())
    difference = (module.step(x[:, 1:], state)[0] - full[:, 1:]).abs().max() / full.abs().max()
    assert difference.item() == pytest.approx(reproduction.largest_difference)


class Bidirectional(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(x) + x.mean(1, keepdim=True)


class Float32Only(CorrectAttention):
    def finish(self, y):
        if y.dtype != torch.float32:
            raise RuntimeError('"attend" not implemented for this dtype')
        return y


class WithoutBackward(nn.Module):
    def forward(self, x):
        if torch.is_grad_enabled() and x.requires_grad:
            raise NotImplementedError("no backward")
        return x.cumsum(1)


class AdditiveMask(CorrectAttention):
    def forward(self, x, attention_mask=None):
        y = super().forward(x)
        return y if attention_mask is None else y + 0 * attention_mask[:, 0, :, :1]


def list_skipped(factory, **options):
    results = testing.check_module(factory, on_fail="return", **options)
    return {result.name: result.detail for result in results if result.outcome == "skipped"}


def test_check_that_cannot_apply_is_skipped_with_its_reason():
    assert list_skipped(Bidirectional, causal=False) == {
        "causality": "declared non-causal",
        "cache": "the module has no cache",
        "left_padding": "the module takes no padding mask",
        "right_padding": "the module takes no padding mask",
    }
    skipped = list_skipped(Float32Only)
    assert skipped.keys() == {"dtypes", "gradients"}
    assert "no float64 kernel" in skipped["gradients"]
    assert "no float16 kernel, no bfloat16 kernel" in skipped["dtypes"]
    assert "no backward" in list_skipped(WithoutBackward)["gradients"]
    assert "attention_mask [B, T] raises IndexError" in list_skipped(AdditiveMask)["left_padding"]


class FourierConvolution(nn.Module):
    """A causal convolution by Fourier transforms, in float32: gradients of later inputs are rounding."""

    def __init__(self):
        super().__init__()
        self.linear, self.kernel = nn.Linear(DIM, DIM), nn.Parameter(torch.randn(512, DIM) / 8)

    def forward(self, x):
        T = x.shape[1]
        parts = (self.linear(x).float(), self.kernel[:T].float())
        product = math.prod(torch.fft.rfft(part, n=2 * T, dim=-2) for part in parts)
        return torch.fft.irfft(product, n=2 * T, dim=-2)[:, :T].to(x)


class Checkpointed(CorrectAttention):
    def forward(self, x, key_padding_mask=None):
        return checkpoint(super().forward, x, key_padding_mask, use_reentrant=True)


class LogarithmicPositions(CorrectAttention):
    def embed(self, position):
        return super().embed((1 + position.clamp(min=0)).log())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("module", [FourierConvolution, Checkpointed, LogarithmicPositions, InputDropout])
def test_unusual_correct_module_passes(module):
    assert list_failed(module) == set()


class LearnedPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.positions = CorrectAttention(), nn.Embedding(64, DIM)

    def forward(self, x):
        return self.inner(x + self.positions(torch.arange(x.shape[1])))


def test_a_maximal_length_is_no_defect():
    detail = testing.check_module(LearnedPositions)[0].detail
    assert "up to 64 tokens; the module raises at 65: IndexError: index out of range" in detail


@pytest.mark.parametrize(("n_heads", "batch_first"), [(3, True), (2, False), (2, True)])
def test_multihead_attention_is_checked(n_heads, batch_first):
    results = testing.check_module(
        lambda: nn.MultiheadAttention(12, n_heads, batch_first=batch_first), on_fail="return"
    )
    assert [result.name for result in results if result.outcome == "skipped"] == ["cache"]
    failures = [str(result) for result in results if result.outcome == "failed"]
    has_fast_path = batch_first and n_heads % 2 == 0  # NaN where a query sees padding alone
    assert len(failures) == has_fast_path
    assert all("left_padding failed: NaN or infinity at padding" in failure for failure in failures)


def test_multihead_attention_may_be_bidirectional():
    assert list_failed(lambda: nn.MultiheadAttention(12, 3), causal=False) == set()


def test_function_of_q_k_v_is_checked():
    def make():
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def make_without_mask():
        return lambda query, key, value: F.scaled_dot_product_attention(query, key, value)

    assert list_failed(make) == set()
    assert list_failed(make_without_mask) == {"causality"}
    # torch's own function has no signature
    assert list_failed(lambda: F.scaled_dot_product_attention, adapter="qkv", causal=False) == set()


class FlaStyle(nn.Module):
    """A layer as in flash-linear-attention: linear attention whose state is its cache."""

    late = 0

    def __init__(self):
        super().__init__()
        self.hidden_size = 12
        self.qkv = nn.Linear(12, 36)

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, use_cache=False):
        q, k, v = self.qkv(hidden_states).chunk(3, -1)
        if attention_mask is not None:
            k = k * self.select_new(attention_mask, k.shape[1])[..., None]
        outer = (k[..., None] * v[..., None, :]).cumsum(1)
        outer = outer if past_key_values is None else outer + past_key_values[:, None]
        y = (q[..., None] * outer).sum(-2)
        return y, None, outer[:, -1 - self.late] if use_cache else None

    def select_new(self, attention_mask, count):
        return attention_mask[:, -count:]


class FirstPaddingOnly(FlaStyle):
    def select_new(self, attention_mask, count):
        return attention_mask[:, :count]  # of a token after the prompt: that of the first token


class LateFlaState(FlaStyle):
    late = -1  # the state of the first token of each chunk


def test_fla_style_layer_passes_and_its_state_is_checked():
    assert choose_adapter(FlaStyle(), None) is ADAPTERS["fla"]
    assert {result.outcome for result in testing.check_module(FlaStyle)} == {"passed"}
    assert list_failed(LateFlaState) == {"cache", "left_padding"}
    (failed,) = [
        each for each in testing.check_module(FirstPaddingOnly, on_fail="return") if each.outcome == "failed"
    ]
    assert failed.name == "left_padding"
    assert "decoded with a cache" in failed.detail


SIZES = {"hidden_size": 36, "num_attention_heads": 6, "num_hidden_layers": 2, "vocab_size": 50}
KV = {"num_key_value_heads": 3}
LOCAL = {"head_dim": 10, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], **KV}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
          "v_head_dim": 10, "num_key_value_heads": 6}  # fmt: skip


def make_transformers(family, prefix, layer=0, config_suffix="Config", **sizes):
    """Return a factory of a family's attention class."""

    def factory():
        modeling = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
        configuration = __import__(f"transformers.models.{family}.configuration_{family}", fromlist=["*"])
        config = getattr(configuration, prefix + config_suffix)(**SIZES | sizes)
        return getattr(modeling, f"{prefix}Attention")(config, layer_idx=layer)

    return factory


FAMILIES = {
    "llama": make_transformers("llama", "Llama", **KV),
    "llama sdpa": make_transformers("llama", "Llama", attn_implementation="sdpa", **KV),
    "gemma2 sliding": make_transformers("gemma2", "Gemma2", **LOCAL),
    "gemma3 sliding": make_transformers("gemma3", "Gemma3", config_suffix="TextConfig", **LOCAL),
    "gemma3 full": make_transformers("gemma3", "Gemma3", 1, "TextConfig", **LOCAL),
    "gpt_neox": make_transformers("gpt_neox", "GPTNeoX", bos_token_id=None, eos_token_id=None),
    "qwen3": make_transformers("qwen3", "Qwen3", head_dim=10, **KV),
    "mistral": make_transformers("mistral", "Mistral", sliding_window=5, **KV),
    "deepseek_v3": make_transformers("deepseek_v3", "DeepseekV3", **LATENT),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_family_of_transformers_passes_every_check(family):
    results = testing.check_module(FAMILIES[family])
    assert {result.outcome for result in results} == {"passed"}


def test_defect_in_a_class_of_transformers_is_found():
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")

    class WithoutRotation(modeling.LlamaAttention):
        def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **_):
            cos, sin = (part[:, -1:] for part in position_embeddings)  # one position for a whole chunk
            cos, sin = (part.expand(-1, hidden_states.shape[1], -1) for part in (cos, sin))
            return super().forward(hidden_states, (cos, sin), attention_mask, past_key_values)

    def factory():
        return WithoutRotation(FAMILIES["llama"]().config, layer_idx=0)

    assert "cache" in list_failed(factory)


def test_sliding_window_of_the_config_is_applied():
    """The outputs of the adapter are those of the whole model's attention layer."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MistralConfig(**SIZES, **KV, sliding_window=5, intermediate_size=20)
    torch.manual_seed(0)
    model = transformers.MistralModel(config).double().eval()
    layer = model.layers[0].self_attn
    inputs, outputs = [], []

    def record(_module, inputs_by_position, kwargs, output):
        inputs.append(kwargs.get("hidden_states", *inputs_by_position))
        outputs.append(output[0])

    layer.register_forward_hook(record, with_kwargs=True)
    with torch.no_grad():
        model(torch.arange(2 * 13).reshape(2, 13))
        adapter = ADAPTERS["transformers"](layer, True)
        [x, expected] = inputs + outputs
        assert (adapter.forward(x) - expected).abs().max() < 1e-12


@parametrize_attention_checks([CorrectAttention, FlaStyle])
def test_parametrized_check_passes(check):
    check()


def test_parametrized_check_fails_and_skips():
    mark = parametrize_attention_checks([LateCachedPositions, WithoutBackward]).mark
    cases = {str(case): case for case in mark.args[1]}
    assert len(cases) == 2 * len(CHECKS)
    with pytest.raises(AssertionError, match="cache failed"):
        cases["cache-LateCachedPositions"]()
    cases["causality-LateCachedPositions"]()
    with pytest.raises(pytest.skip.Exception, match="no cache"):
        cases["cache-WithoutBackward"]()


class TwoInputs(nn.Module):
    def forward(self, x, y):
        return x + y


class ReturnsOneToken(nn.Module):
    def forward(self, x):
        return x[:, -1]


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (TwoInputs, {}, r"no adapter fits TwoInputs \(arguments: x, y\)"),
        (TwoInputs, {"adapter": "plane"}, r"unknown adapter plane \(nearest: plain, fla\)"),
        (TwoInputs, {"adapter": "plain"}, "TwoInputs does not run with the adapter plain"),
        (ReturnsOneToken, {}, r"the output for x of shape \[2, 5, 48\] is \[2, 48\]"),
        (nn.MultiheadAttention, {}, "missing 2 required positional arguments"),
        (lambda: 3, {}, "returns int"),
    ],
)
def test_invalid_factory_or_adapter_gives_one_line(factory, options, message):
    with pytest.raises(InvalidConfig, match=message) as caught:
        testing.check_module(factory, **options)
    assert "\n" not in str(caught.value)


MODULE = """
from torch import nn
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return self.linear(x).cumsum(1)
class Leaky(Layer):
    def forward(self, x):
        return self.linear(x).cumsum(1) + x.mean()
def two(): return lambda a, b: a
number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "attention_file.py").write_text(MODULE)
    (tmp_path / "broken_file.py").write_text("import no_such_package\n")
    (tmp_path / "exiting_file.py").write_text("exit()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in ("attention_file", "broken_file", "exiting_file"):
        sys.modules.pop(name, None)


def test_command_prints_a_table_and_its_status_is_0(folder, capsys):
    assert main(["check", "--module", "attention_file:Layer"]) == 0
    output = capsys.readouterr().out
    assert "11 checks passed, 3 skipped" in output
    assert all(get_check_name(check) in output for check in CHECKS)


def test_command_reports_failures_as_json_and_its_status_is_1(folder, capsys):
    assert main(["check", "--module", "attention_file:Leaky", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    failed = {result["name"]: result for result in record["results"] if result["outcome"] == "failed"}
    assert {"causality", "batch"} == failed.keys()
    assert record["failed"] == 2
    assert failed["causality"]["reproduction"]["x_shape"] == [1, 2, 8]


def test_command_fails_if_nothing_could_be_checked(folder, monkeypatch, capsys):
    from attnlab.testing.module_checks import runner

    monkeypatch.setattr(runner, "CHECKS", [check for check in CHECKS if "cache" in check.__name__])
    assert main(["check", "--module", "attention_file:Layer"]) == 1
    assert "nothing could be checked" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="nothing could be checked"):
        testing.check_module(CorrectAttention, causal=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--module", "no_such_module:f"], "importing no_such_module raises ModuleNotFoundError"),
        (["--module", "broken_file:f"], "No module named 'no_such_package'"),
        (["--module", "exiting_file:f"], "ends the program"),
        (["--module", "attention_file:Layerz"], "has no function Layerz (nearest: Layer"),
        (["--module", "attention_file:number"], "has no function number"),
        (["--module", "attention_file"], "give MODULE:FACTORY"),
        (["--module", "attention_file:two"], "no adapter fits function"),
        (["--module", "attention_file:Layer", "--adapter", "fla"], "does not run with the adapter fla"),
        (["--module", "attention_file:Layer", "heads=gqa"], "takes no heads=gqa"),
        (["--module", "attention_file:Layer", "-v"], "takes no -v"),
        (["--json"], "--json needs --module"),
        (["--bidirectional"], "--bidirectional needs --module"),
        (["--adapter", "plain", "heads=gqa"], "--adapter needs --module"),
    ],
)
def test_invalid_command_gives_one_line_and_status_2(folder, capsys, words, message):
    assert main(["check", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_kit_imports_transformers_only_inside_functions():
    folder = Path(testing.__file__).parent
    statements = re.compile(r"^(from|import) transformers", re.M)
    assert not [path for path in folder.rglob("*.py") if statements.search(path.read_text("utf-8"))]
