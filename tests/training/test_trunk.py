"""Runs of several budgets share a trunk: its steps are trained once, and no bit of a result depends on it."""

import pyarrow.parquet as pq
import pytest
import torch

from attnlab.store import fingerprint, run_directories
from attnlab.store.run_schema import RunConfig, RunEstimate, Trunk, Use
from attnlab.training import run
from attnlab.training.checkpoints import TRUNK_CHECKPOINT
from attnlab.training.preflight import check
from tests.training.test_run import assert_same_bits, load_weights

torch.set_num_threads(1)
LINE = (
    "optim.schedule.decay=0.25", "optim.warmup=2", "measure.every=4", "measure.maps=1", "model.dropout=0.1",
    "trainer.log_every_n_steps=3",
)  # fmt: skip


@pytest.fixture
def train(compose, tmp_path):
    """`train(root, steps, *overrides, trunk=, keeps_trunk=)`: train a run and return its folder."""

    def make(root, steps, *overrides, trunk=None, keeps_trunk=False):
        config = compose("schedule=wsd", *LINE, f"trainer.max_steps={steps}", *overrides)
        estimate = RunEstimate.model_validate(check(config))
        run_id, identity = fingerprint.compute_run_id(config, estimate, {})
        start = trunk and load_result(trunk).estimate.shared_steps
        use = Use(arm="mha", trunk=trunk and Trunk(id=trunk.name, step=start), keeps_trunk=keeps_trunk)
        config["id"] = run_id
        spec = RunConfig(id=run_id, config=config, identity=identity, estimate=estimate, use=use)
        run_directories.write_run_config(tmp_path / root, spec)
        run.run(tmp_path / root / run_id)
        return tmp_path / root / run_id

    return make


def load_result(folder):
    result = run_directories.load_run_result(folder)
    assert result is not None
    return result


def read_curves(folder):
    return pq.read_table(folder / "curves.parquet").to_pylist()


@pytest.mark.parametrize(
    "more", [(), pytest.param(("optim=muon", "trainer.precision=32-true"), marks=pytest.mark.rare)]
)
def test_a_budget_that_continues_a_trunk_equals_a_run_of_this_budget_alone(train, more):
    alone = {steps: train("alone", steps, *more) for steps in (8, 16, 32)}
    shared = {}
    shared[8] = train("shared", 8, *more, keeps_trunk=True)
    shared[16] = train("shared", 16, *more, trunk=shared[8], keeps_trunk=True)
    shared[32] = train("shared", 32, *more, trunk=shared[16])
    starts = {steps: load_result(folder).trunk for steps, folder in shared.items()}
    # the last quarter decays: 8 - 1 - 2 = 5 and 16 - 1 - 4 = 11 steps are shared
    assert starts[8] is None
    assert (starts[16].id, starts[16].step) == (shared[8].name, 5)
    assert (starts[32].id, starts[32].step) == (shared[16].name, 11)
    for steps in alone:
        assert shared[steps].name == alone[steps].name
        assert_same_bits(load_weights(alone[steps]), load_weights(shared[steps]))
        assert read_curves(shared[steps]) == read_curves(alone[steps])
        assert load_result(shared[steps]).metrics == load_result(alone[steps]).metrics
        assert load_result(shared[steps]).resumed == ()


@pytest.mark.parametrize("other", ["seed=1", "optim.lr=1e-4", "measure.maps=3", "optim.schedule.decay=0.5"])
def test_a_run_that_differs_in_more_than_its_steps_continues_no_trunk(train, other):
    smaller = train("shared", 8, keeps_trunk=True)
    larger = train("shared", 16, other, trunk=smaller)
    assert load_result(larger).trunk is None


@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_without_a_usable_trunk_a_run_trains_all_steps(train, damage):
    smaller = train("shared", 8, keeps_trunk=True)
    checkpoint = smaller / TRUNK_CHECKPOINT
    if damage == "missing":
        checkpoint.unlink()
    elif damage == "truncated":
        checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    else:
        other = train("shared", 8, "seed=1", keeps_trunk=True)
        (other / TRUNK_CHECKPOINT).replace(checkpoint)
    larger = train("shared", 16, trunk=smaller)
    assert load_result(larger).trunk is None
    assert_same_bits(load_weights(larger), load_weights(train("alone", 16)))
