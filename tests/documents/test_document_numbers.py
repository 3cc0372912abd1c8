"""Numbers printed by the source documents, computed by this code; comments note the wrong ones.

docs/bibliography.md lists the documents: the microgpt lesson (000), the GPT handbook page (001), the
CausalSelfAttention tutorial (002), the attention maths page (003) and the gollm chapter (004). A printed
number is repeated only to show that it is wrong.
"""

import math

import numpy as np
import pytest
import torch

from attnlab.attention.contracts import AttentionInputs
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.masks.causal import causal


def attend(q, k, v=None, scale=None, mask=None):
    """(weights, output) of the eager kernel for one head; rows are tokens, float64."""
    q, k = (torch.as_tensor(part, dtype=torch.float64)[None, None] for part in (q, k))
    v = k if v is None else torch.as_tensor(v, dtype=torch.float64)[None, None]
    q_idx, kv_idx = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    indices = (q_idx[None, None], kv_idx[None, None])
    output = eager(AttentionInputs(q, k, v, *indices, scale, mask, need=("weights",)))
    return output.weights[0, 0], output.out[0, 0]


def compute_scores(q, k, scale=None):
    """Scores of the eager kernel, recorded by a score function."""
    recorded = []

    def record_score(score, b, h, q_idx, kv_idx):
        recorded.append(score)
        return score

    q, k = (torch.as_tensor(part, dtype=torch.float64)[None, None] for part in (q, k))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    eager(AttentionInputs(q, k, k, torch.zeros(1), torch.zeros(1), scale, scores=(record_score,)))
    return recorded[0][0, 0]


def softmax(scores):
    """Attention weights of keys that have these scores."""
    return attend([[1.0]], [[score] for score in scores], scale=1.0)[0][0]


def assert_rounded(value, printed, digits=3):
    """Assert equality with numbers rounded to `digits` digits."""
    torch.testing.assert_close(
        torch.as_tensor(value), torch.tensor(printed, dtype=torch.float64), rtol=0, atol=0.5 * 10**-digits
    )


# --- microgpt lesson: the worked softmax and the three-token example ---


def test_microgpt_lesson_softmax():
    assert_rounded(softmax([2.1, 0.5, 1.3]), [0.606, 0.122, 0.272])  # printed [0.56, 0.11, 0.33]


K0, K1, Q2 = [0.2, -0.1, 0.3, 0.0], [0.1, 0.4, -0.2, 0.1], [0.3, 0.3, 0.1, -0.1]
V = [
    [1.0, 0.5],
    [0.3, -0.1],
    [0.3, 0.5],  # implied only; the last two features are never given
]


def test_microgpt_lesson_scores_are_right():
    # the lesson uses k2 = q2 without stating it
    assert_rounded(compute_scores([Q2], [K0, K1, Q2])[0], [0.03, 0.06, 0.10], digits=12)


def test_microgpt_lesson_weights_and_output():
    weights, out = attend([Q2], [K0, K1, Q2], V)
    assert_rounded(weights[0], [0.322, 0.332, 0.346])  # printed [0.316, 0.333, 0.351]
    assert_rounded(out[0], [0.526, 0.301])  # printed [0.620, 0.300]


def test_microgpt_lesson_output_does_not_follow_from_its_weights():
    log = torch.tensor([[0.316], [0.333], [0.351]], dtype=torch.float64).log()
    # printed 0.620; the second is right
    assert_rounded(attend([[1.0]], log, V, scale=1.0)[1][0], [0.521, 0.300])


# --- GPT handbook page: the printed causal matrix ---

HANDBOOK_WEIGHTS = [
    [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.3, 0.7, 0.0, 0.0, 0.0, 0.0],
    [0.1, 0.2, 0.7, 0.0, 0.0, 0.0],
    [0.0, 0.1, 0.2, 0.7, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.1, 0.9, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.1, 0.9],
]


