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


@pytest.mark.parametrize("delta", [True, False])
def test_gated_delta_rule_replaces_the_value_of_a_key(delta):
    module, x = prepare_mixer(GatedDeltaNet(M, H, 3, delta, chunk=4)), to_array(make_input())[0]
    rows = [to_array(module.qkv.weight) @ token for token in x]
    rows = convolve_silu(rows, to_array(module.convolution.weight))
    decays, memory, out = compute_decays(module, x)[1], np.zeros((H, D, D)), []
    for t in range(T):
        heads = []
        write = 1 / (1 + np.exp(-to_array(module.write.weight) @ x[t]))
        for h in range(H):
            q, k, v = (rows[t][n * M + h * D :][:D] for n in range(3))
            q, k = q / np.linalg.norm(q), k / np.linalg.norm(k)
            forgets = np.eye(D) - write[h] * np.outer(k, k) if delta else np.eye(D)
            memory[h] = decays[t][h] * forgets @ memory[h] + write[h] * np.outer(k, v)
            heads.append(rms_norm(memory[h].T @ q, to_array(module.norm.weight)))
        gate = silu(to_array(module.gate.weight) @ x[t])
        out.append(to_array(module.out.weight) @ (np.concatenate(heads) * gate))
    assert_output_equals(module, out)


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


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("documented", [True, False])
@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 40])
def test_scan_by_chunk_equals_scan_by_token(size, documented, delta):
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(2, *shape, dtype=torch.float64, generator=generator)

    q, k, v = draw(3, 17, 4), draw(3, 17, 4), draw(3, 17, 5)
    reset = torch.rand(2, 17, generator=generator) < 0.2 if documented else None
    write = torch.sigmoid(draw(3, 17)) if delta else None
    k = torch.nn.functional.normalize(k, dim=-1)
    tokens = RecurrenceInputs(q, k, v, -draw(3, 17).exp(), write, reset)
    memory = draw(3, 4, 5)
    expected = scan_by_token(tokens, memory)
    for got, want in zip(scan_by_chunk(tokens, memory, size), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


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
