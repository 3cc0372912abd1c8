"""Block selection, in plain loops in float64."""

import pytest
import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import AttentionInputs
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.data_masks import make_document_mask, non_padding
from attnlab.attention.rotary import Rope
from attnlab.attention.selection import BlockSelection
from attnlab.testing.invariants.variant import randomize

T, M, H, D = 17, 16, 4, 4


def make_layer(selection, groups=2):
    heads = GroupedHeads(M, H, groups, None, False, False)
    mixer = Attention(heads, eager, {"causal": causal}, rotary=Rope(), selection=selection)
    return randomize(mixer).double().eval()


def make_input(rows=1):
    return torch.randn(rows, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def compute_weights(module, x, **context):
    with torch.no_grad():
        return module.attend(x, kernel=eager, need=("weights",), **context).weights


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("size", "count"), [(4, 2), (3, 3), (5, 1), (1, 4), (20, 2)])
def test_query_reads_its_own_block_and_those_of_highest_mean_score(size, count, groups):
    module = make_layer(BlockSelection(size, count), groups)
    with torch.no_grad():
        q, (k, _) = module.heads.project(make_input(), Rope()(torch.arange(T)[None]))
    visible = compute_weights(module, make_input())[0] > 0
    for h in range(H):
        keys = k[0, h // (H // groups)]
        for t in range(T):
            means = {}
            for block in range(t // size):
                indices = range(block * size, (block + 1) * size)
                means[block] = sum(float(q[0, h, t] @ keys[s]) for s in indices) / size
            best = sorted(means, key=means.get, reverse=True)[: count - 1]
            expected = [s for s in range(t + 1) if s // size in (*best, t // size)]
            assert visible[h, t].nonzero().flatten().tolist() == expected, (h, t)


def test_random_blocks_have_equal_count_in_every_pass():
    module, x = make_layer(BlockSelection(3, 3, at_random=True)), make_input(2)
    visible = compute_weights(module, x) > 0
    for t in range(T):
        n_past_blocks = t // 3
        assert (visible[:, :, t].sum(-1) == 3 * min(2, n_past_blocks) + t % 3 + 1).all()
    assert torch.equal(visible[0], visible[1])
    assert (visible[:, :, :, 0].any(-1)).all()
    assert not torch.equal(visible[0, 0], visible[0, 1])
    cache = DynamicCache()
    steps = [module(x[:, t : t + 1], cache=cache) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, 1), module(x), rtol=0, atol=1e-12)


def test_random_blocks_are_independent_of_precision():
    length = 400
    indices = torch.arange(length)
    q_idx, kv_idx = indices[None, None, :, None], indices[None, None, None]
    grid = torch.meshgrid(torch.arange(1), torch.arange(2), indices, indices, indexing="ij")
    visible = {}
    for dtype in (torch.float64, torch.bfloat16):
        q = k = torch.ones(1, 2, length, 4, dtype=dtype)
        selected_mask = BlockSelection(2, 9, at_random=True)(
            AttentionInputs(q, k, q, q_idx, kv_idx, 0.5, causal), length
        )
        visible[dtype] = selected_mask(*grid)
    assert torch.equal(visible[torch.float64], visible[torch.bfloat16])


def test_padding_and_other_documents_do_not_affect_selection():
    module, x = make_layer(BlockSelection(3, 2)), make_input(2)
    ids = torch.tensor([[0] * 7 + [1] * (T - 7)] * 2)
    expected = compute_weights(module, x[:, 7:], positions=torch.arange(7, T)[None])
    torch.testing.assert_close(
        compute_weights(module, x, mask=make_document_mask(ids))[:, :, 7:, 7:], expected
    )
    positions = torch.arange(T)[None] - torch.tensor([[2], [0]])
    expected = compute_weights(module, x[:1, 2:])
    torch.testing.assert_close(
        compute_weights(module, x, positions=positions, mask=non_padding)[:1, :, 2:, 2:], expected
    )


def test_enough_blocks_equal_full_attention():
    plain = make_layer(None)
    module = make_layer(BlockSelection(4, 5))
    module.load_state_dict(plain.state_dict())
    torch.testing.assert_close(module(make_input()), plain(make_input()), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("size", "count"), [(0, 1), (3, 0)])
def test_invalid_sizes_are_rejected(size, count):
    with pytest.raises(ValueError, match="size >= 1 and count >= 1"):
        BlockSelection(size, count)