def test_gpt_handbook_the_cannot_attend_to_mat():
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    weights, _ = attend(x, x, mask=causal)
    the, mat = 4, 5
    assert weights[the, mat] == 0  # offered as an example of attending to a related word; it is the future
    assert weights[mat, the] > 0  # the entry that is not zero is the other way round
    assert HANDBOOK_WEIGHTS[the][mat] == 0
    assert HANDBOOK_WEIGHTS[mat][the] == 0.1


def test_gpt_handbook_and_maths_page_rows_sum_to_one():
    maths_page_weights = [
        [0.1, 0.7, 0.1, 0.1],
        [0.2, 0.2, 0.4, 0.2],
        [0.3, 0.3, 0.2, 0.2],
        [0.1, 0.1, 0.1, 0.7],
    ]
    for matrix in (HANDBOOK_WEIGHTS, maths_page_weights):
        assert_rounded(torch.tensor(matrix, dtype=torch.float64).sum(1), [1.0] * len(matrix), digits=12)


def test_gpt_handbook_gpt2_has_biases_on_q_k_v():
    heads = GroupedHeads(768, 12, 12, None, bias=True, out_bias=True)
    # `h.0.attn.c_attn.bias` of its checkpoints; printed: GPT-2 uses none
    assert heads.qkv.bias.shape == (2304,)


# --- CausalSelfAttention tutorial: crane, and the 3 x 2 example ---

CRANE = [[0.7, 0.7], [0.1, 0.9], [0.1, 0.9]]  # crane, lifted, steel, as plotted
X = [[1.0, 0.2], [0.8, 0.5], [0.1, 0.9]]


def test_tutorial_crane_vector_from_the_printed_weights():
    log = torch.tensor([[0.2], [0.4], [0.4]], dtype=torch.float64).log()
    # printed (0.3, 0.8)
    assert_rounded(attend([[1.0]], log, CRANE, scale=1.0)[1][0], [0.22, 0.86], digits=12)


def test_tutorial_crane_attends_to_itself_most():
    scores = torch.tensor(CRANE, dtype=torch.float64) @ torch.tensor(CRANE[0], dtype=torch.float64)
    # the tutorial claims the opposite: the neighbors HIGH, itself medium
    assert_rounded(scores, [0.98, 0.70, 0.70], digits=12)
    assert_rounded(attend(CRANE[:1], CRANE)[0][0], [0.379, 0.311, 0.311])


def test_tutorial_scores_are_right():
    raw = [[1.04, 0.90, 0.28], [0.90, 0.89, 0.53], [0.28, 0.53, 0.82]]
    assert_rounded(compute_scores(X, X, scale=1.0), raw, digits=2)
    assert_rounded(
        compute_scores(X, X), [[0.74, 0.64, 0.20], [0.64, 0.63, 0.37], [0.20, 0.37, 0.58]], digits=2
    )


def test_tutorial_weights():
    weights, _ = attend(X, X)
    assert_rounded(weights[0], [0.4016, 0.3638, 0.2346], digits=4)  # printed [0.39, 0.35, 0.26]
    assert_rounded(weights[1], [0.36, 0.36, 0.28], digits=2)  # right
    assert_rounded(weights[2], [0.2733, 0.3262, 0.4004], digits=4)  # printed [0.28, 0.34, 0.38]


def test_tutorial_output():
    # printed [[0.69, 0.51], [0.67, 0.53], [0.59, 0.58]]
    assert_rounded(attend(X, X)[1], [[0.72, 0.47], [0.68, 0.50], [0.57, 0.58]], digits=2)


def test_tutorial_output_does_not_follow_from_its_weights():
    printed = torch.tensor([[0.39, 0.35, 0.26], [0.36, 0.36, 0.28], [0.28, 0.34, 0.38]], dtype=torch.float64)
    _, out = attend(torch.eye(3), printed.log().T, X, scale=1.0)
    assert_rounded(out, [[0.70, 0.49], [0.68, 0.50], [0.59, 0.57]], digits=2)


def test_tutorial_causal_weights():
    weights, _ = attend(X, X, mask=causal)
    assert_rounded(weights[:2], [[1.00, 0.00, 0.00], [0.50, 0.50, 0.00]], digits=2)
    assert_rounded(weights[2], [0.27, 0.33, 0.40], digits=2)  # printed [0.29, 0.35, 0.36]
    assert torch.equal(weights[2], attend(X, X)[0][2])  # the last row sees everything: a mask changes nothing


