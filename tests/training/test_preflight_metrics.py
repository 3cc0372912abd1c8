"""Before a run starts, its metrics are known and layers that do not fit together are rejected."""

import pytest

from attnlab.errors import InvalidConfig
from attnlab.measure.measurement import MeasurementResult
from attnlab.store import run_directories
from attnlab.store.experiment_schema import Experiment
from attnlab.store.run_schema import Metric, RunEstimate
from attnlab.sweep.plan.validate_claims import validate_against_estimates
from attnlab.training import final_metrics, run
from attnlab.training.preflight import check

WINGSPAN = Metric("ours/wingspan", "span of the wings", "cubits", "higher")


class Wings:
    """A user's measurement."""

    metrics = (WINGSPAN,)

    def __call__(self, module, data, device):
        return MeasurementResult({WINGSPAN.name: 3.0})


def measure_wings(module, data, rows, config):
    return {"metrics": {WINGSPAN.name: 3.0}}


def accepts_metric(config, name):
    """Whether an experiment whose arm has this config may list the metric under `metrics`."""
    experiment = Experiment(
        name="mine", arms=["a"], baseline="a", seeds=[0], metric=WINGSPAN.name, metrics=[name],
        margin=1.0, margin_reason="r", claims=[],
    )  # fmt: skip
    try:
        validate_against_estimates(experiment, [], {"a": RunEstimate.model_validate(check(config))})
    except InvalidConfig:
        return False
    return True


@pytest.mark.parametrize("kind", ["measured after training", "measurement"])
def test_one_definition_of_a_metric_suffices(compose, make_run_dir, monkeypatch, kind):
    is_trained = kind == "measured after training"
    if is_trained:
        part = final_metrics.MeasuredPart(measure_wings, (__name__,), lambda *_: [WINGSPAN])
        monkeypatch.setitem(final_metrics.MEASURED_PARTS, "wings", part)
    line = [] if is_trained else ["measurement={_target_: test_preflight_metrics.Wings}"]
    config = compose("trainer.max_steps=2", *line)
    assert accepts_metric(config, WINGSPAN.name)
    assert not accepts_metric(config, "ours/wingspam")
    folder = make_run_dir("run", config)
    run.run(folder)
    result = run_directories.load_run_result(folder)
    assert (result.metrics[WINGSPAN.name], result.get_metric(WINGSPAN.name)) == (3.0, WINGSPAN)


@pytest.mark.parametrize(
    ("line", "included", "excluded"),
    [
        (["size=debug"], ["val/loss", "val/bits_per_byte", "train_step_ms", "saved_for_backward_bytes",
                            "train_tokens_per_s"],
         ["length/2", "val/accuracy"]),
        (["size=debug", "measure.timing=false", "measure.lengths=[1,1.5]"],
         ["length/1", "length/1.5", "length/last/1.5", "length/excess/1.5"], ["train_step_ms", "length/2"]),
    ],
)  # fmt: skip
def test_the_check_lists_the_metrics_of_a_run(compose, line, included, excluded):
    names = set(check(compose(*line))["metric_names"])
    assert set(included) <= names
    assert not names & set(excluded)


@pytest.mark.parametrize("layers", ["layers=cross_layer", "layers=yoco"])
@pytest.mark.parametrize("heads", ["gta", "differential"])
def test_shared_keys_of_heads_that_store_others_are_rejected_with_the_reason(compose, heads, layers):
    message = "layers with shared keys and values read those of grouped heads, .* use heads=mha"
    with pytest.raises(ValueError, match=f"model.layers: {message}") as error:
        check(compose("size=debug", f"heads={heads}", layers, "model.n_layers=4"))
    assert "\n" not in str(error.value)


def test_keys_cached_before_rope_are_not_shared_between_layers(compose):
    with pytest.raises(ValueError, match=r"layers share keys with RoPE, .* use heads=mha"):
        check(compose("size=debug", "heads=k_eq_v", "layers=cross_layer"))


@pytest.mark.parametrize("heads", ["mla", "gla", "tpa"])
def test_value_embeddings_of_heads_without_values_are_rejected_with_the_reason(compose, heads):
    with pytest.raises(ValueError, match=f"heads={heads} computes values .*: use values=own"):
        check(compose("size=debug", f"heads={heads}", "values=embedding"))


@pytest.mark.parametrize("heads", ["mha", "gqa", "mqa", "single", "tied_qkv"])
def test_shared_keys_of_grouped_heads_are_accepted(compose, heads):
    assert check(compose("size=debug", f"heads={heads}", "layers=cross_layer"))["kv_bytes_per_token"] > 0


SINKS_CACHE = "{_target_: attnlab.attention.cache.SlidingWindowCache, _partial_: true, size: 5, keep: 2}"
EVICTING_CACHE = (
    "{_target_: attnlab.attention.compressed_caches.evicting.HeavyHitterCache, _partial_: true, size: 5}"
)
LOCAL_WRITER = (
    "+model.layers.0.masks={local: {_target_: attnlab.attention.masks.window.window, size: 6, keep: 0}}"
)
THROUGH_CACHE = "measurement={_target_: attnlab.measure.studies.cached_losses.CachedLosses, make_cache: "


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["score=multi_token", "mask=window_sinks", "decode=sliding"], "scores of adjacent tokens"),
        (["score=multi_token", f"{THROUGH_CACHE}{EVICTING_CACHE}}}"], "scores of adjacent tokens"),
        (["score=multi_token", f"{THROUGH_CACHE}{SINKS_CACHE}}}"], "scores of adjacent tokens"),
        (["layers=cross_layer", f"{THROUGH_CACHE}{EVICTING_CACHE}}}"], "no tokens to evict"),
        (["layers=cross_layer", "~decode.cache", f"+decode.cache={EVICTING_CACHE}"], "no tokens to evict"),
        (["layers=cross_layer", "decode=sliding", LOCAL_WRITER], "layer 1 reads keys .* after 6 tokens"),
    ],
)
def test_caches_without_the_tokens_that_a_layer_needs_are_rejected(compose, line, message):
    with pytest.raises(ValueError, match=message) as error:
        check(compose("size=debug", "kernel=eager", *line))
    assert "\n" not in str(error.value)


def test_caches_with_the_tokens_that_a_layer_needs_are_accepted(compose):
    accepted = [
        ["score=multi_token", "mask=window", "decode=sliding"],
        ["layers=cross_layer", f"{THROUGH_CACHE}{SINKS_CACHE}}}"],
        ["layers=cross_layer", "mask=window", "decode=sliding"],
    ]
    for line in accepted:
        check(compose("size=debug", "kernel=eager", *line))
