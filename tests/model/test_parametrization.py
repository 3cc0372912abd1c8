"""mup equals the standard model bit for bit at the base width, and follows its table elsewhere."""

import pytest
import torch
from torch import nn

from attnlab.attention.layer import Attention
from attnlab.model.build import build_model
from attnlab.model.huggingface.conversion import save_hf_model
from attnlab.model.parametrization import (
    Readout,
    build_scaling_table,
    compute_score_factor,
    iterate_parameter_kinds,
    map_scaling_rows,
)

torch.set_num_threads(1)
MUP, BASE = "parametrization=mup", "model.parametrization.base_dim"
TOKENS = torch.arange(22).view(2, 11)


@pytest.fixture
def build(compose):
    return lambda *overrides: build_model(compose(*overrides), 31)


@pytest.mark.parametrize(
    "line",
    [["heads=mha"], ["model=llama", "heads=mla"], ["heads=differential", "kernel=eager"], ["model=gru"]],
    ids=lambda line: line[0],
)
def test_mup_at_the_base_width_equals_standard_bit_for_bit(line, build):
    plain, scaled, wide = build(*line), build(*line, MUP, f"{BASE}=16"), build(*line, MUP, f"{BASE}=8")
    state = scaled.state_dict()
    assert plain.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())
    assert torch.equal(plain(TOKENS), scaled(TOKENS))
    assert set(map_scaling_rows(scaled).values()) <= set(build_scaling_table().values())
    assert not torch.equal(plain(TOKENS), wide(TOKENS))


def test_standard_model_has_no_scaling(build):
    model = build()
    assert type(model.head) is nn.Linear
    assert model.blocks[0].mixer.scale == 4**-0.5
    assert {row.adam_lr for row in map_scaling_rows(model).values()} == {1.0}


def test_logits_are_divided_and_an_untied_head_starts_equal(build):
    plain, scaled = (build("model.tie=false", *more) for more in ((), (MUP, f"{BASE}=4")))
    x = torch.randn(2, 5, 16)
    assert isinstance(scaled.head, Readout)
    assert torch.equal(plain.head.weight, scaled.head.weight)
    torch.testing.assert_close(4 * scaled.head(x), plain.head(x))


@pytest.mark.parametrize("exponent", [-0.5, 0, -1])
def test_scores_are_divided_by_the_width_beyond_the_base(build, exponent):
    line = (f"model.attention.scale_exponent={exponent}", MUP, f"{BASE}=4")
    assert build(*line).blocks[0].mixer.scale == pytest.approx(
        1**exponent * (1 / 4)
    )  # with as many heads the base head size is 1
    fixed = build(*line, "model.parametrization.base_head_dim=4")
    assert fixed.blocks[0].mixer.scale == pytest.approx(4**exponent)
    assert compute_score_factor(4.0, exponent) == pytest.approx(4 ** -(1 + exponent))


@torch.no_grad()
def test_initial_values_follow_the_table(build):
    line = ("heads=differential", "model.qk_gain=1.0", "model.bias=true")
    plain, scaled = build(*line), build(*line, MUP, f"{BASE}=4")
    values, kinds = dict(scaled.named_parameters()), dict(iterate_parameter_kinds(scaled))
    a, b, *_ = scaled.blocks[0].mixer.heads.lambdas
    assert a @ b == pytest.approx(0.01)  # as at the base, whose heads have one feature
    for name, parameter in plain.named_parameters():
        if kinds[name] == "hidden" and "qkv" not in name:
            torch.testing.assert_close(2 * values[name], parameter)
        if kinds[name] in ("vector", "input"):
            assert torch.equal(parameter, values[name])
    q = slice(0, 16)  # qk_gain already depends on the fan in
    fused = [model.blocks[0].mixer.heads.qkv.weight[q] for model in (plain, scaled)]
    assert torch.equal(*fused)


class UndeclaredMixer(nn.Module):
    """Mixer with a matrix of undeclared kind."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(dim))

    def state_size(self):
        return 0


def test_parameter_of_unknown_kind_is_rejected(build):
    line = ("model.mixer={_target_: " + f"{__name__}.UndeclaredMixer, dim: 16" + "}",)
    assert map_scaling_rows(build(*line))["blocks.0.mixer.weight"].adam_lr == 1
    with pytest.raises(ValueError, match=r"no rule for blocks\.0\.mixer\.weight: declare"):
        build(*line, MUP)


@pytest.mark.parametrize(("key", "value"), [("base_dim", 0), ("base_head_dim", -1)])
def test_base_size_below_one_is_rejected(build, key, value):
    with pytest.raises(ValueError, match=f"model.parametrization.{key} must be at least 1, got {value}"):
        build(MUP, f"model.parametrization.{key}={value}")


def test_mup_model_cannot_be_saved_as_a_checkpoint(compose, tmp_path):
    config = compose("position=learned", "model.bias=true", MUP)
    with pytest.raises(ValueError, match="parametrization"):
        save_hf_model(tmp_path, build_model(config, 31), config["model"])


def test_every_shipped_part_declares_its_parameter_kinds(compose):
    line = ["heads=differential", "position=relative", "kernel=eager", "epilogue=sinks", "score=qk_norm"]
    model = build_model(compose(*line), 31)
    assert None not in dict(iterate_parameter_kinds(model)).values()
    assert isinstance(model.blocks[0].mixer, Attention)
