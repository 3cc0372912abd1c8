"""Parameter groups, and Muon and AdamW as one optimizer."""

import io

import pytest
import torch

from attnlab.model.build import build_model, instantiate_config
from attnlab.training.optim.muon import MuonAdamW
from attnlab.training.preflight import check

torch.set_num_threads(1)
LINE = ("heads=differential", "epilogue=gate_per_head", "model.bias=true", "optim.lr=0.5", "optim.min_lr=0.1")
MUP = ("parametrization=mup", "model.parametrization.base_dim=4")
TOKENS = torch.arange(22).view(2, 11)


@pytest.fixture
def make_module(compose):
    def make(*overrides):
        config = compose(*LINE, *overrides)
        return instantiate_config(config["optim"], model=build_model(config, 31))

    return make


def map_group_values(module, optimizer, key):
    names = {id(p): name for name, p in module.model.named_parameters()}
    return {names[id(p)]: group[key] for group in optimizer.param_groups for p in group["params"]}


def train_steps(module, optimizer, count):
    for _ in range(count):
        loss = module.losses({"tokens": TOKENS, "targets": TOKENS.roll(-1, 1)}).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_learning_rates_follow_the_table_and_the_schedule(make_module):
    module = make_module(*MUP, "optim.warmup=1")
    optimizer, schedule = module.optimizer(20)
    rates = map_group_values(module, optimizer, "initial_lr")
    assert rates["embedding.weight"] == rates["norm.weight"] == 0.5
    assert rates["blocks.0.ffn.down.weight"] == rates["blocks.1.mixer.epilogue.gate.weight"] == 0.5 / 4
    assert rates["blocks.0.ffn.down.bias"] == 0.5
    assert rates["blocks.0.mixer.heads.lambdas"] == 0.5 / 2
    assert optimizer.param_groups[0]["lr"] == 0.25  # the rate shown as `train/lr`
    for _ in range(7):
        optimizer.step()
        schedule.step()
        now = {group["lr"] / group["initial_lr"] for group in optimizer.param_groups}
        assert max(now) == pytest.approx(min(now))


def test_weight_decay_per_step_is_equal_for_all_matrices(make_module):
    module = make_module(*MUP)
    optimizer, _ = module.optimizer(20)
    for group in optimizer.param_groups:
        matrices = {p.ndim >= 2 for p in group["params"]}
        (decays,) = matrices
        assert group["initial_lr"] * group["weight_decay"] == pytest.approx(0.5 * 0.1 if decays else 0)


def test_muon_optimizes_the_matrices_in_blocks_and_adamw_the_rest(make_module):
    module = make_module("optim=muon")
    optimizer, _ = module.optimizer(20)
    assert isinstance(optimizer, MuonAdamW)
    parameters_by_name = map_group_values(module, optimizer, "params")
    muon_names = {name for name, p in module.model.named_parameters() if "momentum" in _group(optimizer, p)}
    assert {name.split(".", 2)[2] for name in muon_names} == {
        "mixer.heads.qkv.weight", "mixer.heads.out.weight", "ffn.up.weight", "ffn.down.weight",
    }  # fmt: skip
    assert parameters_by_name.keys() == dict(module.model.named_parameters()).keys()
    first = optimizer.param_groups[0]
    assert first["params"][0] is module.model.embedding.weight
    train_steps(module, optimizer, 1)
    state_keys = {name: set(optimizer.state[p]) for name, p in module.model.named_parameters()}
    assert all(("momentum_buffer" in state) == (name in muon_names) for name, state in state_keys.items())


def _group(optimizer, parameter):
    return next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))


@pytest.mark.parametrize("more", [(), MUP], ids=["standard", "mup"])
def test_a_restored_optimizer_continues_to_the_same_bits(make_module, more):
    uninterrupted, interrupted = (
        make_module("optim=muon", "optim.lr=1e-2", "optim.min_lr=0", *more) for _ in range(2)
    )
    (one, _), (other, _) = uninterrupted.optimizer(20), interrupted.optimizer(20)
    train_steps(uninterrupted, one, 5)
    train_steps(interrupted, other, 2)
    file = io.BytesIO()
    torch.save({"model": interrupted.model.state_dict(), "optimizer": other.state_dict()}, file)
    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    fresh = make_module("optim=muon", "optim.lr=1e-2", "optim.min_lr=0", "seed=7", *more)
    again, _ = fresh.optimizer(20)
    fresh.model.load_state_dict(checkpoint["model"])
    again.load_state_dict(checkpoint["optimizer"])
    train_steps(fresh, again, 3)
    for name, value in uninterrupted.model.state_dict().items():
        assert torch.equal(value, fresh.model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.optimizer.momentum=1.0", "momentum must be at least 0 and below 1"),
        ("+optim.optimizer.nestrov=true", "optim cannot be built from its config: TypeError"),
    ],
)
def test_invalid_optimizer_arguments_are_rejected_before_training(compose, override, message):
    with pytest.raises(ValueError, match=message):
        check(compose("optim=muon", override))
