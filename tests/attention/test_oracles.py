"""The papers' formulas, in plain loops over tokens and heads in float64, against the layer."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attnlab.attention.epilogue import ConvolutionEpilogue, ExclusiveEpilogue, ExclusiveGate, Gate
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.normalizers import Sigmoid, TalkingHeads, off_by_one, softpick
from attnlab.attention.scores.log_length import LearnedLogLength
from attnlab.attention.stateful.forget_gate import ForgetGate
from attnlab.testing.invariants.variant import randomize

T, M, H, D = 7, 15, 3, 5
Array = NDArray[np.float64]


def make_layer(n_kv_heads=H, convolution=0, **parts):
    heads = GroupedHeads(M, H, n_kv_heads, None, False, False, convolution=convolution)
    return randomize(Attention(heads, eager, {"causal": causal}, **parts)).double().eval()


def make_input():
    return torch.randn(1, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def to_array(tensor):
    return tensor.detach().numpy()


def project_qkv(module, x):
    """q [T][H], k and v [T][H], a KV head repeated over its group."""
    weight, G = to_array(module.heads.qkv.weight), module.heads.n_kv_heads
    rows = [weight @ token for token in x]
    q = [[row[h * D : (h + 1) * D] for h in range(H)] for row in rows]
    k = [[row[(H + h // (H // G)) * D :][:D] for h in range(H)] for row in rows]
    v = [[row[(H + G + h // (H // G)) * D :][:D] for h in range(H)] for row in rows]
    return q, k, v


def softmax(scores):
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


def attend(q, k, v, score=lambda plain, h, t, s: plain, weigh=softmax):
    """Output of each head [T][H], over keys up to the query's own."""
    out = []
    for t in range(len(q)):
        out.append([])
        for h in range(H):
            plain = [float(q[t][h] @ k[s][h]) / math.sqrt(D) for s in range(t + 1)]
            weights = weigh([score(each, h, t, s) for s, each in enumerate(plain)])
            out[-1].append(sum(weight * v[s][h] for s, weight in enumerate(weights)))
    return out


def project_output(module, out):
    weight = to_array(module.heads.out.weight)
    return np.stack([weight @ np.concatenate(heads) for heads in out])


def assert_output_equals(module, out):
    x = make_input()
    np.testing.assert_allclose(to_array(module(x))[0], project_output(module, out), rtol=0, atol=1e-12)


def sigmoid(number):
    return 1 / (1 + np.exp(-number))


@pytest.mark.parametrize("groups", [1, H])
def test_exclusive_attention_removes_the_component_along_the_own_value(groups):
    module, x = make_layer(groups, epilogue=ExclusiveEpilogue()), to_array(make_input())[0]
    q, k, v = project_qkv(module, x)
    out = attend(q, k, v)
    for t in range(T):
        for h in range(H):
            own = v[t][h]
            out[t][h] = out[t][h] - (out[t][h] @ own) / (own @ own) * own
    assert_output_equals(module, out)


@pytest.mark.parametrize("groups", [1, H])
def test_exclusive_gate_scales_the_output_without_the_own_value(groups):
    module, x = make_layer(groups, epilogue=ExclusiveGate(M, H, D)), to_array(make_input())[0]
    weight, bias = (to_array(each) for each in module.epilogue.output_gate.gate.parameters())
    q, k, v = project_qkv(module, x)
    out = attend(q, k, v)
    for t in range(T):
        gates = sigmoid(weight @ x[t] + bias)
        for h in range(H):
            own = v[t][h]
            exclusive = out[t][h] - (out[t][h] @ own) / (own @ own) * own
            out[t][h] = gates[h * D : (h + 1) * D] * exclusive
    assert_output_equals(module, out)


@pytest.mark.parametrize("groups", [1, H])
@pytest.mark.parametrize("start", [0.0, 1.5])
def test_forgetting_attention_adds_the_log_gates_in_between(groups, start):
    module, x = make_layer(groups, forgetting=ForgetGate(M, H, start)), to_array(make_input())[0]
    weight, bias = to_array(module.forgetting.gate.weight), to_array(module.forgetting.gate.bias)
    gates = [[float(sigmoid(weight[h] @ token + bias[h] + start)) for h in range(H)] for token in x]

    def score(plain, h, t, s):
        gate_product = 1.0
        for between in range(s + 1, t + 1):
            gate_product *= gates[between][h]
        return plain + math.log(gate_product)

    assert_output_equals(module, attend(*project_qkv(module, x), score))


def convolve(rows, weight):
    """x_t + w_0 x_t + w_1 x_(t-1) + ..., of vectors."""
    out = []
    for t in range(len(rows)):
        total = rows[t].copy()
        for distance in range(len(weight)):
            if t - distance >= 0:
                total = total + weight[distance] * rows[t - distance]
        out.append(total)
    return out


@pytest.mark.parametrize("groups", [1, H])
def test_projected_keys_and_values_are_convolved(groups):
    module, x = make_layer(groups, convolution=4), to_array(make_input())[0]
    weight = to_array(module.heads.convolution.weight)
    q, k, v = project_qkv(module, x)
    for h in range(H):
        g = h // (H // groups)
        for n, part in enumerate((k, v)):
            channels = weight[:, (n * groups + g) * D :][:, :D]
            for t, row in enumerate(convolve([part[t][h] for t in range(T)], channels)):
                part[t][h] = row
    assert_output_equals(module, attend(q, k, v))


