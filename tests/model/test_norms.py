"""Every norm has an explicit epsilon, equal in all dtypes."""

import copy

import pytest
import torch
from torch import nn

from attnlab.attention.epilogue import ExclusiveEpilogue
from attnlab.attention.heads.differential import DifferentialHeads
from attnlab.attention.mixers.delta import GatedDeltaNet
from attnlab.attention.mixers.feature_delta import KimiDeltaAttention
from attnlab.attention.mixers.gated_linear import GatedLinearAttention
from attnlab.attention.mixers.scalar_decay import ScalarDecay
from attnlab.config import CONF
from attnlab.model.build import build_model
from attnlab.model.residual import DepthAttention
from attnlab.training.preflight import check

torch.set_num_threads(1)
GROUPS = ("model", "heads", "score", "residual", "layers", "block", "epilogue", "values")
CHOICES = [(f"{group}={path.stem}",) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
PAIRS = [("heads=differential", "score=qk_norm"), ("layers=cross_layer", "score=qk_norm")]
NORMS = (nn.RMSNorm, nn.LayerNorm, nn.GroupNorm)
TINY = 1e-4  # inputs whose mean square is far below the epsilon


def compute_relative_error(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


@pytest.mark.rare
def test_norms_of_every_model_have_an_epsilon_independent_of_the_dtype(compose):
    norm_types = set()
    for choice in [*CHOICES, *PAIRS]:
        model = build_model(compose("model.n_layers=8", *choice), 31)
        norms = {name: module for name, module in model.named_modules() if isinstance(module, NORMS)}
        assert norms, choice
        for name, norm in norms.items():
            assert isinstance(norm.eps, float), (choice, name)
            norm_types.add(type(norm))
            x = TINY * torch.randn(3, *norm.normalized_shape, dtype=torch.float64)
            expected = copy.deepcopy(norm).double()(x)
            assert compute_relative_error(norm(x.float()), expected) < 1e-6, (choice, name)
    assert norm_types == {nn.RMSNorm, nn.LayerNorm}


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
@pytest.mark.parametrize(
    "make",
    [
        lambda eps: GatedDeltaNet(24, 3, norm_eps=eps),
        lambda eps: KimiDeltaAttention(24, 3, norm_eps=eps),
        lambda eps: GatedLinearAttention(24, 3, 5, 2, norm_eps=eps),
        lambda eps: ScalarDecay(24, 3, 5, norm_eps=eps),
        lambda eps: DifferentialHeads(24, 6, 2, None, False, False, qk_norm=True, norm_eps=eps),
        lambda eps: DepthAttention(24, norm_eps=eps),
    ],
    ids=["delta", "kda", "gated linear", "decay", "differential", "depth"],
)
def test_norms_of_a_part_use_its_norm_eps(make, eps):
    assert {module.eps for module in make(eps).modules() if isinstance(module, NORMS)} == {eps}


@pytest.mark.parametrize(
    "make", [lambda: GatedDeltaNet(24, 3), lambda: ScalarDecay(24, 3, 5)], ids=["delta", "decay"]
)
def test_tiny_inputs_give_equal_outputs_in_float32_and_float64(make):
    torch.manual_seed(0)
    mixer = make().double()
    x = TINY * torch.randn(2, 7, 24, dtype=torch.float64)
    with torch.no_grad():
        expected = mixer(x)
        actual = copy.deepcopy(mixer).float()(x.float())
    assert compute_relative_error(actual, expected) < 1e-5


def compute_exclusive_norm_error(dtype, distance):
    """Error of a norm of exclusive attention whose outputs differ from the values by `distance`."""
    torch.manual_seed(0)
    values = torch.randn(1, 4, 64, 16).to(dtype)
    out = (values.double() + distance * torch.randn(1, 4, 64, 16)).to(dtype)
    norm = nn.RMSNorm(16, eps=1e-6, elementwise_affine=False)
    actual, expected = (
        norm(ExclusiveEpilogue()(o, None, None, v))
        for o, v in ((out, values), (out.double(), values.double()))
    )
    return (actual.double() - expected).abs().max().item()


def test_a_norm_after_exclusive_attention_is_well_conditioned_in_float32_only():
    distances = [10.0**-n for n in range(9)]
    assert max(compute_exclusive_norm_error(torch.float32, distance) for distance in distances) < 2e-3
    assert max(compute_exclusive_norm_error(torch.bfloat16, distance) for distance in distances) > 0.5


@pytest.mark.parametrize("block", ["post", "sandwich"])
def test_a_norm_after_exclusive_attention_is_rejected_in_bfloat16(compose, block):
    line = ("size=debug", "epilogue=exclusive")
    with pytest.raises(ValueError, match=r"a norm after attention .* magnifies the rounding"):
        check(compose(*line, f"block={block}", "trainer.precision=bf16-mixed"))
    check(compose(*line, f"block={block}"))
    check(compose(*line, "trainer.precision=bf16-mixed"))
