"""Learned selection of keys, and the loss that teaches it, in plain loops in float64."""

import math

import numpy as np
import pytest
import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import Unsupported
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.indexer import LOSS_NAME, Indexer
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.data_masks import make_padding_mask
from attnlab.attention.normalizers import TalkingHeads
from attnlab.attention.rotary import Rope
from attnlab.attention.scores.alibi import Alibi
from attnlab.attention.selection import BlockSelection
from attnlab.testing.invariants.variant import randomize

B, T, M, H, J, W = 2, 15, 16, 4, 3, 6


def make_layer(size=1, count=4, rotary=None, scores=None, **options):
    heads = GroupedHeads(M, H, 2, None, False, False)
    selection = BlockSelection(size, count, indexer=Indexer(M, J, W, loss_weight=0.5))
    layer = Attention(heads, eager, {"causal": causal}, scores, rotary=rotary, selection=selection, **options)
    return randomize(layer).double().eval()


def make_input():
    return torch.randn(B, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def compute_index_scores(layer, x, rotate=lambda vector, position: vector):
    """Index scores of one row, [T][T], None where a key comes after the query."""
    weight = layer.selection.indexer.qkw.weight.detach().numpy()
    tokens = [np.split(weight @ token, [J * W, J * W + W]) for token in x.numpy()]
    scores = [[None] * T for _ in range(T)]
    for t in range(T):
        q, _, w = tokens[t]
        for s in range(t + 1):
            k = rotate(tokens[s][1], s)
            products = [max(0.0, float(rotate(head, t) @ k)) for head in np.split(q, J)]
            scores[t][s] = sum(w[j] * products[j] for j in range(J)) / math.sqrt(J * W)
    return scores


def rotate_halves(vector, position):
    half = len(vector) // 2
    angles = [position * 10000.0 ** (-2 * f / len(vector)) for f in range(half)]
    first = [vector[f] * math.cos(a) - vector[half + f] * math.sin(a) for f, a in enumerate(angles)]
    second = [vector[half + f] * math.cos(a) + vector[f] * math.sin(a) for f, a in enumerate(angles)]
    return np.array(first + second)


def list_selected(scores, t, size, count):
    """Keys of the query's own block and of the earlier blocks of highest mean score; the later of equals."""
    means = {}
    for block in range(t // size):
        keys = range(block * size, (block + 1) * size)
        means[block] = sum(scores[t][s] for s in keys) / size
    best = sorted(means, key=lambda block: (means[block], block), reverse=True)[: count - 1]
    return [s for s in range(t + 1) if s // size in (*best, t // size)]


@pytest.mark.parametrize("rotary", [None, Rope()])
@pytest.mark.parametrize(("size", "count"), [(1, 4), (1, 2), (1, 20), (3, 2), (4, 3)])
def test_query_reads_the_keys_of_highest_index_score(size, count, rotary):
    layer, x = make_layer(size, count, rotary), make_input()
    with torch.no_grad():
        weights = layer.attend(x, need=("weights",)).weights
    for n in range(B):
        scores = compute_index_scores(layer, x[n], rotate_halves if rotary else lambda vector, _: vector)
        for t in range(T):
            for h in range(H):
                assert (weights[n, h, t] > 0).nonzero().flatten().tolist() == list_selected(
                    scores, t, size, count
                )


def test_of_equal_index_scores_the_later_keys_are_read_in_every_pass():
    layer, x = make_layer(1, 4), make_input()
    torch.nn.init.zeros_(layer.selection.indexer.qkw.weight)
    with torch.no_grad():
        visible = layer.attend(x, need=("weights",)).weights > 0
    for t in range(T):
        assert visible[0, 0, t].nonzero().flatten().tolist() == list(range(max(0, t - 3), t + 1))
    cache = DynamicCache()
    chunks = [layer(x[:, chunk], cache=cache) for chunk in (slice(0, 7), slice(7, 8), slice(8, T))]
    torch.testing.assert_close(torch.cat(chunks, 1), layer(x), rtol=0, atol=1e-12)
    assert cache.state[-1].shape == (B, 1, T, W)


@pytest.mark.parametrize("scores", [None, {"alibi": Alibi(H)}])
def test_loss_is_the_divergence_from_attention_to_all_visible_keys(scores):
    layer, x = make_layer(1, 3, scores=scores), make_input()
    lengths = [9, T]
    losses = {}
    layer(x, mask=make_padding_mask(torch.tensor(lengths)), auxiliary_losses=losses)
    full = Attention(layer.heads, eager, {"causal": causal}, scores)
    with torch.no_grad():
        weights = full.attend(x, need=("weights",)).weights.numpy()
    divergences = []
    for n in range(B):
        index_scores = compute_index_scores(layer, x[n])
        for t in range(lengths[n]):
            keys = [s for s in range(t + 1) if s < lengths[n]]
            exponentials = [math.exp(index_scores[t][s]) for s in keys]
            p = np.mean([weights[n, h, t, keys] / weights[n, h, t, keys].sum() for h in range(H)], 0)
            divergences.append(
                sum(
                    p_s * math.log(p_s / (value / sum(exponentials)))
                    for p_s, value in zip(p, exponentials, strict=True)
                )
            )
    assert set(losses) == {LOSS_NAME}
    assert losses[LOSS_NAME].item() == pytest.approx(sum(divergences) / (B * T), abs=1e-12)
    padded, padded_losses = x.clone(), {}
    padded[0, lengths[0] :] = 7.0
    layer(padded, mask=make_padding_mask(torch.tensor(lengths)), auxiliary_losses=padded_losses)
    torch.testing.assert_close(padded_losses[LOSS_NAME], losses[LOSS_NAME])


def test_loss_trains_the_indexer_alone_and_the_output_never_trains_it():
    layer, x = make_layer(), make_input().requires_grad_()
    losses = {}
    output = layer(x, auxiliary_losses=losses)
    names = [name for name, _ in layer.named_parameters()]
    gradients = torch.autograd.grad(losses[LOSS_NAME], [*layer.parameters(), x], allow_unused=True)
    reached = [name for name, gradient in zip([*names, "x"], gradients, strict=True) if gradient is not None]
    assert reached == ["selection.indexer.qkw.weight"]
    gradients = torch.autograd.grad(output.square().sum(), [*layer.parameters(), x], allow_unused=True)
    missing = [name for name, gradient in zip([*names, "x"], gradients, strict=True) if gradient is None]
    assert missing == ["selection.indexer.qkw.weight"]
    assert torch.equal(layer(x), output)


def test_losses_of_layers_are_summed_under_one_name():
    layer, x = make_layer(), make_input()
    once, twice = {}, {}
    layer(x, auxiliary_losses=once)
    for _ in range(2):
        layer(x, auxiliary_losses=twice)
    torch.testing.assert_close(twice[LOSS_NAME], 2 * once[LOSS_NAME])
    assert layer.auxiliary_losses == {LOSS_NAME: 0.5}


def test_rows_that_see_no_key_have_no_loss_and_finite_gradients():
    layer, x = make_layer(), make_input()
    losses = {}
    layer(x, mask=make_padding_mask(torch.tensor([0, T])), auxiliary_losses=losses)
    losses[LOSS_NAME].backward()
    assert layer.selection.indexer.qkw.weight.grad.isfinite().all()
    alone = {}
    layer(x[1:], auxiliary_losses=alone)
    torch.testing.assert_close(losses[LOSS_NAME], alone[LOSS_NAME] / B)
    assert [name for name in layer.state_dict() if "indexer" in name] == ["selection.indexer.qkw.weight"]


def test_unfit_settings_are_rejected():
    with pytest.raises(ValueError, match="an indexer needs n_heads and head_dim of at least 1, got 0 and 4"):
        Indexer(M, 0, 4)
    for weight in (0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="needs a finite loss_weight above 0 to learn"):
            Indexer(M, 1, 4, loss_weight=weight)
    with pytest.raises(ValueError, match="count: 1 leaves an indexer none to choose"):
        BlockSelection(2, 1, indexer=Indexer(M, 1, 4))
    with pytest.raises(ValueError, match="a random selection has no use for an indexer"):
        BlockSelection(1, 4, at_random=True, indexer=Indexer(M, 1, 4))
    with pytest.raises(Unsupported, match="an indexer learns weights of at least 0: use normalizer=softmax"):
        make_layer(normalizer=TalkingHeads(H))
    with pytest.raises(Unsupported, match="keys shared between layers lack what Indexer stores"):
        make_layer(writes_shared_kv=True)
