"""Loss of texts read through a cache, and the bytes counted in the cache."""

from functools import partial

import pytest
import torch

from attnlab.attention.cache import DynamicCache, SlidingWindowCache
from attnlab.attention.compressed_caches.quantized import QuantizedCache
from attnlab.measure.studies.cached_losses import CachedLosses
from attnlab.measure.studies.validation_losses import compute_validation_loss
from attnlab.model.build import build_model, instantiate_config

torch.set_num_threads(1)

CONDITIONS = ["distance/2", "distance/9"]

NEEDLE_CONFIG = {
    "_target_": "attnlab.data.data_module.DataModule",
    "task": {"_target_": "attnlab.data.needle.Needle", "_partial_": True},
    "length": 16,
    "batch_size": 4,
    "values": 16,
    "distances": [2, 9],
    "earliest": 0,
    "val_windows": 6,
    "val_batch_size": 4,
    "seed": 0,
}


@pytest.fixture
def module_and_data(compose):
    """A LanguageModel with scores as large as a trained model's, and needles 2 and 9 tokens back."""
    config = compose("model.qk_gain=1.0", "model.init_std=0.2", "model.dim=24", "model.n_heads=3")
    data = instantiate_config(NEEDLE_CONFIG)
    return instantiate_config(config["optim"], model=build_model(config, data.task.vocab_size)).eval(), data


@pytest.mark.parametrize("step", [1, 5, 16])
def test_an_uncompressed_cache_preserves_the_loss_at_any_step(module_and_data, step):
    module, data = module_and_data
    metrics = CachedLosses(DynamicCache, step, ["distance/2"])(module, data, "cpu").metrics
    assert metrics["cache/rise"] == pytest.approx(0, abs=1e-6)
    assert metrics["cache/rise/distance/2"] == pytest.approx(0, abs=1e-6)
    assert metrics["cache/share"] == 1
    assert metrics["cache/bytes"] == 16 * module.model.state_size()
    full_loss = compute_validation_loss(module, data.val_dataloader(), "cpu")
    assert metrics["val/loss"] == pytest.approx(full_loss, abs=1e-5)


def test_dropped_tokens_raise_the_loss_of_distant_queries_only(module_and_data):
    metrics = CachedLosses(partial(SlidingWindowCache, size=4), conditions=CONDITIONS)(
        *module_and_data, "cpu"
    ).metrics
    near_rise, far_rise = (metrics[f"cache/rise/distance/{distance}"] for distance in (2, 9))
    assert abs(far_rise) > 1e-3
    assert metrics["cache/rise"] == pytest.approx((near_rise + far_rise) / 2, abs=1e-6)
    assert metrics["cache/share"] == 4 / 16


def test_bytes_of_quantized_caches_include_their_scales(module_and_data):
    keys_and_values = 2 * 16 * 3  # per layer: tokens, heads
    metrics = CachedLosses(partial(QuantizedCache, bits=8, keys="token"))(*module_and_data, "cpu").metrics
    assert metrics["cache/share"] == (8 + 2 + 2) / (
        8 * 4
    )  # head dim 8 in bytes, a scale and a zero point of 16 bits
    assert metrics["cache/bytes"] == 12 * keys_and_values * 2
    coarse_metrics = CachedLosses(partial(QuantizedCache, bits=2, group=4))(*module_and_data, "cpu").metrics
    assert abs(coarse_metrics["cache/rise"]) > 10 * abs(metrics["cache/rise"])


def test_an_unknown_condition_is_rejected(module_and_data):
    module, data = module_and_data
    with pytest.raises(ValueError, match=r"no distance/3 .*distance/2, distance/9"):
        CachedLosses(conditions=["distance/3"]).check(module.model, data)


def test_a_model_without_keys_is_rejected(compose):
    config = compose("model=gru", "position=none", "decode=none")
    with torch.device("meta"):
        model = build_model(config, 7)
    with pytest.raises(ValueError, match="another mixer"):
        CachedLosses().check(model, None)
