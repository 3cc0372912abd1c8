"""Measurements detect constructed effects and agree with formulas."""

import pytest
import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.measure.head_scoring import compute_head_scores, select_probe_examples
from attnlab.measure.studies.bandwidth import Bandwidth
from attnlab.measure.studies.cache_bytes import CacheBytes, PublishedModels
from attnlab.measure.studies.cached_generation import CachedGeneration
from attnlab.measure.studies.fits import compute_r_squared, fit_exponent, take_upper_half, validate_increasing
from attnlab.measure.studies.head_means import HeadMeans
from attnlab.measure.studies.kernel_scaling import KernelScaling
from attnlab.measure.studies.pruning import (
    Pruning,
    _compute_mean_outputs,
    ablate_heads,
    compute_removable_proportion,
)
from attnlab.measure.studies.qk_scores import QKScores
from attnlab.measure.studies.validation_losses import compute_validation_loss
from attnlab.model.build import build_model, instantiate_config

torch.set_num_threads(1)


@pytest.fixture
def build_module_and_data(compose):
    """Build a LanguageModel with scores as large as a trained model's, and its data; takes overrides."""

    def build(*overrides, meta=False):
        config = compose(
            "model.qk_gain=1.0", "model.init_std=0.2", "model.dim=20", "model.n_heads=5", *overrides
        )
        data = instantiate_config(config["data"])
        with torch.device("meta" if meta else "cpu"):
            model = build_model(config, data.task.vocab_size)
        return instantiate_config(config["optim"], model=model).eval(), data

    return build  # fmt: skip


def test_the_exponent_is_the_power_and_larger_in_the_upper_half():
    assert fit_exponent({3: 9.0, 7: 49.0, 11: 121.0}) == pytest.approx(2)
    mixed_powers = {n: n + n**3 / 1e4 for n in (1, 2, 4, 512, 1024)}
    assert fit_exponent(take_upper_half(mixed_powers)) > fit_exponent(mixed_powers)
    assert list(take_upper_half({1: 0, 2: 0, 3: 0, 4: 0, 5: 0})) == [3, 4, 5]


def test_r_squared_is_one_for_a_line_and_zero_for_no_trend():
    assert compute_r_squared([1, 2, 5], [7, 9, 15]) == pytest.approx(1)
    assert compute_r_squared([-1, 0, 1], [1, 0, 1]) == pytest.approx(0)
    assert compute_r_squared([3, 3, 3], [1, 2, 3]) == 0


def test_lengths_out_of_order_are_rejected():
    with pytest.raises(ValueError, match=r"key must be at least .* got \[4, 2\]"):
        validate_increasing([4, 2], "key")


def test_a_cache_preserves_logits_and_a_wrong_offset_does_not(build_module_and_data):
    module, data = build_module_and_data()
    right = CachedGeneration(DynamicCache, compared=11, prompt=5)(module, data, "cpu").metrics
    wrong = CachedGeneration(DynamicCache, compared=11, prompt=5, offset=-1)(module, data, "cpu").metrics
    assert right["cache/logit_difference"] < 1e-5
    assert right["cache/tokens_differing"] == 0
    assert wrong["cache/logit_difference"] > 1e-3


def test_generation_times_are_metrics_of_kind_time(build_module_and_data):
    study = CachedGeneration(DynamicCache, compared=2, lengths=[2, 3], prompt=3)
    result = study(*build_module_and_data(), "cpu")
    time_metrics = {metric.name for metric in study.metrics if metric.kind == "time"}
    assert time_metrics == set(result.metrics) - {"cache/logit_difference", "cache/tokens_differing"}
    assert list(result.series["speedup"]) == [2, 3]


def test_bandwidth_counts_the_bytes_of_a_step():
    bandwidth = Bandwidth(n_heads=6, head_dim=4, n_kv_heads=[6, 2], contexts=[32768, 65536], rounds=1)
    assert bandwidth._count_cache_bytes(2, 32768) == 2 * 2 * 32768 * 4 * 4
    result = bandwidth(None, None, "cpu")
    assert {metric.name: metric.kind for metric in bandwidth.metrics} == dict.fromkeys(result.metrics, "time")
    assert all(value > 0 for value in result.metrics.values())


@pytest.mark.parametrize("kv", [[3, 6], [4, 2], [6, 4]])
def test_invalid_numbers_of_kv_heads_are_rejected(kv):
    with pytest.raises(ValueError, match="n_kv_heads"):
        Bandwidth(n_heads=6, head_dim=4, n_kv_heads=kv, contexts=[8, 16])


def test_saved_bytes_are_quadratic_in_eager_and_linear_in_sdpa(build_module_and_data):
    module, data = build_module_and_data(meta=True)
    slopes = {
        kernel: KernelScaling(kernel, [96, 192, 384], head_dim=4, rounds=1)(module, data, "cpu").metrics
        for kernel in (eager, sdpa)
    }
    assert slopes[sdpa]["exponent/saved"] == pytest.approx(1, abs=0.05)
    assert slopes[eager]["exponent/saved"] == pytest.approx(2, abs=0.1)
    assert slopes[eager]["crossover/over_dim"] == pytest.approx(6)


def test_ablating_a_head_equals_zeroing_its_output_weights(build_module_and_data):
    module, _ = build_module_and_data()
    model, tokens = module.model, torch.arange(7)[None]
    with torch.no_grad():
        logits = model(tokens)
        with ablate_heads(model, [(0, 1), (1, 3)]):
            ablated_logits = model(tokens)
        assert torch.equal(model(tokens), logits)
        for layer, head in ((0, 1), (1, 3)):
            width = model.blocks[layer].mixer.heads.head_dim
            model.blocks[layer].mixer.heads.out.weight[:, head * width : (head + 1) * width] = 0
        torch.testing.assert_close(ablated_logits, model(tokens))
    assert not torch.allclose(ablated_logits, logits)


