"""Mixers with a memory of fixed size, against the papers' recurrences in plain loops in float64.

Chunks of any size give the same results.
"""

import math

import numpy as np
import pytest
import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import Unsupported
from attnlab.attention.masks.data_masks import make_document_mask
from attnlab.attention.mixers.delta import GatedDeltaNet
from attnlab.attention.mixers.feature_delta import KimiDeltaAttention
from attnlab.attention.mixers.gated_linear import GatedLinearAttention
from attnlab.attention.mixers.linear import LinearAttention
from attnlab.attention.mixers.recurrence import (
    RecurrenceInputs,
    make_empty_memory,
    scan_by_chunk,
    scan_by_token,
)
from attnlab.attention.mixers.scalar_decay import ScalarDecay
from attnlab.attention.mixers.taylor import TaylorAttention
from attnlab.testing.invariants.variant import randomize

T, M, H, D, N = 9, 12, 3, 4, 5


def prepare_mixer(mixer):
    return randomize(mixer).double().eval()


def make_input(rows=1):
    return torch.randn(rows, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def to_array(tensor):
    return tensor.detach().numpy()


def assert_output_equals(module, rows):
    np.testing.assert_allclose(to_array(module(make_input()))[0], np.stack(rows), rtol=0, atol=1e-12)


def silu(x):
    return x / (1 + np.exp(-x))


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(x))


def convolve_silu(rows, weight):
    out = []
    for t, row in enumerate(rows):
        total = row.copy()
        for back in range(min(len(weight), t + 1)):
            total = total + weight[back] * rows[t - back]
        out.append(silu(total))
    return out


def compute_decays(module, x):
    """Steps and decays, [T] of [H] each."""
    weight, shift = to_array(module.rates.step.weight), to_array(module.rates.shift)
    steps = [np.log1p(np.exp(weight @ token + shift)) for token in x]
    return steps, [np.exp(-np.exp(to_array(module.rates.log_rate)) * step) for step in steps]


def rms_norm(x, gain):
    return gain * x / math.sqrt((x @ x) / len(x) + 1e-6)


@pytest.mark.parametrize("decay", [False, True])
def test_linear_attention_sums_features_over_all_keys(decay):
    module, x = prepare_mixer(LinearAttention(M, H, decay, chunk=4)), to_array(make_input())[0]
    rows = [to_array(module.qkv.weight) @ token for token in x]
    out = []
    for t in range(T):
        heads = []
        for h in range(H):
            q, (top, total) = elu_plus_one(rows[t][h * D :][:D]), (np.zeros(D), 0.0)
            for s in range(t + 1):
                decay_factor = (1 - 2.0 ** (-5 - h)) ** (t - s) if decay else 1.0
                like = decay_factor * (q @ elu_plus_one(rows[s][M + h * D :][:D]))
                top, total = top + like * rows[s][2 * M + h * D :][:D], total + like
            heads.append(top / total)
        out.append(to_array(module.out.weight) @ np.concatenate(heads))
    assert_output_equals(module, out)


@pytest.mark.parametrize("features", [1, 2, 3])
def test_taylor_attention_replaces_the_exponential_by_a_polynomial(features):
    module, x = (
        prepare_mixer(TaylorAttention(M, H, features, convolution=2, chunk=4)),
        to_array(make_input())[0],
    )
    weight = to_array(module.convolution.weight)
    rows = [to_array(module.qkv.weight) @ token for token in x]
    rows = [(1 + weight[0]) * row + (weight[1] * rows[t - 1] if t else 0) for t, row in enumerate(rows)]
    out = []
    for t in range(T):
        heads = []
        for h in range(H):
            q, (top, total) = rows[t][h * features :][:features], (np.zeros(D), 0.0)
            for s in range(t + 1):
                k, v = rows[s][(H + h) * features :][:features], rows[s][2 * H * features + h * D :][:D]
                score = q @ k / math.sqrt(features)
                like = 1 + score + score**2 / 2
                top, total = top + like * v, total + like
            heads.append(top / total)
        out.append(to_array(module.out.weight) @ np.concatenate(heads))
    assert_output_equals(module, out)


