"""Groups of rates, and Muon and AdamW as one optimiser."""

import io

import pytest
import torch

from attnlab.model.build import build_model, make
from attnlab.training.optim.muon import MuonAdamW
from attnlab.training.preflight import check

torch.set_num_threads(1)
LINE = ("heads=differential", "epilogue=gate_per_head", "model.bias=true", "optim.lr=0.5", "optim.min_lr=0.1")
MUP = ("parametrization=mup", "model.parametrization.base_dim=4")
TOKENS = torch.arange(22).view(2, 11)


@pytest.fixture
def module(compose):
    def made(*overrides):
        config = compose(*LINE, *overrides)
        return make(config["optim"], model=build_model(config, 31))

    return made


def by_name(module, optimizer, key):
    names = {id(p): name for name, p in module.model.named_parameters()}
    return {names[id(p)]: group[key] for group in optimizer.param_groups for p in group["params"]}


def steps(module, optimizer, count):
    for _ in range(count):
        loss = module.losses({"tokens": TOKENS, "targets": TOKENS.roll(-1, 1)}).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_rates_follow_the_table_and_the_schedule_keeps_their_shares(module):
    mine = module(*MUP, "optim.warmup=1")
    optimizer, schedule = mine.optimizer(20)
    rates = by_name(mine, optimizer, "initial_lr")
    assert rates["embedding.weight"] == rates["norm.weight"] == 0.5
    assert rates["blocks.0.ffn.down.weight"] == rates["blocks.1.mixer.epilogue.gate.weight"] == 0.5 / 4
    assert rates["blocks.0.ffn.down.bias"] == 0.5
    assert rates["blocks.0.mixer.heads.lambdas"] == 0.5 / 2
    assert optimizer.param_groups[0]["lr"] == 0.25  # what `train/lr` shows
    for _ in range(7):
        optimizer.step()
        schedule.step()
        now = {group["lr"] / group["initial_lr"] for group in optimizer.param_groups}
        assert max(now) == pytest.approx(min(now))


def test_a_step_takes_off_as_much_of_every_matrix(module):
    mine = module(*MUP)
    optimizer, _ = mine.optimizer(20)
    for group in optimizer.param_groups:
        matrices = {p.ndim >= 2 for p in group["params"]}
        (decays,) = matrices
        assert group["initial_lr"] * group["weight_decay"] == pytest.approx(0.5 * 0.1 if decays else 0)


def test_muon_takes_the_matrices_within_blocks_and_adamw_the_rest(module):
    mine = module("optim=muon")
    optimizer, _ = mine.optimizer(20)
    assert isinstance(optimizer, MuonAdamW)
    has = by_name(mine, optimizer, "params")
    muons = {name for name, p in mine.model.named_parameters() if "momentum" in _group(optimizer, p)}
    assert {name.split(".", 2)[2] for name in muons} == {
        "mixer.heads.qkv.weight", "mixer.heads.out.weight", "ffn.up.weight", "ffn.down.weight",
    }  # fmt: skip
    assert has.keys() == dict(mine.model.named_parameters()).keys()
    first = optimizer.param_groups[0]
    assert first["params"][0] is mine.model.embedding.weight
    steps(mine, optimizer, 1)
    kept = {name: set(optimizer.state[p]) for name, p in mine.model.named_parameters()}
    assert all(("momentum_buffer" in state) == (name in muons) for name, state in kept.items())


def _group(optimizer, parameter):
    return next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))


@pytest.mark.parametrize("more", [(), MUP], ids=["standard", "mup"])
def test_what_was_saved_goes_on_to_the_same_bits(module, more):
    whole, broken = (module("optim=muon", "optim.lr=1e-2", "optim.min_lr=0", *more) for _ in range(2))
    (one, _), (other, _) = whole.optimizer(20), broken.optimizer(20)
    steps(whole, one, 5)
    steps(broken, other, 2)
    file = io.BytesIO()
    torch.save({"model": broken.model.state_dict(), "optimizer": other.state_dict()}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    fresh = module("optim=muon", "optim.lr=1e-2", "optim.min_lr=0", "seed=7", *more)
    again, _ = fresh.optimizer(20)
    fresh.model.load_state_dict(kept["model"])
    again.load_state_dict(kept["optimizer"])
    steps(fresh, again, 3)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, fresh.model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("optim.optimizer.momentum=1.0", "momentum must be at least 0 and below 1"),
        ("+optim.optimizer.nestrov=true", "optim cannot be built of its values: TypeError"),
    ],
)
def test_what_an_optimiser_does_not_take_is_refused_before_training(compose, override, told):
    with pytest.raises(ValueError, match=told):
        check(compose("optim=muon", override))
