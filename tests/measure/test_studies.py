"""Measurements find what was planted, and agree with formulas where there are some."""

import pytest
import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.measure.heads import head_scores, probe_texts
from attnlab.measure.studies.bandwidth import Bandwidth
from attnlab.measure.studies.cache_bytes import CacheBytes, Published
from attnlab.measure.studies.fits import explained, exponent, increasing, upper
from attnlab.measure.studies.generation import Generation
from attnlab.measure.studies.head_means import HeadMeans
from attnlab.measure.studies.losses import validation_loss
from attnlab.measure.studies.pruning import Pruning, _means, removable, without
from attnlab.measure.studies.qk_scores import Scores
from attnlab.measure.studies.scaling import Scaling
from attnlab.model.build import build_model, make

torch.set_num_threads(1)


@pytest.fixture
def subject(compose):
    """`subject(*overrides)`: a LanguageModel with scores of a trained model's size, and its data."""

    def made(*overrides, meta=False):
        config = compose(
            "model.qk_gain=1.0", "model.init_std=0.2", "model.dim=20", "model.n_heads=5", *overrides
        )
        data = make(config["data"])
        with torch.device("meta" if meta else "cpu"):
            model = build_model(config, data.task.vocab_size)
        return make(config["optim"], model=model).eval(), data

    return made  # fmt: skip


def test_an_exponent_is_the_power_and_the_upper_half_the_later_one():
    assert exponent({3: 9.0, 7: 49.0, 11: 121.0}) == pytest.approx(2)
    both = {n: n + n**3 / 1e4 for n in (1, 2, 4, 512, 1024)}
    assert exponent(upper(both)) > exponent(both)
    assert list(upper({1: 0, 2: 0, 3: 0, 4: 0, 5: 0})) == [3, 4, 5]


def test_a_line_explains_all_of_a_line_and_nothing_of_what_it_crosses():
    assert explained([1, 2, 5], [7, 9, 15]) == pytest.approx(1)
    assert explained([-1, 0, 1], [1, 0, 1]) == pytest.approx(0)
    assert explained([3, 3, 3], [1, 2, 3]) == 0


def test_lengths_out_of_order_are_refused():
    with pytest.raises(ValueError, match="key=\\[4, 2\\]"):
        increasing([4, 2], "key")


def test_a_cache_changes_no_logit_and_a_wrong_offset_does(subject):
    module, data = subject()
    right = Generation(DynamicCache, compared=11, prompt=5)(module, data, "cpu").metrics
    wrong = Generation(DynamicCache, compared=11, prompt=5, offset=-1)(module, data, "cpu").metrics
    assert right["cache/logit_difference"] < 1e-5
    assert right["cache/tokens_differing"] == 0
    assert wrong["cache/logit_difference"] > 1e-3


def test_times_of_generation_are_named_as_times(subject):
    found = Generation(DynamicCache, compared=2, lengths=[2, 3], prompt=3)(*subject(), "cpu")
    timed = {name for name, metric in found.declarations().items() if metric.kind == "time"}
    assert timed == set(found.metrics) - {"cache/logit_difference", "cache/tokens_differing"}
    assert list(found.series["speedup"]) == [2, 3]


def test_a_step_over_a_cache_says_what_it_read():
    steps = Bandwidth(n_heads=6, head_dim=4, n_kv_heads=[6, 2], contexts=[32768, 65536], rounds=1)
    assert steps._bytes(2, 32768) == 2 * 2 * 32768 * 4 * 4
    found = steps(None, None, "cpu")
    assert {metric.kind for metric in found.declarations().values()} == {"time"}
    assert all(value > 0 for value in found.metrics.values())


@pytest.mark.parametrize("kv", [[3, 6], [4, 2], [6, 4]])
def test_kv_heads_that_are_no_sharing_are_refused(kv):
    with pytest.raises(ValueError, match="n_kv_heads"):
        Bandwidth(n_heads=6, head_dim=4, n_kv_heads=kv, contexts=[8, 16])


def test_the_reference_keeps_squares_for_the_backward_pass_and_the_fused_kernel_does_not(subject):
    module, data = subject(meta=True)
    slopes = {
        kernel: Scaling(kernel, [96, 192, 384], head_dim=4, rounds=1)(module, data, "cpu").metrics
        for kernel in (eager, sdpa)
    }
    assert slopes[sdpa]["exponent/saved"] == pytest.approx(1, abs=0.05)
    assert slopes[eager]["exponent/saved"] == pytest.approx(2, abs=0.1)
    assert slopes[eager]["crossover/over_dim"] == pytest.approx(6)


def test_a_head_without_output_is_a_head_without_its_rows_of_the_output_matrix(subject):
    module, _ = subject()
    model, tokens = module.model, torch.arange(7)[None]
    with torch.no_grad():
        before = model(tokens)
        with without(model, [(0, 1), (1, 3)]):
            taken = model(tokens)
        assert torch.equal(model(tokens), before)
        for layer, head in ((0, 1), (1, 3)):
            width = model.blocks[layer].mixer.heads.head_dim
            model.blocks[layer].mixer.heads.out.weight[:, head * width : (head + 1) * width] = 0
        torch.testing.assert_close(taken, model(tokens))
    assert not torch.allclose(taken, before)


