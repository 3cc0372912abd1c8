"""Invariants of precision: a lower precision of weights or operations changes results by its rounding only.

The allowed error is a multiple of the change in float64 that is caused by moving each weight and input by one
rounding error. An ill-conditioned variant thus has a wide tolerance, and no second implementation is needed.
"""

import copy
import warnings
from contextlib import suppress

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Capabilities, Unsupported
from attnlab.attention.masks.data_masks import make_padding_mask
from attnlab.testing.invariants.decoding import feed_in_chunks, suppress_missing_operations
from attnlab.testing.invariants.masks_and_scores import choose_long_length, draw_long_input
from attnlab.testing.invariants.variant import LARGE_INPUT, Variant, make_named_generator

# The largest error relative to that of rounded weights and inputs. Angles of RoPE and other constants may be
# rounded to float32 in any precision, and grow with the position.
MAX_ERROR_RATIOS = {torch.float32: 1000.0, torch.bfloat16: 3.0, torch.float16: 3.0}
MIN_LENGTH = 320  # integers above 256 are inexact in bfloat16
DECODED_TOKENS = 40


@torch.no_grad()
def check_lower_precision(variant: Variant) -> None:
    """26. With weights in float32, bfloat16 or float16, and under autocast, outputs have the dtype of the
    input and differ from those in float64 by rounding only: over hundreds of tokens, decoded, with large
    inputs, and for queries that see no key.
    """
    x = draw_long_input(variant, 1, max(MIN_LENGTH, choose_long_length(variant.attention)[1]))
    for dtype in MAX_ERROR_RATIOS:
        with suppress_missing_operations():
            _compare_with_float64(variant, variant.make_layer().to(dtype), x.to(dtype))
    layer = variant.make_layer().float()
    large_x = LARGE_INPUT * x.float()
    _require_rounding_only(layer(large_x), layer, large_x, torch.float32, f"inputs times {LARGE_INPUT:g}")
    with suppress_missing_operations():
        with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
            # of nn.RMSNorm with a gain; about speed only
            warnings.filterwarnings("ignore", "Mismatch dtype between input and weight", UserWarning)
            y = layer(x.float())
        _require_rounding_only(y, layer, x.float(), torch.bfloat16, "autocast to bfloat16")


def _compare_with_float64(variant: Variant, layer: nn.Module, x: Tensor) -> None:
    label = f"weights in {str(x.dtype).removeprefix('torch.')}"
    y = layer(x)
    assert y.dtype == x.dtype, f"{label}: outputs in {y.dtype}"
    _require_rounding_only(y, layer, x, x.dtype, label)
    with suppress(Unsupported):
        y = layer(x[:, : variant.length], mask=make_padding_mask(torch.tensor([0])))
        assert y.isfinite().all(), f"{label}: not finite for queries that see no key"
    if variant.cache is None:
        return
    cache = variant.make_cache()
    T = min(x.shape[1], Capabilities.from_part(cache).capacity or x.shape[1])
    steps = min(DECODED_TOKENS, T - 1)
    with suppress(Unsupported):
        y = feed_in_chunks(lambda chunk: layer(x[:, chunk], cache=cache), (T - steps, *[1] * steps))
        y = y[:, T - steps :]
        _require_rounding_only(y, layer, x[:, :T], x.dtype, f"{label}, the last {steps} tokens decoded")


def _require_rounding_only(
    actual: Tensor, layer: nn.Module, x: Tensor, rounding: torch.dtype, label: str
) -> None:
    """Compare outputs with those in float64 of the same weights and inputs, by thirds of the sequence.

    Each third is compared with the effect of rounding on its own tokens, since tokens with large scores
    amplify any error. The median ignores single ill-conditioned tokens, as the first of a difference.
    """
    assert actual.isfinite().all(), f"{label}: not finite"
    exact_layer = copy.deepcopy(layer).double()
    expected = exact_layer(x.double())
    unit = torch.finfo(rounding).eps
    for name, parameter in exact_layer.named_parameters():
        parameter.copy_(_perturb(parameter, unit, name))
    first = x.shape[1] - actual.shape[1]
    errors = _compute_token_rms(actual.double() - expected[:, first:])
    perturbed = exact_layer(_perturb(x.double(), unit, "x"))
    rounding_errors = _compute_token_rms((perturbed - expected)[:, first:])
    for part in torch.arange(len(errors)).tensor_split(3):
        error, rounding_error = errors[part].median(), rounding_errors[part].median()
        begin = first + int(part[0])
        assert error <= MAX_ERROR_RATIOS[rounding] * rounding_error, (
            f"{label}: off by {error:.2g} from token {begin} on, {error / rounding_error:.1f} times the "
            "change that rounding of weights and inputs causes: compute in float32 at least"
        )


def _perturb(tensor: Tensor, unit: float, name: str) -> Tensor:
    noise = torch.rand(tensor.shape, dtype=tensor.dtype, generator=make_named_generator(5, name))
    return tensor * (1 + unit * (noise - 0.5))


def _compute_token_rms(y_BTM: Tensor) -> Tensor:
    return y_BTM[0].square().mean(-1).sqrt()
