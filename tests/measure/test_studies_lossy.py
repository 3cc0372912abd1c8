"""What a cache costs a model is found by reading texts through it, and what it holds is counted in it."""

from functools import partial

import pytest
import torch

from attnlab.attention.cache import DynamicCache, SlidingWindowCache
from attnlab.attention.lossy.quantised import QuantisedCache
from attnlab.measure.studies.losses import validation_loss
from attnlab.measure.studies.lossy import CachedLosses
from attnlab.model.build import build_model, make

torch.set_num_threads(1)

BOTH = ["distance/2", "distance/9"]

NEEDLES = {
    "_target_": "attnlab.data.module.Data",
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
def subject(compose):
    """A LanguageModel whose scores are those of a trained one, and its data: needles 2 and 9 tokens back."""
    config = compose("model.qk_gain=1.0", "model.init_std=0.2", "model.dim=24", "model.n_heads=3")
    data = make(NEEDLES)
    return make(config["optim"], model=build_model(config, data.task.vocab_size)).eval(), data


@pytest.mark.parametrize("step", [1, 5, 16])
def test_a_plain_cache_costs_nothing_however_texts_are_cut(subject, step):
    module, data = subject
    found = CachedLosses(DynamicCache, step, ["distance/2"])(module, data, "cpu").metrics
    assert found["cache/rise"] == pytest.approx(0, abs=1e-6)
    assert found["cache/rise/distance/2"] == pytest.approx(0, abs=1e-6)
    assert found["cache/share"] == 1
    assert found["cache/bytes"] == 16 * module.model.state_size()
    whole = validation_loss(module, data.val_dataloader(), "cpu")
    assert found["val/loss"] == pytest.approx(whole, abs=1e-5)


def test_what_was_dropped_before_it_is_asked_for_raises_the_loss_there_alone(subject):
    found = CachedLosses(partial(SlidingWindowCache, size=4), conditions=BOTH)(*subject, "cpu").metrics
    near, far = (found[f"cache/rise/distance/{distance}"] for distance in (2, 9))
    assert abs(far) > 1e-3
    assert found["cache/rise"] == pytest.approx((near + far) / 2, abs=1e-6)
    assert found["cache/share"] == 4 / 16


def test_what_is_rounded_is_counted_with_its_scales(subject):
    keys_and_values = 2 * 16 * 3  # of a layer: tokens, heads
    found = CachedLosses(partial(QuantisedCache, bits=8, keys="token"))(*subject, "cpu").metrics
    assert found["cache/share"] == (8 + 2 + 2) / (8 * 4)  # width 8 in bytes, a scale and a zero of 16 bits
    assert found["cache/bytes"] == 12 * keys_and_values * 2
    coarse = CachedLosses(partial(QuantisedCache, bits=2, group=4))(*subject, "cpu").metrics
    assert abs(coarse["cache/rise"]) > 10 * abs(found["cache/rise"])


def test_a_condition_that_the_task_has_not_is_refused(subject):
    module, data = subject
    with pytest.raises(ValueError, match=r"no distance/3 .*distance/2, distance/9"):
        CachedLosses(conditions=["distance/3"]).check(module.model, data)


def test_a_model_without_keys_is_refused(compose):
    config = compose("model=gru", "position=none", "decode=none")
    with torch.device("meta"):
        model = build_model(config, 7)
    with pytest.raises(ValueError, match="another mixer"):
        CachedLosses().check(model, None)
