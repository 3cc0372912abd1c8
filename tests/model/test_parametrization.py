"""At the base width mup is the standard model bit for bit; away from it the table's numbers are there."""

import pytest
import torch
from torch import nn

from attnlab.attention.layer import Attention
from attnlab.model.build import build_model
from attnlab.model.huggingface.convert import save
from attnlab.model.parametrization import Readout, kinds, rows, scores, table

torch.set_num_threads(1)
MUP, BASE = "parametrization=mup", "model.parametrization.base_dim"
TOKENS = torch.arange(22).view(2, 11)


@pytest.fixture
def built(compose):
    return lambda *overrides: build_model(compose(*overrides), 31)


@pytest.mark.parametrize(
    "line",
    [["heads=mha"], ["model=llama", "heads=mla"], ["heads=differential", "kernel=eager"], ["model=gru"]],
    ids=lambda line: line[0],
)
def test_at_the_base_width_mup_is_the_standard_model_bit_for_bit(line, built):
    plain, scaled, wide = built(*line), built(*line, MUP, f"{BASE}=16"), built(*line, MUP, f"{BASE}=8")
    state = scaled.state_dict()
    assert plain.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())
    assert torch.equal(plain(TOKENS), scaled(TOKENS))
    assert set(rows(scaled).values()) <= set(table().values())
    assert not torch.equal(plain(TOKENS), wide(TOKENS))


def test_the_standard_model_has_nothing_of_it(built):
    model = built()
    assert type(model.head) is nn.Linear
    assert model.blocks[0].mixer.scale == 4**-0.5
    assert {row.adam for row in rows(model).values()} == {1.0}


def test_logits_are_divided_and_an_untied_head_starts_as_it_would(built):
    plain, scaled = (built("model.tie=false", *more) for more in ((), (MUP, f"{BASE}=4")))
    x = torch.randn(2, 5, 16)
    assert isinstance(scaled.head, Readout)
    assert torch.equal(plain.head.weight, scaled.head.weight)
    torch.testing.assert_close(4 * scaled.head(x), plain.head(x))


@pytest.mark.parametrize("exponent", [-0.5, 0, -1])
def test_scores_are_divided_by_the_width_beyond_the_base(built, exponent):
    line = (f"model.attention.scale_exponent={exponent}", MUP, f"{BASE}=4")
    assert built(*line).blocks[0].mixer.scale == pytest.approx(1**exponent * (1 / 4))  # as many heads: 1 wide
    fixed = built(*line, "model.parametrization.base_head_dim=4")
    assert fixed.blocks[0].mixer.scale == pytest.approx(4**exponent)
    assert scores(4.0, exponent) == pytest.approx(4 ** -(1 + exponent))


@torch.no_grad()
def test_each_kind_starts_by_its_row(built):
    line = ("heads=differential", "model.qk_gain=1.0", "model.bias=true")
    plain, scaled = built(*line), built(*line, MUP, f"{BASE}=4")
    values, told = dict(scaled.named_parameters()), dict(kinds(scaled))
    a, b, *_ = scaled.blocks[0].mixer.heads.lambdas
    assert a @ b == pytest.approx(0.01)  # as with the one feature that a head of the base has
    for name, parameter in plain.named_parameters():
        if told[name] == "hidden" and "qkv" not in name:
            torch.testing.assert_close(2 * values[name], parameter)
        if told[name] in ("vector", "input"):
            assert torch.equal(parameter, values[name])
    q = slice(0, 16)  # the gain counts from the fan in already
    fused = [model.blocks[0].mixer.heads.qkv.weight[q] for model in (plain, scaled)]
    assert torch.equal(*fused)


class Own(nn.Module):
    """A mixer with a matrix that says nothing of itself."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(dim))

    def state_size(self):
        return 0


def test_a_parameter_of_no_known_kind_is_refused(built):
    line = ("model.mixer={_target_: " + f"{__name__}.Own, dim: 16" + "}",)
    assert rows(built(*line))["blocks.0.mixer.weight"].adam == 1
    with pytest.raises(ValueError, match=r"no row for blocks\.0\.mixer\.weight: declare"):
        built(*line, MUP)


@pytest.mark.parametrize(("key", "value"), [("base_dim", 0), ("base_head_dim", -1)])
def test_a_base_of_no_width_is_refused(built, key, value):
    with pytest.raises(ValueError, match=f"model.parametrization.{key} must be at least 1, got {value}"):
        built(MUP, f"model.parametrization.{key}={value}")


def test_what_a_checkpoint_cannot_say_is_not_saved_as_one(compose, tmp_path):
    config = compose("position=learned", "model.bias=true", MUP)
    with pytest.raises(ValueError, match="parametrization"):
        save(tmp_path, build_model(config, 31), config["model"])


def test_every_shipped_part_says_what_its_parameters_are(compose):
    line = ["heads=differential", "position=relative", "kernel=eager", "epilogue=sinks", "score=qk_norm"]
    model = build_model(compose(*line), 31)
    assert None not in dict(kinds(model)).values()
    assert isinstance(model.blocks[0].mixer, Attention)