@torch.no_grad()
def test_a_mean_in_the_place_of_a_constant_head_changes_nothing(subject):
    module, data = subject("position=none", "model.attention.heads.bias=true")
    for block in module.model.blocks:
        block.mixer.heads.qkv.weight.zero_()
        block.mixer.heads.qkv.bias.fill_(0.7)
    batches = list(data.val_dataloader())
    means = _means(module.model, module, batches, "cpu")
    whole = validation_loss(module, batches, "cpu")
    with without(module.model, [(0, 2)], means):
        assert validation_loss(module, batches, "cpu") == pytest.approx(whole, abs=1e-6)
    with without(module.model, [(0, 2)]):
        assert abs(validation_loss(module, batches, "cpu") - whole) > 1e-4


@pytest.mark.parametrize(
    ("whole", "alone", "share"),
    [
        (2.0, [2.0, 2.019, 2.021, 1.9], 0.75),  # a share of the loss
        (0.001, [0.001, 0.010, 0.012, 0.5], 0.5),  # of a nat, where hardly a loss is left
    ],
)
def test_a_head_can_be_taken_out_where_its_absence_costs_little(whole, alone, share):
    assert removable(alone, whole, 0.01) == share


def test_pruning_reports_its_shares_in_order(subject):
    module, data = subject()
    found = Pruning(seed=3)(module, data, "cpu")
    curve = found.series["loss_rise_by_heads_gone"]
    assert list(curve) == list(range(11))
    assert curve[0] == 0
    assert found.metrics["pruned/50"] == curve[5]
    assert 0 <= found.metrics["removable/share"] <= 1
    other = Pruning(seed=3, shuffled=True)(module, data, "cpu")
    assert other.metrics["removable/share"] == found.metrics["removable/share"]
    assert other.series["loss_rise_by_heads_gone"][10] == pytest.approx(curve[10], abs=1e-6)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (["heads=mha"], 37),
        (["heads=mqa"], 37),
        (["heads=mla", "model.attention.heads.rope_dim=2"], 37),
        (["mask=window", "decode=rolling", "model.attention.masks.window.size=11"], 11),
        (["mask=window_sinks", "decode=rolling", "model.attention.masks.window.size=11"], 15),
    ],
)
def test_caches_hold_what_their_formula_says(subject, compose, line, kept):
    module, data = subject(*line, meta=True)
    cache = make({"x": compose(*line)["decode"]["cache"], "_target_": "builtins.dict"})["x"]
    found = CacheBytes(cache, tokens=37, batch=3)(module, data, "cpu").metrics
    assert found["kv_bytes/unexplained"] == 0
    assert found["kv_bytes/held"] == 3 * kept * module.model.state_size() == 2 * found["kv_bytes/layer"]


def test_published_shapes_take_the_bytes_that_their_papers_give():
    shapes = {
        "gqa": {"n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128},
        "mla": {"n_layers": 60, "n_heads": 128, "rank": 512, "head_dim": 128, "rope_dim": 64},
    }
    found = Published(shapes)(None, None, "cpu").metrics
    assert found == {"kv_bytes/gqa": 128 * 1024, "kv_bytes/mla": 67.5 * 1024}
    with pytest.raises(ValueError, match=r"models\.odd: .*wings"):
        Published({"odd": {"n_layers": 1, "n_heads": 1, "n_kv_heads": 1, "head_dim": 1, "wings": 2}})


def test_scores_grow_as_their_theory_says_and_the_scale_takes_it_back():
    draws = {"dims": [4, 16, 64], "at": 64, "keys": 64, "queries": 1500, "seed": 5}
    plain = Scores(**draws, scale_exponent=0)(None, None, "cpu").metrics
    scaled = Scores(**draws, scale_exponent=-0.5)(None, None, "cpu").metrics
    assert plain["growth/variance"] == pytest.approx(1, abs=0.03)
    assert plain["growth/magnitude"] == pytest.approx(0.5, abs=0.03)
    assert scaled["growth/magnitude"] == pytest.approx(0, abs=0.03)
    assert plain["softmax/largest"] == pytest.approx(0.797, abs=0.02)
    assert scaled["softmax/largest"] == pytest.approx(0.107, abs=0.005)
    assert plain["softmax/jacobian"] == pytest.approx(0.285, abs=0.02)
    assert Scores(**draws, scale_exponent=0)(None, None, "cpu").metrics == plain


def test_means_over_heads_are_those_of_their_scores(subject):
    module, data = subject("model.n_layers=2", "layers=delta_one_in_two", "data.length=16")
    found = HeadMeans()(module, data, "cpu")
    scores = head_scores(module.model, probe_texts(next(iter(data.val_dataloader()))), 16)
    assert found.metrics["heads/sink"] == pytest.approx(sum(scores["sink"][1]) / 5)
    assert found.declarations()["heads/sink"].words == "attention sink, mean of all heads"