def test_convolution_epilogue_convolves_the_attention_output():
    module, x = make_layer(epilogue=ConvolutionEpilogue(H, D, 3)), to_array(make_input())[0]
    flat = [np.concatenate(heads) for heads in attend(*project_qkv(module, x))]
    rows = convolve(flat, to_array(module.epilogue.convolution.weight))
    assert_output_equals(module, [np.split(row, H) for row in rows])


def test_gate_reads_the_first_channels_and_adds_its_start():
    module, x = (
        make_layer(epilogue=Gate(M, H, D, per_head=True, channels=4, start=-0.5)),
        to_array(make_input())[0],
    )
    weight, bias = to_array(module.epilogue.gate.weight), to_array(module.epilogue.gate.bias)
    out = attend(*project_qkv(module, x))
    for t in range(T):
        for h in range(H):
            out[t][h] = out[t][h] * sigmoid(weight[h] @ x[t][:4] + bias[h] - 0.5)
    assert_output_equals(module, out)


def test_learned_log_length_scales_scores_by_the_log_of_the_keys():
    module, x = make_layer(scores={"ssmax": LearnedLogLength(H, 64)}), to_array(make_input())[0]
    slope = to_array(next(iter(module.scores)).slope)
    assert_output_equals(
        module, attend(*project_qkv(module, x), lambda plain, h, t, s: plain * slope[h] * math.log(t + 1))
    )


def test_learned_log_length_starts_neutral_at_its_base():
    score, one = LearnedLogLength(H, 64), torch.ones(1, dtype=torch.float64)
    at_base = score(one, torch.tensor(0), torch.tensor(1), torch.tensor(63), torch.tensor(0))
    assert at_base.item() == pytest.approx(1, rel=1e-7)


def compute_softpick(scores):
    """relu(e^s - 1) / Σ |e^s - 1|."""
    shifted = [math.exp(score) - 1 for score in scores]
    return [max(each, 0.0) / sum(abs(other) for other in shifted) for each in shifted]


@pytest.mark.parametrize(
    ("normalizer", "weigh"),
    [
        (off_by_one, lambda scores: [math.exp(s) / (1 + sum(map(math.exp, scores))) for s in scores]),
        (softpick, compute_softpick),
        (Sigmoid(64), lambda scores: [1 / (1 + 64 * math.exp(-s)) for s in scores]),
    ],
    ids=["off_by_one", "softpick", "sigmoid"],
)
def test_normalizer_matches_its_paper(normalizer, weigh):
    module, x = make_layer(normalizer=normalizer), to_array(make_input())[0]
    assert_output_equals(module, attend(*project_qkv(module, x), weigh=weigh))


@pytest.mark.parametrize("normalizer", [off_by_one, softpick, Sigmoid(64)])
def test_huge_scores_give_finite_weights_and_gradients(normalizer):
    scores = torch.tensor([[-1e4, 1e4, 9.9e3, -torch.inf], [-1e4] * 4, [0.0] * 4]).requires_grad_()
    weights = normalizer(scores)
    assert weights.isfinite().all()
    assert weights[0, 1].item() == pytest.approx(1)
    assert weights[0, 3] == 0
    weights.sum().backward()
    assert scores.grad.isfinite().all()


def test_talking_heads_mix_scores_before_and_weights_after_the_softmax():
    module, x = make_layer(normalizer=TalkingHeads(H)), to_array(make_input())[0]
    before, after = to_array(module.normalizer.of_scores), to_array(module.normalizer.of_weights)
    q, k, v = project_qkv(module, x)
    out = [[np.zeros(D) for h in range(H)] for t in range(T)]
    for t in range(T):
        plain = [[float(q[t][h] @ k[s][h]) / math.sqrt(D) for s in range(t + 1)] for h in range(H)]
        weights = [
            softmax([sum(before[h][i] * plain[i][s] for i in range(H)) for s in range(t + 1)])
            for h in range(H)
        ]
        for h in range(H):
            for s in range(t + 1):
                out[t][h] = out[t][h] + sum(after[h][i] * weights[i][s] for i in range(H)) * v[s][h]
    assert_output_equals(module, out)


def test_key_hidden_from_one_head_contributes_nothing_to_others():
    talking = randomize(TalkingHeads(2)).double()
    scores = torch.tensor([[[[1.0, 2.0]], [[3.0, -torch.inf]]]], dtype=torch.float64)
    weights, (before, after) = talking(scores), (talking.of_scores, talking.of_weights)
    mixed = torch.stack((before[0, 0] * 1 + before[0, 1] * 3, before[0, 0] * 2))
    of_first = mixed.softmax(0)
    assert weights[0, 1, 0, 1] == 0, "nor does it receive anything"
    assert weights[0, 0, 0].tolist() == pytest.approx(
        [(after[0, 0] * of_first[0] + after[0, 1]).item(), (after[0, 0] * of_first[1]).item()]
    )
