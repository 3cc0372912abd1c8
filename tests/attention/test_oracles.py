"""What papers write, in plain loops over tokens and heads in float64, against the layer that ships."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attnlab.attention.epilogue import Convolved, Exclusive, Gate
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.normalisers import Sigmoid, TalkingHeads, off_by_one, softpick
from attnlab.attention.past.forgetting import Forgetting
from attnlab.attention.scores.log_length import LearnedLogLength
from attnlab.testing.laws.variant import randomised

T, M, H, D = 7, 15, 3, 5
Array = NDArray[np.float64]


def layer(n_kv_heads=H, convolution=0, **parts):
    heads = GroupedHeads(M, H, n_kv_heads, None, False, False, convolution=convolution)
    return randomised(Attention(heads, eager, {"causal": causal}, **parts)).double().eval()


def given():
    return torch.randn(1, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def array(tensor):
    return tensor.detach().numpy()


def projected(module, x):
    """q [T][H], k and v [T][H], a KV head repeated over its group."""
    weight, G = array(module.heads.qkv.weight), module.heads.n_kv_heads
    rows = [weight @ token for token in x]
    q = [[row[h * D : (h + 1) * D] for h in range(H)] for row in rows]
    k = [[row[(H + h // (H // G)) * D :][:D] for h in range(H)] for row in rows]
    v = [[row[(H + G + h // (H // G)) * D :][:D] for h in range(H)] for row in rows]
    return q, k, v


def softmax(scores):
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


def attended(q, k, v, score=lambda plain, h, t, s: plain, weigh=softmax):
    """[T][H] of what each head sums up, over keys up to the query's own."""
    out = []
    for t in range(len(q)):
        out.append([])
        for h in range(H):
            plain = [float(q[t][h] @ k[s][h]) / math.sqrt(D) for s in range(t + 1)]
            weights = weigh([score(each, h, t, s) for s, each in enumerate(plain)])
            out[-1].append(sum(weight * v[s][h] for s, weight in enumerate(weights)))
    return out


def merged(module, out):
    weight = array(module.heads.out.weight)
    return np.stack([weight @ np.concatenate(heads) for heads in out])


def same(module, out):
    x = given()
    np.testing.assert_allclose(array(module(x))[0], merged(module, out), rtol=0, atol=1e-12)


def sigmoid(number):
    return 1 / (1 + np.exp(-number))


@pytest.mark.parametrize("groups", [1, H])
def test_exclusive_attention_leaves_out_what_lies_along_the_own_value(groups):
    module, x = layer(groups, epilogue=Exclusive()), array(given())[0]
    q, k, v = projected(module, x)
    out = attended(q, k, v)
    for t in range(T):
        for h in range(H):
            own = v[t][h]
            out[t][h] = out[t][h] - (out[t][h] @ own) / (own @ own) * own
    same(module, out)


@pytest.mark.parametrize("groups", [1, H])
@pytest.mark.parametrize("start", [0.0, 1.5])
def test_forgetting_attention_adds_the_logarithms_of_the_gates_in_between(groups, start):
    module, x = layer(groups, forgetting=Forgetting(M, H, start)), array(given())[0]
    weight, bias = array(module.forgetting.gate.weight), array(module.forgetting.gate.bias)
    gates = [[float(sigmoid(weight[h] @ token + bias[h] + start)) for h in range(H)] for token in x]

    def score(plain, h, t, s):
        kept = 1.0
        for between in range(s + 1, t + 1):
            kept *= gates[between][h]
        return plain + math.log(kept)

    same(module, attended(*projected(module, x), score))


def convolved(rows, weight):
    """x_t + w_0 x_t + w_1 x_(t-1) + ..., of vectors."""
    out = []
    for t in range(len(rows)):
        total = rows[t].copy()
        for back in range(len(weight)):
            if t - back >= 0:
                total = total + weight[back] * rows[t - back]
        out.append(total)
    return out


@pytest.mark.parametrize("groups", [1, H])
def test_keys_and_values_are_convolved_as_they_are_projected(groups):
    module, x = layer(groups, convolution=4), array(given())[0]
    weight = array(module.heads.convolution.weight)
    q, k, v = projected(module, x)
    for h in range(H):
        g = h // (H // groups)
        for n, part in enumerate((k, v)):
            channels = weight[:, (n * groups + g) * D :][:, :D]
            for t, row in enumerate(convolved([part[t][h] for t in range(T)], channels)):
                part[t][h] = row
    same(module, attended(q, k, v))