@torch.no_grad()
def test_mean_ablation_of_a_constant_head_preserves_the_loss(build_module_and_data):
    module, data = build_module_and_data("position=none", "model.attention.heads.bias=true")
    for block in module.model.blocks:
        block.mixer.heads.qkv.weight.zero_()
        block.mixer.heads.qkv.bias.fill_(0.7)
    batches = list(data.val_dataloader())
    means = _compute_mean_outputs(module.model, module, batches, "cpu")
    full_loss = compute_validation_loss(module, batches, "cpu")
    with ablate_heads(module.model, [(0, 2)], means):
        assert compute_validation_loss(module, batches, "cpu") == pytest.approx(full_loss, abs=1e-6)
    with ablate_heads(module.model, [(0, 2)]):
        assert abs(compute_validation_loss(module, batches, "cpu") - full_loss) > 1e-4


@pytest.mark.parametrize(
    ("full_loss", "ablated_losses", "proportion"),
    [
        (2.0, [2.0, 2.019, 2.021, 1.9], 0.75),  # within a proportion of the loss
        (0.001, [0.001, 0.010, 0.012, 0.5], 0.5),  # within a proportion of a nat, for a loss near zero
    ],
)
def test_removable_heads_are_within_the_tolerance(full_loss, ablated_losses, proportion):
    assert compute_removable_proportion(ablated_losses, full_loss, 0.01) == proportion


def test_pruning_metrics_match_its_curve(build_module_and_data):
    module, data = build_module_and_data()
    result = Pruning(seed=3)(module, data, "cpu")
    curve = result.series["loss_rise_by_heads_gone"]
    assert list(curve) == list(range(11))
    assert curve[0] == 0
    assert result.metrics["pruned/50"] == curve[5]
    assert 0 <= result.metrics["removable/share"] <= 1
    shuffled_result = Pruning(seed=3, shuffled=True)(module, data, "cpu")
    assert shuffled_result.metrics["removable/share"] == result.metrics["removable/share"]
    assert shuffled_result.series["loss_rise_by_heads_gone"][10] == pytest.approx(curve[10], abs=1e-6)


@pytest.mark.parametrize(
    ("overrides", "cached_tokens"),
    [
        (["heads=mha"], 37),
        (["heads=mqa"], 37),
        (["heads=mla", "model.attention.heads.rope_dim=2"], 37),
        (["mask=window", "decode=sliding", "model.attention.masks.window.size=11"], 11),
        (["mask=window_sinks", "decode=sliding", "model.attention.masks.window.size=11"], 15),
    ],
)
def test_cached_bytes_equal_the_formula(build_module_and_data, compose, overrides, cached_tokens):
    module, data = build_module_and_data(*overrides, meta=True)
    cache = instantiate_config({"x": compose(*overrides)["decode"]["cache"], "_target_": "builtins.dict"})[
        "x"
    ]
    metrics = CacheBytes(cache, tokens=37, batch=3)(module, data, "cpu").metrics
    assert metrics["kv_bytes/unexplained"] == 0
    assert (
        metrics["kv_bytes/held"]
        == 3 * cached_tokens * module.model.state_size()
        == 2 * metrics["kv_bytes/layer"]
    )


def test_published_shapes_take_the_bytes_in_their_papers():
    shapes = {
        "gqa": {"n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128},
        "mla": {"n_layers": 60, "n_heads": 128, "rank": 512, "head_dim": 128, "rope_dim": 64},
    }
    metrics = PublishedModels(shapes)(None, None, "cpu").metrics
    assert metrics == {"kv_bytes/gqa": 128 * 1024, "kv_bytes/mla": 67.5 * 1024}
    with pytest.raises(ValueError, match=r"models\.odd: .*wings"):
        PublishedModels({"odd": {"n_layers": 1, "n_heads": 1, "n_kv_heads": 1, "head_dim": 1, "wings": 2}})


def test_score_growth_matches_theory_and_scaling_cancels_it():
    draws = {"dims": [4, 16, 64], "at": 64, "keys": 64, "queries": 1500, "seed": 5}
    plain = QKScores(**draws, scale_exponent=0)(None, None, "cpu").metrics
    scaled = QKScores(**draws, scale_exponent=-0.5)(None, None, "cpu").metrics
    assert plain["growth/variance"] == pytest.approx(1, abs=0.03)
    assert plain["growth/magnitude"] == pytest.approx(0.5, abs=0.03)
    assert scaled["growth/magnitude"] == pytest.approx(0, abs=0.03)
    assert plain["softmax/largest"] == pytest.approx(0.797, abs=0.02)
    assert scaled["softmax/largest"] == pytest.approx(0.107, abs=0.005)
    assert plain["softmax/jacobian"] == pytest.approx(0.285, abs=0.02)
    assert QKScores(**draws, scale_exponent=0)(None, None, "cpu").metrics == plain


def test_head_means_equal_the_means_of_head_scores(build_module_and_data):
    module, data = build_module_and_data("model.n_layers=2", "layers=delta_one_in_two", "data.length=16")
    study = HeadMeans()
    result = study(module, data, "cpu")
    scores = compute_head_scores(module.model, select_probe_examples(next(iter(data.val_dataloader()))), 16)
    assert result.metrics["heads/sink"] == pytest.approx(sum(scores["sink"][1]) / 5)
    definitions = {metric.name: metric.display_name for metric in study.metrics}
    assert definitions["heads/sink"] == "attention sink, mean over heads"
    assert result.metrics.keys() <= definitions.keys()