@pytest.mark.parametrize("decay", [True, False])
@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("max_write", [1, 2])
def test_gated_delta_rule_replaces_the_value_of_a_key(max_write, delta, decay):
    module = prepare_mixer(GatedDeltaNet(M, H, 3, delta, chunk=4, max_write=max_write, decay=decay))
    x = to_array(make_input())[0]
    rows = [to_array(module.qkv.weight) @ token for token in x]
    rows = convolve_silu(rows, to_array(module.convolution.weight))
    decays = compute_decays(module, x)[1] if decay else np.ones((T, H))
    memory, out = np.zeros((H, D, D)), []
    for t in range(T):
        heads = []
        write = max_write / (1 + np.exp(-to_array(module.write.weight) @ x[t]))
        for h in range(H):
            q, k, v = (rows[t][n * M + h * D :][:D] for n in range(3))
            q, k = q / np.linalg.norm(q), k / np.linalg.norm(k)
            forgets = np.eye(D) - write[h] * np.outer(k, k) if delta else np.eye(D)
            memory[h] = decays[t][h] * forgets @ memory[h] + write[h] * np.outer(k, v)
            heads.append(rms_norm(memory[h].T @ q, to_array(module.norm.weight)))
        gate = silu(to_array(module.gate.weight) @ x[t])
        out.append(to_array(module.out.weight) @ (np.concatenate(heads) * gate))
    assert_output_equals(module, out)


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("decay", [True, False])
def test_delta_product_writes_several_keys_per_token(decay, steps):
    module = GatedDeltaNet(M, H, 3, chunk=4, max_write=2, decay=decay, steps_per_token=steps)
    module, x = prepare_mixer(module), to_array(make_input())[0]
    rows = [to_array(module.qkv.weight) @ token for token in x]
    rows = convolve_silu(rows, to_array(module.convolution.weight))
    decays = compute_decays(module, x)[1] if decay else np.ones((T, H))
    memory, out = np.zeros((H, D, D)), []
    for t in range(T):
        heads = []
        write = 2 / (1 + np.exp(-to_array(module.write.weight) @ x[t]))
        for h in range(H):
            q = rows[t][h * D :][:D]
            transition, written = decays[t][h] * np.eye(D), np.zeros((D, D))
            for n in range(steps):
                k, v = (rows[t][M + part * steps * M + n * M + h * D :][:D] for part in range(2))
                b, k = write[n * H + h], k / np.linalg.norm(k)
                householder = np.eye(D) - b * np.outer(k, k)
                transition, written = householder @ transition, householder @ written + b * np.outer(k, v)
            memory[h] = transition @ memory[h] + written
            heads.append(rms_norm(memory[h].T @ q / np.linalg.norm(q), to_array(module.norm.weight)))
        gate = silu(to_array(module.gate.weight) @ x[t])
        out.append(to_array(module.out.weight) @ (np.concatenate(heads) * gate))
    assert_output_equals(module, out)


def project_low_rank(down, up, token):
    return to_array(up.weight) @ (to_array(down.weight) @ token)


def compute_feature_decays(rates, x):
    """Decays, [T] of [H, D] each."""
    steps = [project_low_rank(rates.down, rates.up, token) + to_array(rates.shift) for token in x]
    rate = np.exp(to_array(rates.log_rate))[:, None]
    return [np.exp(-rate * np.log1p(np.exp(step)).reshape(H, D)) for step in steps]


@pytest.mark.parametrize("feature_gates", [False, True])
def test_kimi_delta_attention_decays_each_feature_of_the_keys(feature_gates):
    module = prepare_mixer(KimiDeltaAttention(M, H, 3, chunk=4, feature_gates=feature_gates))
    x = to_array(make_input())[0]
    rows = [to_array(module.qkv.weight) @ token for token in x]
    rows = convolve_silu(rows, to_array(module.convolution.weight))
    decays, memory, out = compute_feature_decays(module.rates, x), np.zeros((H, D, D)), []
    for t in range(T):
        heads, gates = [], 1 / (1 + np.exp(-to_array(module.write.weight) @ x[t]))
        for h in range(H):
            q, k, v = (rows[t][n * M + h * D :][:D] for n in range(3))
            q, k = q / np.linalg.norm(q), k / np.linalg.norm(k)
            erase, write = (gates[n * M + h * D :][:D] if feature_gates else gates[h] for n in range(2))
            transition = (np.eye(D) - np.outer(k, erase * k)) @ np.diag(decays[t][h])
            memory[h] = transition @ memory[h] + np.outer(k, write * v)
            heads.append(rms_norm(memory[h].T @ q, to_array(module.norm.weight)))
        gate = 1 / (1 + np.exp(-project_low_rank(module.gate_down, module.gate_up, x[t])))
        out.append(to_array(module.out.weight) @ (np.concatenate(heads) * gate))
    assert_output_equals(module, out)


