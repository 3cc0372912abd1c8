"""Blocks that a query chooses, in plain loops in float64."""

import pytest
import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import AttentionInputs
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.data import documents, real
from attnlab.attention.rotary import Rope
from attnlab.attention.selection import Blocks
from attnlab.testing.laws.variant import randomised

T, M, H, D = 17, 16, 4, 4


def layer(selection, groups=2):
    heads = GroupedHeads(M, H, groups, None, False, False)
    mixer = Attention(heads, eager, {"causal": causal}, rotary=Rope(), selection=selection)
    return randomised(mixer).double().eval()


def given(rows=1):
    return torch.randn(rows, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def weights(module, x, **context):
    with torch.no_grad():
        return module.attend(x, kernel=eager, need=("weights",), **context).weights


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("size", "count"), [(4, 2), (3, 3), (5, 1), (1, 4), (20, 2)])
def test_a_query_reads_its_own_block_and_those_whose_keys_it_likes_best_on_the_mean(size, count, groups):
    module = layer(Blocks(size, count), groups)
    with torch.no_grad():
        q, (k, _) = module.heads.project(given(), Rope()(torch.arange(T)[None]))
    seen = weights(module, given())[0] > 0
    for h in range(H):
        keys = k[0, h // (H // groups)]
        for t in range(T):
            means = {}
            for block in range(t // size):
                places = range(block * size, (block + 1) * size)
                means[block] = sum(float(q[0, h, t] @ keys[s]) for s in places) / size
            best = sorted(means, key=means.get, reverse=True)[: count - 1]
            expected = [s for s in range(t + 1) if s // size in (*best, t // size)]
            assert seen[h, t].nonzero().flatten().tolist() == expected, (h, t)


def test_random_blocks_are_as_many_and_the_same_in_any_pass():
    module, x = layer(Blocks(3, 3, at_random=True)), given(2)
    seen = weights(module, x) > 0
    for t in range(T):
        past = t // 3
        assert (seen[:, :, t].sum(-1) == 3 * min(2, past) + t % 3 + 1).all()
    assert torch.equal(seen[0], seen[1])
    assert (seen[:, :, :, 0].any(-1)).all()
    assert not torch.equal(seen[0, 0], seen[0, 1])
    cache = DynamicCache()
    steps = [module(x[:, t : t + 1], cache=cache) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, 1), module(x), rtol=0, atol=1e-12)


def test_random_blocks_are_the_same_in_any_precision():
    length = 400
    place = torch.arange(length)
    q_pos, kv_pos = place[None, None, :, None], place[None, None, None]
    every = torch.meshgrid(torch.arange(1), torch.arange(2), place, place, indexing="ij")
    seen = {}
    for dtype in (torch.float64, torch.bfloat16):
        q = k = torch.ones(1, 2, length, 4, dtype=dtype)
        chosen = Blocks(2, 9, at_random=True)(AttentionInputs(q, k, q, q_pos, kv_pos, 0.5, causal), length)
        seen[dtype] = chosen(*every)
    assert torch.equal(seen[torch.float64], seen[torch.bfloat16])


def test_padding_and_other_documents_have_no_say_in_what_is_chosen():
    module, x = layer(Blocks(3, 2)), given(2)
    ids = torch.tensor([[0] * 7 + [1] * (T - 7)] * 2)
    alone = weights(module, x[:, 7:], positions=torch.arange(7, T)[None])
    torch.testing.assert_close(weights(module, x, mask=documents(ids))[:, :, 7:, 7:], alone)
    positions = torch.arange(T)[None] - torch.tensor([[2], [0]])
    alone = weights(module, x[:1, 2:])
    torch.testing.assert_close(weights(module, x, positions=positions, mask=real)[:1, :, 2:, 2:], alone)


def test_enough_blocks_are_all_of_the_past():
    plain = layer(None)
    module = layer(Blocks(4, 5))
    module.load_state_dict(plain.state_dict())
    torch.testing.assert_close(module(given()), plain(given()), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("size", "count"), [(0, 1), (3, 0)])
def test_sizes_that_are_none_are_refused(size, count):
    with pytest.raises(ValueError, match="size >= 1 and count >= 1"):
        Blocks(size, count)
