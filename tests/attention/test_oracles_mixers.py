"""Mixers with a memory of fixed size: token by token as papers write them, in plain loops in float64; and
chunks of any size, the same.
"""

import math

import numpy as np
import pytest
import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import Unsupported
from attnlab.attention.masks.data import documents
from attnlab.attention.mixers.delta import GatedDeltaNet
from attnlab.attention.mixers.linear import LinearAttention
from attnlab.attention.mixers.recurrence import Tokens, by_chunk, by_token, empty
from attnlab.attention.mixers.scalar_decay import ScalarDecay
from attnlab.attention.mixers.taylor import TaylorAttention
from attnlab.testing.laws.variant import randomised

T, M, H, D, N = 9, 12, 3, 4, 5


def made(mixer):
    return randomised(mixer).double().eval()


def given(rows=1):
    return torch.randn(rows, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def array(tensor):
    return tensor.detach().numpy()


def same(module, rows):
    np.testing.assert_allclose(array(module(given()))[0], np.stack(rows), rtol=0, atol=1e-12)


def silu(x):
    return x / (1 + np.exp(-x))


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(x))


def convolved(rows, weight):
    out = []
    for t, row in enumerate(rows):
        total = row.copy()
        for back in range(min(len(weight), t + 1)):
            total = total + weight[back] * rows[t - back]
        out.append(silu(total))
    return out


def rates(module, x):
    """[T] of steps and of what is kept, each [H]."""
    weight, shift = array(module.rates.step.weight), array(module.rates.shift)
    steps = [np.log1p(np.exp(weight @ token + shift)) for token in x]
    return steps, [np.exp(-np.exp(array(module.rates.log_rate)) * step) for step in steps]


def rms_norm(x, gain):
    return gain * x / math.sqrt((x @ x) / len(x) + 1e-6)


@pytest.mark.parametrize("decay", [False, True])
def test_linear_attention_is_a_sum_of_features_over_all_keys(decay):
    module, x = made(LinearAttention(M, H, decay, chunk=4)), array(given())[0]
    rows = [array(module.qkv.weight) @ token for token in x]
    out = []
    for t in range(T):
        heads = []
        for h in range(H):
            q, (top, total) = elu_plus_one(rows[t][h * D :][:D]), (np.zeros(D), 0.0)
            for s in range(t + 1):
                kept = (1 - 2.0 ** (-5 - h)) ** (t - s) if decay else 1.0
                like = kept * (q @ elu_plus_one(rows[s][M + h * D :][:D]))
                top, total = top + like * rows[s][2 * M + h * D :][:D], total + like
            heads.append(top / total)
        out.append(array(module.out.weight) @ np.concatenate(heads))
    same(module, out)


@pytest.mark.parametrize("features", [1, 2, 3])
def test_a_polynomial_stands_for_the_exponential(features):
    module, x = made(TaylorAttention(M, H, features, convolution=2, chunk=4)), array(given())[0]
    weight = array(module.convolution.weight)
    rows = [array(module.qkv.weight) @ token for token in x]
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
        out.append(array(module.out.weight) @ np.concatenate(heads))
    same(module, out)


@pytest.mark.parametrize("delta", [True, False])
def test_a_gated_delta_rule_replaces_what_the_memory_has_for_a_key(delta):
    module, x = made(GatedDeltaNet(M, H, 3, delta, chunk=4)), array(given())[0]
    rows = [array(module.qkv.weight) @ token for token in x]
    rows = convolved(rows, array(module.convolution.weight))
    kept, memory, out = rates(module, x)[1], np.zeros((H, D, D)), []
    for t in range(T):
        heads = []
        write = 1 / (1 + np.exp(-array(module.write.weight) @ x[t]))
        for h in range(H):
            q, k, v = (rows[t][n * M + h * D :][:D] for n in range(3))
            q, k = q / np.linalg.norm(q), k / np.linalg.norm(k)
            forgets = np.eye(D) - write[h] * np.outer(k, k) if delta else np.eye(D)
            memory[h] = kept[t][h] * forgets @ memory[h] + write[h] * np.outer(k, v)
            heads.append(rms_norm(memory[h].T @ q, array(module.norm.weight)))
        gate = silu(array(module.gate.weight) @ x[t])
        out.append(array(module.out.weight) @ (np.concatenate(heads) * gate))
    same(module, out)