def test_what_is_attended_is_convolved():
    module, x = layer(epilogue=Convolved(H, D, 3)), array(given())[0]
    flat = [np.concatenate(heads) for heads in attended(*projected(module, x))]
    rows = convolved(flat, array(module.epilogue.convolution.weight))
    same(module, [np.split(row, H) for row in rows])


def test_a_gate_reads_few_channels_and_starts_where_it_is_told():
    module, x = layer(epilogue=Gate(M, H, D, per_head=True, channels=4, start=-0.5)), array(given())[0]
    weight, bias = array(module.epilogue.gate.weight), array(module.epilogue.gate.bias)
    out = attended(*projected(module, x))
    for t in range(T):
        for h in range(H):
            out[t][h] = out[t][h] * sigmoid(weight[h] @ x[t][:4] + bias[h] - 0.5)
    same(module, out)


def test_a_learned_log_length_multiplies_scores_by_the_logarithm_of_the_keys():
    module, x = layer(scores={"ssmax": LearnedLogLength(H, 64)}), array(given())[0]
    slope = array(next(iter(module.scores)).slope)
    same(module, attended(*projected(module, x), lambda plain, h, t, s: plain * slope[h] * math.log(t + 1)))


def test_a_learned_log_length_starts_as_nothing_at_its_base():
    score, one = LearnedLogLength(H, 64), torch.ones(1, dtype=torch.float64)
    at_base = score(one, torch.tensor(0), torch.tensor(1), torch.tensor(63), torch.tensor(0))
    assert at_base.item() == pytest.approx(1, rel=1e-7)


def less_one(scores):
    """relu(e^s - 1) over the sum of |e^s - 1|."""
    above = [math.exp(score) - 1 for score in scores]
    return [max(each, 0.0) / sum(abs(other) for other in above) for each in above]


@pytest.mark.parametrize(
    ("normaliser", "weigh"),
    [
        (off_by_one, lambda scores: [math.exp(s) / (1 + sum(map(math.exp, scores))) for s in scores]),
        (softpick, less_one),
        (Sigmoid(64), lambda scores: [1 / (1 + 64 * math.exp(-s)) for s in scores]),
    ],
    ids=["off_by_one", "softpick", "sigmoid"],
)
def test_weights_are_what_their_paper_makes_of_scores(normaliser, weigh):
    module, x = layer(normaliser=normaliser), array(given())[0]
    same(module, attended(*projected(module, x), weigh=weigh))


@pytest.mark.parametrize("normaliser", [off_by_one, softpick, Sigmoid(64)])
def test_scores_of_thousands_give_finite_weights_and_gradients(normaliser):
    scores = torch.tensor([[-1e4, 1e4, 9.9e3, -torch.inf], [-1e4] * 4, [0.0] * 4]).requires_grad_()
    weights = normaliser(scores)
    assert weights.isfinite().all()
    assert weights[0, 1].item() == pytest.approx(1)
    assert weights[0, 3] == 0
    weights.sum().backward()
    assert scores.grad.isfinite().all()


def test_talking_heads_mix_scores_before_the_softmax_and_weights_after_it():
    module, x = layer(normaliser=TalkingHeads(H)), array(given())[0]
    before, after = array(module.normaliser.of_scores), array(module.normaliser.of_weights)
    q, k, v = projected(module, x)
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
    same(module, out)


def test_a_key_that_is_hidden_from_one_head_says_nothing_to_the_others_there():
    talking = randomised(TalkingHeads(2)).double()
    scores = torch.tensor([[[[1.0, 2.0]], [[3.0, -torch.inf]]]], dtype=torch.float64)
    weights, (before, after) = talking(scores), (talking.of_scores, talking.of_weights)
    mixed = torch.stack((before[0, 0] * 1 + before[0, 1] * 3, before[0, 0] * 2))
    of_first = mixed.softmax(0)
    assert weights[0, 1, 0, 1] == 0, "nor is it given anything"
    assert weights[0, 0, 0].tolist() == pytest.approx(
        [(after[0, 0] * of_first[0] + after[0, 1]).item(), (after[0, 0] * of_first[1]).item()]
    )
