"""Rotary positions on a fraction of the features: in plain loops, and as in `transformers`, in float64."""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma4.modeling_gemma4 import apply_rotary_pos_emb

from attnlab.attention.rotary import Rope
from attnlab.attention.rotary_scaling import Interpolation

H, T = 3, 7
BASE = 700.0
FRACTIONS = [0.25, 0.5, 0.75, 1.0]


def make_features(width):
    return torch.randn(2, H, T, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def rotate_with_loops(vector, position, fraction):
    """Rotate features f and f + D/2 by position * base^(-2f/D) where f is in the first pairs."""
    width, out = len(vector), vector.copy()
    for f in range(int(fraction * width // 2)):
        angle = position * BASE ** (-2 * f / width)
        a, b = vector[f], vector[f + width // 2]
        out[f] = a * math.cos(angle) - b * math.sin(angle)
        out[f + width // 2] = b * math.cos(angle) + a * math.sin(angle)
    return out


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("width", [8, 12, 22])
def test_frequencies_over_the_head_rotate_its_fastest_pairs(width, fraction):
    x, positions = make_features(width), torch.arange(T)[None] + 3
    expected = np.array(
        [[[rotate_with_loops(x[b, h, t].numpy(), t + 3, fraction) for t in range(T)] for h in range(H)]
         for b in range(2)]
    )  # fmt: skip
    rotated = Rope(BASE, fraction, frequencies="head")(positions)(x).numpy()
    np.testing.assert_allclose(rotated, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("width", [8, 12, 22, 512])
def test_frequencies_over_the_head_equal_proportional_rope_of_transformers(
    width, fraction, factor, monkeypatch
):
    rope = {
        "rope_type": "proportional", "rope_theta": BASE, "partial_rotary_factor": fraction, "factor": factor
    }  # fmt: skip
    config = LlamaConfig(hidden_size=width * H, num_attention_heads=H, head_dim=width, rope_parameters=rope)
    monkeypatch.setattr(torch, "float", torch.float64)  # the function computes in `torch.float`
    monkeypatch.setattr(torch, "float32", torch.float64)
    frequencies, magnitude = ROPE_INIT_FUNCTIONS["proportional"](config)
    assert magnitude == 1.0
    assert frequencies.dtype == torch.double
    positions, x = torch.arange(T)[None], make_features(width)
    angles = torch.cat((frequencies, frequencies)) * positions[..., None]
    expected = apply_rotary_pos_emb(x, angles.cos(), angles.sin())
    rotated = Rope(BASE, fraction, Interpolation(factor), frequencies="head")(positions)(x)
    torch.testing.assert_close(rotated, expected, rtol=0, atol=1e-13)


def test_frequencies_differ_unless_all_features_rotate():
    x, positions = make_features(8), torch.arange(T)[None]
    partial, full = (
        [Rope(BASE, fraction, frequencies=frequencies)(positions)(x) for frequencies in ("rotated", "head")]
        for fraction in (0.5, 1.0)
    )
    assert torch.equal(*full)
    assert not torch.allclose(*partial)
    assert torch.equal(partial[0][..., 4:], x[..., 4:])  # the second half of the features
    assert torch.equal(partial[1][..., [2, 3, 6, 7]], x[..., [2, 3, 6, 7]])  # the second half of each half


@pytest.mark.parametrize(("width", "fraction"), [(8, 0.2), (8, 0.0), (8, 1.5), (8, -0.5), (7, 0.5)])
def test_frequencies_over_the_head_need_whole_pairs(width, fraction):
    with pytest.raises(ValueError, match=r"RoPE needs .* of head_dim=\d.*change head_dim"):
        Rope(BASE, fraction, frequencies="head")(torch.arange(T)[None])(make_features(width))
