"""The reference kernel: plain broadcasting, O(T S) memory. It defines what is correct."""

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention.contracts import Attended, Mask, Normaliser, Score, Unsupported
from attnlab.attention.kernels.visibility import batch_and_head, open_blind_rows

EXACT = (torch.float32, torch.float64)


def exactly(kernel: Callable[..., Attended]) -> Callable[..., Attended]:
    """`kernel` in float32 at least, under autocast too; only its output is rounded, to the dtype of v."""

    @functools.wraps(kernel)
    def exact_kernel(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Attended:
        device = "cpu" if q.is_cpu else q.device.type  # its name takes longer
        mixed = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        if not mixed and q.dtype == k.dtype == v.dtype in EXACT:
            return kernel(q, k, v, **options)
        exact = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(device, enabled=False) if mixed else nullcontext():
            attended = kernel(q.to(exact), k.to(exact), v.to(exact), **options)
        return attended._replace(out=attended.out.to(v.dtype))

    return exact_kernel


@exactly
def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_pos: Tensor,
    kv_pos: Tensor,
    mask: Mask | None,
    scores: Sequence[Score],
    scale: float,
    normaliser: Normaliser | None = None,
    dropout: float = 0.0,
    need: Sequence[str] = (),
    aligned: bool = False,
) -> Attended:
    """The reference: softmax(score(scale * q k^T)) v in plain broadcasting, O(T S) memory. Defines what is
    correct.
    """
    if normaliser is not None and "lse" in need:
        raise Unsupported("weights that are no softmax have no lse: use normaliser=softmax, or epilogue=none")
    normalise = normaliser or (lambda score: score.softmax(-1))
    B, H, T, D = q.shape
    G, S, V = v.shape[1:]
    b, h = batch_and_head(B, H, q.device)
    grouped = (q * scale).view(B, G, H // G, T, D)
    score = (grouped @ k.unsqueeze(2).transpose(-1, -2)).view(B, H, T, S)
    for function in scores:
        score = function(score, b, h, q_pos, kv_pos)
    if mask is None:
        weights = normalise(score)
    else:
        visible, sighted = open_blind_rows(mask, b, h, q_pos, kv_pos)
        score = score.masked_fill(~visible, -torch.inf)
        weights = normalise(score).masked_fill(~sighted, 0.0)
    lse = None
    if "lse" in need:
        lse = score.logsumexp(-1)
        lse = lse if mask is None else lse.masked_fill(~sighted.squeeze(-1), -torch.inf)
    dropped = F.dropout(weights, dropout) if dropout else weights
    out = dropped.to(v.dtype).view(B, G, H // G, T, S) @ v.unsqueeze(2)
    return Attended(out.view(B, H, T, V), lse, weights if "weights" in need else None)