# --- attention maths page: variance, saturation, masks, and the example that prints nothing ---


def test_maths_page_seed_42_example():
    generator = np.random.RandomState(42)  # np.random.seed(42); the printed output is missing
    q, k, v = (generator.randn(4, 8) for _ in range(3))
    weights, _ = attend(q, k, v)
    want = [
        [0.084, 0.255, 0.515, 0.145],
        [0.641, 0.133, 0.017, 0.209],
        [0.470, 0.088, 0.111, 0.331],
        [0.178, 0.492, 0.201, 0.130],
    ]
    assert_rounded(weights, want)


DIMS = (4, 16, 64, 256, 1024)


@pytest.mark.parametrize("dim", DIMS)
def test_maths_page_dot_product_variance_is_the_dimension(dim):
    draws = 20_000
    generator = torch.Generator().manual_seed(dim)
    q, k = (torch.randn(draws, dim, generator=generator) for _ in range(2))
    products = (q * k).sum(1)
    # the gollm chapter prints "averages around 64" for d = 64
    assert products.mean().abs() < 4 * math.sqrt(dim / draws)
    # the fourth moment of a sum of d products is 3 d^2 + 6 d, so the variance's relative error is as follows;
    # the microgpt lesson calls the growth "proportional to the dimension": the variance is, the size grows
    # with its root
    assert abs(products.var() / dim - 1) < 4 * math.sqrt((2 + 6 / dim) / draws)


# Largest weight and entropy in nats over 64 keys with entries N(0, 1): means of 1,000,000 queries, drawn
# with numpy independently of this code, as 64 scores N(0, |q|^2) each.
SATURATION = {
    0.0: ((0.2748, 2.8075), (0.5781, 1.3810), (0.7914, 0.5832), (0.8972, 0.2644), (0.9489, 0.1262)),
    -0.5: ((0.1052, 3.7000), (0.1068, 3.6888), (0.1071, 3.6857), (0.1072, 3.6849), (0.1074, 3.6844)),
}


@pytest.mark.parametrize("exponent", SATURATION)
@pytest.mark.parametrize("dim", DIMS)
def test_maths_page_unscaled_weights_saturate_and_scaled_ones_do_not(dim, exponent):
    rows, per_row = 200, 8  # queries of a row share its keys, so a row is one draw
    generator = torch.Generator().manual_seed(dim)
    q = torch.randn(rows, 1, per_row, dim, generator=generator)
    k = torch.randn(rows, 1, 64, dim, generator=generator)
    no_positions = torch.zeros(1, 1, 1, 1)
    weights = eager(
        AttentionInputs(q, k, k, no_positions, no_positions, dim**exponent, need=("weights",))
    ).weights
    entropy = torch.special.entr(weights).sum(-1)
    for measured, want in zip(
        (weights.amax(-1), entropy), SATURATION[exponent][DIMS.index(dim)], strict=True
    ):
        draws = measured.mean((1, 2))
        assert abs(draws.mean() - want) < 4 * draws.std() / math.sqrt(rows)


def test_gollm_chapter_common_shift_of_scores_changes_nothing():
    # the chapter scales because "the dot product averages around 64": an average does no harm, a spread does
    assert_rounded(softmax([64 + 2.1, 64 + 0.5, 64 + 1.3]), softmax([2.1, 0.5, 1.3]).tolist(), digits=12)


def test_maths_page_masked_weight_is_zero_and_empty_row_is_not_nan():
    padding = torch.full((1, 1, 1, 1), -1)
    x = torch.ones(1, 1, 2, 3)
    output = eager(AttentionInputs(x, x, x, padding, torch.arange(2), 1.0, causal, need=("weights",)))
    # with -inf alone it is NaN; no document mentions it
    assert torch.equal(output.weights, torch.zeros(1, 1, 2, 2))
    assert torch.equal(output.out, torch.zeros(1, 1, 2, 3))