def test_gated_linear_attention_decays_each_feature_of_the_keys():
    rank, temperature = 2, 3.0
    module = prepare_mixer(GatedLinearAttention(M, H, N, rank, temperature, chunk=4))
    x, memory, out = to_array(make_input())[0], np.zeros((H, N, D)), []
    for token in x:
        row, heads = to_array(module.qkv.weight) @ token, []
        raw = project_low_rank(module.decay_down, module.decay_up, token) + to_array(module.decay_up.bias)
        for h in range(H):
            q, k, v = row[h * N :][:N], row[(H + h) * N :][:N], row[2 * H * N + h * D :][:D]
            decay = (1 / (1 + np.exp(-raw[h * N :][:N]))) ** (1 / temperature)
            memory[h] = np.diag(decay) @ memory[h] + np.outer(k, v)
            heads.append(rms_norm(memory[h].T @ q, to_array(module.norm.weight)))
        gate = silu(to_array(module.gate.weight) @ token)
        out.append(to_array(module.out.weight) @ (np.concatenate(heads) * gate))
    assert_output_equals(module, out)


@torch.no_grad()
def test_writes_of_strength_two_without_decay_track_parity():
    """The first token stores a value; each 1 changes its sign, and writes of strength 1 erase it."""
    begin, zero, one = torch.eye(4, dtype=torch.float64)[:3]
    bits = torch.randint(2, (300,), generator=torch.Generator().manual_seed(1)).bool()
    x = torch.stack([begin, *(one if bit else zero for bit in bits)])[None]
    signs = {}
    for max_write in (1, 2):
        module = GatedDeltaNet(4, 1, 0, max_write=max_write, decay=False).double()
        for parameter in module.parameters():
            parameter.zero_()
        q, k, v = module.qkv.weight.split(4)
        q[0], k[0], v[0, 0] = 1, 1, 1  # all tokens have one key; only the first has a value
        module.write.weight.copy_(torch.tensor([[0.0, -1000, 1000, 0]]))
        module.norm.weight.fill_(1)
        module.gate.weight[0], module.out.weight[0, 0] = 1, 1
        signs[max_write] = module(x)[0, 1:, 0].sign()
    assert torch.equal(signs[2] < 0, bits.cumsum(0) % 2 == 1)
    assert torch.equal(signs[1] == 0, bits.cumsum(0) > 0)


@pytest.mark.parametrize("max_write", [0, 2.1, math.nan])
def test_write_strengths_out_of_range_are_rejected(max_write):
    with pytest.raises(ValueError, match=r"max_write must be above 0 and at most 2"):
        GatedDeltaNet(M, H, max_write=max_write)


@pytest.mark.parametrize("name", ["state", "rank", "temperature"])
def test_gated_linear_attention_needs_positive_sizes(name):
    with pytest.raises(ValueError, match=rf"{name} must be (at least 1|above 0), got 0"):
        GatedLinearAttention(M, H, **{"state": N, "rank": 2, name: 0})


def test_a_token_needs_a_step():
    with pytest.raises(ValueError, match=r"steps_per_token must be at least 1, got 0"):
        GatedDeltaNet(M, H, steps_per_token=0)


def test_scalar_decay_state_space_decays_by_its_steps():
    module, x = prepare_mixer(ScalarDecay(M, H, N, 4, chunk=2)), to_array(make_input())[0]
    rows = convolve_silu([to_array(module.vkq.weight) @ t for t in x], to_array(module.convolution.weight))
    (steps, decays), memory, out = compute_decays(module, x), np.zeros((H, N, D)), []
    for t in range(T):
        k, q, heads = rows[t][M : M + N], rows[t][M + N :], []
        for h in range(H):
            v = rows[t][h * D :][:D]
            memory[h] = decays[t][h] * memory[h] + steps[t][h] * np.outer(k, v)
            heads.append(memory[h].T @ q + to_array(module.skip)[h] * v)
        gated = np.concatenate(heads) * silu(to_array(module.gate.weight) @ x[t])
        out.append(to_array(module.out.weight) @ rms_norm(gated, to_array(module.norm.weight)))
    assert_output_equals(module, out)