def test_a_state_space_with_one_decay_a_head_fades_by_its_steps():
    module, x = made(ScalarDecay(M, H, N, 4, chunk=2)), array(given())[0]
    rows = convolved([array(module.vkq.weight) @ t for t in x], array(module.convolution.weight))
    (steps, kept), memory, out = rates(module, x), np.zeros((H, N, D)), []
    for t in range(T):
        k, q, heads = rows[t][M : M + N], rows[t][M + N :], []
        for h in range(H):
            v = rows[t][h * D :][:D]
            memory[h] = kept[t][h] * memory[h] + steps[t][h] * np.outer(k, v)
            heads.append(memory[h].T @ q + array(module.skip)[h] * v)
        gated = np.concatenate(heads) * silu(array(module.gate.weight) @ x[t])
        out.append(array(module.out.weight) @ rms_norm(gated, array(module.norm.weight)))
    same(module, out)


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("documented", [True, False])
@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 40])
def test_chunks_of_any_size_and_all_at_once_are_the_recurrence(size, documented, delta):
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape):
        return torch.randn(2, *shape, dtype=torch.float64, generator=generator)

    q, k, v = drawn(3, 17, 4), drawn(3, 17, 4), drawn(3, 17, 5)
    reset = torch.rand(2, 17, generator=generator) < 0.2 if documented else None
    write = torch.sigmoid(drawn(3, 17)) if delta else None
    k = torch.nn.functional.normalize(k, dim=-1)
    tokens = Tokens(q, k, v, -drawn(3, 17).exp(), write, reset)
    memory = drawn(3, 4, 5)
    expected = by_token(tokens, memory)
    for got, want in zip(by_chunk(tokens, memory, size), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_no_tokens_leave_the_memory_as_it_was():
    tokens = Tokens(*(torch.zeros(2, 3, 0, 4) for _ in range(3)), torch.zeros(2, 3, 0))
    memory = torch.ones_like(empty(tokens))
    for way in (by_token, lambda *given: by_chunk(*given, 8)):
        output, left = way(tokens, memory)
        assert output.shape == (2, 3, 0, 4)
        assert torch.equal(left, memory)


MIXERS = {
    "linear": lambda: LinearAttention(M, H),
    "decay": lambda: ScalarDecay(M, H, N),
    "delta": lambda: GatedDeltaNet(M, H),
    "taylor": lambda: TaylorAttention(M, H, 3),
}


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_memory_refuses_to_leave_out_what_it_has_read(mixer):
    def without_one(b, h, q_pos, kv_pos):
        return (kv_pos != 2) | (q_pos == 2)

    module = made(MIXERS[mixer]())
    with pytest.raises(Unsupported, match="only padding and whole documents"):
        module(given(), mask=without_one)
    module(given(2), mask=documents(torch.tensor([[0] * 4 + [1] * 5, [0] * 7 + [2] * 2])))


@pytest.mark.parametrize("mixer", MIXERS)
def test_what_is_carried_is_of_one_size_however_long_the_text(mixer):
    module, sizes = made(MIXERS[mixer]()), []
    for length in (1, 4, 9):
        cache = DynamicCache()
        module(given()[:, :length], cache=cache)
        sizes.append(cache.live_bytes())
    assert set(sizes) == {module.carried_size()}


@pytest.mark.parametrize("mixer", MIXERS)
def test_gradients_are_finite_where_a_document_begins(mixer):
    module, x = made(MIXERS[mixer]()), given(2).requires_grad_()
    ids = torch.tensor([[0] * 4 + [1] * 5, list(range(9))])
    module(x, mask=documents(ids)).square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
