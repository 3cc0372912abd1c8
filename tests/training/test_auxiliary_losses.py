"""Auxiliary losses of a model: trained by weight, recorded apart, no part of the validation loss."""

import functools
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnlab.measure import resources, step_timing
from attnlab.measure.training_pass import compute_training_loss
from attnlab.model.build import build_model, instantiate_config
from attnlab.store.run_directories import load_run_result
from attnlab.training import run
from attnlab.training.final_metrics import MEASURED_PARTS
from attnlab.training.preflight import check

torch.set_num_threads(1)

INDEXED = ("mask=indexed_tokens", "model.attention.selection.count=3")


def make_module(compose, *overrides):
    config = compose(*INDEXED, *overrides)
    return instantiate_config(config["optim"], model=build_model(config, 31))


def make_batch():
    tokens = torch.randint(31, (2, 12), generator=torch.Generator().manual_seed(1))
    return {"tokens": tokens, "targets": tokens.roll(-1, 1)}


def test_losses_of_targets_do_not_include_auxiliary_losses(compose):
    module, auxiliary = make_module(compose), {}
    assert torch.equal(module.losses(make_batch(), auxiliary), module.losses(make_batch()))
    assert set(auxiliary) == {"indexer_kl"}
    assert auxiliary["indexer_kl"] > 0
    assert module.model.auxiliary_weights == {"indexer_kl": 1.0}


def test_layers_with_different_weights_are_rejected(compose):
    layers = "model.layers=[{}, {selection: {indexer: {loss_weight: 2.0}}}]"
    with pytest.raises(ValueError, match=r"layers weight indexer_kl by 1.0 and by 2.0: use one weight"):
        make_module(compose, layers)


def test_reserved_names_are_rejected(compose, monkeypatch):
    monkeypatch.setattr("attnlab.attention.layer.LOSS_NAME", "accuracy")
    with pytest.raises(ValueError, match="an auxiliary loss cannot be named accuracy"):
        make_module(compose)


def test_weight_of_an_auxiliary_loss_does_not_change_the_other_steps(compose):
    """Clipping, too, treats parts that learn from their own loss apart."""
    losses = {}
    for weight in (1.0, 1000.0):
        module = make_module(compose, f"model.attention.selection.indexer.loss_weight={weight}")
        optimizer = torch.optim.SGD(module.model.parameters(), lr=1.0)
        auxiliary = {}
        loss = module.losses(make_batch(), auxiliary).mean() + weight * auxiliary["indexer_kl"]
        loss.backward()
        module.configure_gradient_clipping(optimizer, 1e-3)
        losses[weight] = {
            name: p.grad.clone() for name, p in module.model.named_parameters() if "indexer" not in name
        }
        norm = module.model.blocks[0].mixer.selection.indexer.qkw.weight.grad.norm()
        assert 0 < norm <= 1.001e-3
    torch.testing.assert_close(losses[1000.0], losses[1.0], rtol=0, atol=0)


def test_compiled_losses_include_auxiliary_losses(compose, monkeypatch):
    """torch traces the losses; the backend "eager" needs no C++ compiler."""
    graphs = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", graphs)
    module, compiled = make_module(compose), make_module(compose, "optim.compile=true")
    compiled.load_state_dict(module.state_dict())
    results = []
    for each in (module, compiled):
        auxiliary = {}
        losses = each.losses(make_batch(), auxiliary)
        (losses.mean() + auxiliary["indexer_kl"]).backward()
        weight = each.model.blocks[0].mixer.selection.indexer.qkw.weight
        results.append((losses, auxiliary["indexer_kl"], weight.grad))
    for actual, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_run_records_auxiliary_losses_apart_and_trains_them(compose, make_run_dir):
    config = compose(
        *INDEXED, "data.length=16", "trainer.max_steps=30", "trainer.log_every_n_steps=1", "optim.lr=1e-2",
        "trainer.accumulate_grad_batches=2", "measure.maps=0", "measure.every=10", "model.qk_gain=3.0",
    )  # fmt: skip
    folder = make_run_dir("run", config)
    run.run(folder)
    record = load_run_result(folder)
    curves = {}
    for row in pq.read_table(folder / "curves.parquet").to_pylist():
        curves.setdefault(row["name"], []).append(row["value"])
    assert len(curves["train/indexer_kl"]) == len(curves["train/loss"]) == 30
    assert curves["train/indexer_kl"][-1] < 0.95 * curves["train/indexer_kl"][0]
    assert record.metrics["val/indexer_kl"] == curves["val/indexer_kl"][-1] < curves["val/indexer_kl"][0]
    assert record.get_metric("val/indexer_kl").unit == "nats"
    assert "val/indexer_kl" in check(config)["metric_names"]
    assert record.metrics["val/loss"] == curves["val/loss"][-1]


def test_model_without_auxiliary_losses_records_none(compose):
    config = compose()
    module = instantiate_config(config["optim"], model=build_model(config, 31))
    auxiliary = {}
    module.losses(make_batch(), auxiliary)
    assert auxiliary == module.model.auxiliary_weights == {}


@pytest.mark.parametrize("line", [(*INDEXED, "model.attention.selection.indexer.loss_weight=3.0"), ()])
def test_measured_loss_is_that_of_a_training_step(compose, line):
    config = compose(*line)
    module = instantiate_config(config["optim"], model=build_model(config, 31))
    module.trainer = SimpleNamespace(
        accumulate_grad_batches=1, world_size=1, global_step=1, log_every_n_steps=1
    )
    assert torch.equal(compute_training_loss(module, make_batch()), module.training_step(make_batch(), 0))


def test_training_flops_include_auxiliary_losses(compose):
    module = make_module(compose, "kernel=eager")
    row = {name: value[:1] for name, value in make_batch().items()}
    counter = FlopCounterMode(display=False)
    with counter:
        compute_training_loss(module, row).backward()
    with torch.device("meta"):
        model = build_model(compose(*INDEXED), 31)
    assert resources.count_flops_per_token(model, 12) == counter.get_total_flops() // 12


def test_saved_bytes_and_timed_steps_include_auxiliary_losses(compose, make_run_dir, monkeypatch):
    config = compose(*INDEXED, "trainer.max_steps=1", "measure.maps=0")
    data = instantiate_config(config["data"])
    module = instantiate_config(config["optim"], model=build_model(config, data.task.vocab_size))
    batch = data.task.train_batch(data.seed, 0, data.batch_size)
    saved = resources.count_saved_bytes(lambda: compute_training_loss(module, batch), module.model)
    memory = MEASURED_PARTS["memory"].measure(module, data, [], config)["memory"]
    assert memory["saved_for_backward_bytes"] == saved

    folder = make_run_dir("run", config)
    run.run(folder)
    reached = set()
    monkeypatch.setattr(step_timing, "interleave_calls", lambda works: {name: [1.0] for name in works})
    monkeypatch.setattr(
        torch.optim.AdamW,
        "zero_grad",
        lambda self, **_: reached.update(p.grad is not None for g in self.param_groups for p in g["params"]),
    )
    step_timing.measure_timings({"arm": folder})
    assert reached == {True}