@pytest.mark.parametrize("by_feature", [True, False])
@pytest.mark.parametrize("replaces", ["write", "erase", "nothing"])
@pytest.mark.parametrize("documented", [True, False])
@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 40])
def test_scan_by_chunk_equals_scan_by_token(size, documented, replaces, by_feature):
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(2, *shape, dtype=torch.float64, generator=generator)

    q, k, v = draw(3, 17, 4), draw(3, 17, 4), draw(3, 17, 5)
    reset = torch.rand(2, 17, generator=generator) < 0.2 if documented else None
    write = torch.sigmoid(draw(3, 17)) if replaces == "write" else None
    k = torch.nn.functional.normalize(k, dim=-1)
    erase = draw(3, 17, 4).sigmoid() * k if replaces == "erase" else None
    decay = -draw(3, 17, *([4] if by_feature else [])).exp()
    tokens = RecurrenceInputs(q, k, v, decay, write, reset, erase)
    memory = draw(3, 4, 5)
    expected = scan_by_token(tokens, memory)
    for got, want in zip(scan_by_chunk(tokens, memory, size), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("replaces", ["write", "erase", "nothing"])
def test_decays_per_feature_that_are_equal_are_one_decay_per_head(replaces):
    """A uniform decay, and erasing b k instead of writing with strength b, change nothing."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(2, 3, *shape, dtype=torch.float64, generator=generator)

    q, k, v, write = draw(17, 4), draw(17, 4), draw(17, 5), draw(17).sigmoid()
    k = torch.nn.functional.normalize(k, dim=-1)
    per_head = RecurrenceInputs(q, k, v, -draw(17).exp(), None if replaces == "nothing" else write)
    per_feature = per_head._replace(decay=per_head.decay[..., None].expand(-1, -1, -1, 4))
    if replaces == "erase":
        per_feature = per_feature._replace(write=None, v=write[..., None] * v, erase=write[..., None] * k)
    memory = draw(4, 5)
    results = zip(scan_by_chunk(per_feature, memory, 5), scan_by_chunk(per_head, memory, 5), strict=True)
    for got, want in results:
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 16, 64])
def test_strong_decays_per_feature_neither_overflow_nor_lose_the_weak_ones(size):
    """Some features retain everything while others lose all at each token, in float32."""
    q, k, v = torch.randn(3, 1, 1, 64, 6, generator=torch.Generator().manual_seed(4))
    k = torch.nn.functional.normalize(k, dim=-1)
    decay = -torch.tensor([0, 1e-3, 1, 90, 1e4, 1e30]).expand(1, 1, 64, -1)
    tokens = RecurrenceInputs(q, k, v, decay, torch.full((1, 1, 64), 0.5))
    tokens = tokens._replace(q=tokens.q.clone().requires_grad_(), decay=decay.clone().requires_grad_())
    exact = RecurrenceInputs(*(part if part is None else part.detach().double() for part in tokens))
    want = scan_by_token(exact, make_empty_memory(exact))[0]
    got = scan_by_chunk(tokens, make_empty_memory(tokens), size)[0]
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5)
    got.square().sum().backward()
    assert tokens.decay.grad.isfinite().all()


def test_empty_input_leaves_the_memory_unchanged():
    tokens = RecurrenceInputs(*(torch.zeros(2, 3, 0, 4) for _ in range(3)), torch.zeros(2, 3, 0))
    memory = torch.ones_like(make_empty_memory(tokens))
    for scan in (scan_by_token, lambda *args: scan_by_chunk(*args, 8)):
        output, left = scan(tokens, memory)
        assert output.shape == (2, 3, 0, 4)
        assert torch.equal(left, memory)


MIXERS = {
    "linear": lambda: LinearAttention(M, H),
    "decay": lambda: ScalarDecay(M, H, N),
    "delta": lambda: GatedDeltaNet(M, H),
    "negative": lambda: GatedDeltaNet(M, H, max_write=2, decay=False),
    "product": lambda: GatedDeltaNet(M, H, max_write=2, steps_per_token=3),
    "kda": lambda: KimiDeltaAttention(M, H),
    "feature gates": lambda: KimiDeltaAttention(M, H, feature_gates=True),
    "gated linear": lambda: GatedLinearAttention(M, H, N, 2),
    "taylor": lambda: TaylorAttention(M, H, 3),
}


@pytest.mark.parametrize("mixer", MIXERS)
def test_memory_mixer_rejects_masks_that_hide_single_keys(mixer):
    def without_one(b, h, q_idx, kv_idx):
        return (kv_idx != 2) | (q_idx == 2)

    module = prepare_mixer(MIXERS[mixer]())
    with pytest.raises(Unsupported, match="only padding and document masks"):
        module(make_input(), mask=without_one)
    module(make_input(2), mask=make_document_mask(torch.tensor([[0] * 4 + [1] * 5, [0] * 7 + [2] * 2])))


@pytest.mark.parametrize("mixer", MIXERS)
def test_carried_size_is_independent_of_the_length(mixer):
    module, sizes = prepare_mixer(MIXERS[mixer]()), []
    for length in (1, 4, 9):
        cache = DynamicCache()
        module(make_input()[:, :length], cache=cache)
        sizes.append(cache.live_bytes())
    assert set(sizes) == {module.carried_size()}


@pytest.mark.parametrize("mixer", MIXERS)
def test_gradients_are_finite_at_document_starts(mixer):
    module, x = prepare_mixer(MIXERS[mixer]()), make_input(2).requires_grad_()
    ids = torch.tensor([[0] * 4 + [1] * 5, list(range(9))])
    module(x, mask=make_document_mask(ids)).square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
