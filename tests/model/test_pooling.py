"""Pooling of KV heads, for weights and biases: exact if the heads of a group are equal."""

import pytest
import torch

from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.model.build import build_model
from attnlab.model.pooling import pool_heads

DIM, HEADS, KV, WIDTH = 21, 12, 6, 5  # the vocabulary has 7 tokens
METHODS = ("mean", "first", "random")
QKV = "blocks.1.mixer.heads.qkv."


def build_pooling_model(n_kv_heads=KV, bias=True, **more):
    heads = {"dim": DIM, "n_heads": HEADS, "n_kv_heads": n_kv_heads, "head_dim": WIDTH}
    heads |= {"_target_": "attnlab.attention.heads.grouped.GroupedHeads"} | {"bias": bias, "out_bias": False}
    heads |= more
    config = {
        "_target_": "attnlab.model.transformer.Transformer",
        **{"dim": DIM, "n_layers": 2, "ffn_width": 11, "bias": False, "tie": True, "dropout": 0.0, "seed": 3},
        **{"init_std": 0.3, "qk_gain": None},
        "ffn": {"_target_": "attnlab.model.transformer.Mlp", "_partial_": True},
        "norm": {"_target_": "torch.nn.LayerNorm", "_partial_": True},
        "attention": {
            "_target_": "attnlab.attention.layer.Attention",
            "heads": {key: value for key, value in heads.items() if value is not None},
            "kernel": {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.kernels.sdpa.sdpa"},
            "masks": {
                "full": {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.masks.full.full"}
            },
        },
    }
    model = build_model({"model": config}, 7).double()
    for block in model.blocks:
        if isinstance(block.mixer.heads, GroupedHeads) and bias:
            block.mixer.heads.qkv.bias.data.normal_(generator=torch.Generator().manual_seed(8))
    return model


def split_kv_heads(model, name):
    """Split one tensor into its k and v heads, [G, WIDTH, ...] each."""
    tensor = model.state_dict()[QKV + name]
    return [part.unflatten(0, (-1, WIDTH)) for part in tensor[HEADS * WIDTH :].chunk(2)]


def equalize_heads(model, group):
    """Set the KV heads of each group to its first."""
    for block in model.blocks:
        for tensor in (block.mixer.heads.qkv.weight, block.mixer.heads.qkv.bias):
            heads = tensor.data[HEADS * WIDTH :].unflatten(0, (2, KV // group, group, WIDTH))
            heads[:] = heads[:, :, :1].clone()
    return model


@torch.no_grad()
@pytest.mark.parametrize("how", ["mean", "first"])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3])
def test_pooling_equal_heads_changes_no_weight_and_no_logit(how, n_kv_heads):
    group = KV // n_kv_heads
    model = equalize_heads(build_pooling_model(), group)
    pooled = pool_heads(model, n_kv_heads, how)
    for name in ("weight", "bias"):
        for before, after in zip(split_kv_heads(model, name), split_kv_heads(pooled, name), strict=True):
            assert torch.equal(before[::group], after)
    tokens = torch.arange(14).reshape(2, 7) % 7
    assert pooled.blocks[0].mixer.heads.n_kv_heads == n_kv_heads
    torch.testing.assert_close(pooled(tokens), model(tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", METHODS)
def test_pooling_to_the_same_number_is_identity(how):
    model = build_pooling_model()
    before, after = model.state_dict(), pool_heads(model, KV, how).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_mean_pools_each_group_to_its_mean(name):
    model = build_pooling_model()
    for before, after in zip(
        split_kv_heads(model, name), split_kv_heads(pool_heads(model, 2, "mean"), name), strict=True
    ):
        torch.testing.assert_close(after[0], (before[0] + before[1] + before[2]) / 3, rtol=0, atol=1e-15)
        torch.testing.assert_close(after[1], (before[3] + before[4] + before[5]) / 3, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_first_pools_each_group_to_its_first_head(name):
    model = build_pooling_model()
    for before, after in zip(
        split_kv_heads(model, name), split_kv_heads(pool_heads(model, 2, "first"), name), strict=True
    ):
        assert torch.equal(after, before[[0, 3]])


def test_random_heads_depend_on_the_seed_and_have_equal_spread():
    model = build_pooling_model()
    (key, value), (same_seed, _), (other_seed, _) = (
        split_kv_heads(pool_heads(model, 3, "random", s), "weight") for s in (1, 1, 2)
    )
    assert torch.equal(key, same_seed)
    assert not torch.isclose(key, other_seed).any()
    assert not torch.isclose(key, value).any()
    count = key.numel()
    ratio = key.std() / split_kv_heads(model, "weight")[0].std()
    assert abs(ratio - 1) < 4 / (2 * count) ** 0.5  # four standard errors of a standard deviation


@pytest.mark.parametrize("how", METHODS)
def test_pooling_changes_only_keys_and_values(how):
    model = build_pooling_model()
    before, after = model.state_dict(), pool_heads(model, 1, how).state_dict()
    assert torch.equal(before[QKV + "weight"][: HEADS * WIDTH], after[QKV + "weight"][: HEADS * WIDTH])
    assert all(torch.equal(before[name], after[name]) for name in before if ".qkv." not in name)


@pytest.mark.parametrize("how", METHODS)
@pytest.mark.parametrize("bias", [True, False])
def test_pooled_state_fits_a_model_with_fewer_kv_heads(how, bias):
    pooled = pool_heads(build_pooling_model(bias=bias), 2, how, seed=4)
    fewer = build_pooling_model(2, bias=bias)
    fewer.load_state_dict(pooled.state_dict())
    tokens = torch.arange(6)[None] % 7
    assert torch.equal(fewer(tokens), pooled(tokens))
    assert fewer.state_size() == pooled.state_size()


@pytest.mark.parametrize("how", METHODS)
def test_pooling_a_state_dict_equals_pooling_its_model(how):
    model = build_pooling_model()
    state = pool_heads(model.state_dict(), 3, how, 9, WIDTH)
    expected = pool_heads(model, 3, how, 9).state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_pooling_does_not_modify_the_source():
    model = build_pooling_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pool_heads(model, 1, "mean")
    pool_heads(model.state_dict(), 1, "mean", 0, WIDTH)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_each_layer_is_pooled_from_its_own_heads():
    pooled = pool_heads(build_pooling_model(), 1, "first")
    first, second = (block.mixer.heads.qkv.weight for block in pooled.blocks)
    assert not torch.isclose(first, second).any()


LATENT = {"_target_": "attnlab.attention.heads.latent.LatentHeads", "rank": 4, "rope_dim": 2}
LATENT |= {"n_kv_heads": None}
DIFFERENTIAL = {"_target_": "attnlab.attention.heads.differential.DifferentialHeads"}


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        (
            lambda: build_pooling_model(**LATENT),
            (2, "mean"),
            "LatentHeads have no separate key and value heads",
        ),
        (
            lambda: build_pooling_model(bias=False, **DIFFERENTIAL),
            (2, "mean"),
            "DifferentialHeads have no separate key and value",
        ),
        (lambda: build_pooling_model(**LATENT).state_dict(), (2, "mean", 0, WIDTH), "latent heads"),
        (lambda: build_pooling_model(HEADS, tied=True), (2, "mean"), "tied"),
        (lambda: build_pooling_model(), (4, "mean"), "6 KV heads cannot be pooled into 4"),
        (lambda: build_pooling_model(), (0, "mean"), "6 KV heads cannot be pooled into 0"),
        (
            lambda: build_pooling_model(),
            (2, "median"),
            r"'median' is not known \(known: mean, first, random\)",
        ),
        (lambda: build_pooling_model().state_dict(), (2, "mean"), "pass head_dim"),
        (lambda: build_pooling_model().state_dict(), (2, "mean", 0, 7), "head_dim=7 does not divide"),
        (lambda: {}, (2, "mean", 0, 7), "no attention heads"),
    ],
)
def test_unpoolable_heads_raise(source, arguments, message):
    with pytest.raises(ValueError, match=message):
        pool_heads(source(), *arguments)
