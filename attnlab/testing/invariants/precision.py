"""Invariant of precision that modules of other projects need not have: autocast and outliers only round."""

import warnings
from contextlib import suppress

import torch

from attnlab.attention.contracts import Unsupported
from attnlab.attention.masks.data_masks import make_padding_mask
from attnlab.testing.checks.numerics import FLOAT32_RATIO, Rounding
from attnlab.testing.checks.subject import Adapter
from attnlab.testing.checks.visibility import LARGE_INPUT
from attnlab.testing.invariants.decoding import suppress_missing_operations
from attnlab.testing.invariants.subjects import LayerSubject
from attnlab.testing.invariants.variant import Variant

LENGTH = 320  # integers above 256 are inexact in bfloat16


@torch.no_grad()
def check_lower_precision(variant: Variant) -> None:
    """26. Over hundreds of tokens, large inputs in float32 and inputs under autocast to bfloat16 change
    outputs by rounding only, and those of queries that see no key are finite.
    """
    subject = LayerSubject(variant)
    exact = subject.build()
    rounded = exact.copy(torch.float32)
    x = subject.draw_input(exact, 1, LENGTH, dtype=torch.float32)
    _round_parameters(exact)
    unit = torch.finfo(torch.float32).eps
    rounding = Rounding(exact, LARGE_INPUT * x.double(), unit)
    rounding.compare(rounded.forward(LARGE_INPUT * x), FLOAT32_RATIO, f"inputs times {LARGE_INPUT:g}")
    with suppress_missing_operations():
        with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
            # of nn.RMSNorm with a gain; about speed only
            warnings.filterwarnings("ignore", "Mismatch dtype between input and weight", UserWarning)
            y = rounded.forward(x)
        rounding = Rounding(exact, x.double(), torch.finfo(torch.bfloat16).eps)
        rounding.compare(y, subject.rounding_ratio, "autocast to bfloat16")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        with suppress(Unsupported), suppress_missing_operations():
            layer = variant.make_layer().to(dtype)
            y = layer(x[:, : variant.length].to(dtype), mask=make_padding_mask(torch.tensor([0])))
            assert y.isfinite().all(), f"weights in {dtype}: not finite for queries that see no key"


def _round_parameters(exact: Adapter) -> None:
    for parameter in exact.module.parameters():
        parameter.copy_(parameter.float())
