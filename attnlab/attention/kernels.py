"""Kernels: the same attention, computed in different ways. One signature, no fall-back.

    kernel(q, k, v, *, i, j, mask, scores, scale, dropout, need, aligned) -> Attended(out, lse, weights)

q [B, H, T, D], k [B, G, S, D], v [B, G, S, V]; i [B or 1, 1, T, 1] and j [B or 1, 1, 1, S] are positions;
`need` names what is wanted beside the output ("lse", "weights"); `aligned` says that the queries are
the newest tokens and the keys all those held, in order. A kernel that cannot do what is asked raises
`Unsupported`: falling back would change what is measured. A query with no visible key gets zeros.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention.mask import Mask, causal
from attnlab.attention.score import Bias, Score


class Unsupported(ValueError):
    """What was asked for cannot be done by this part; the message says why and what can."""


class Attended(NamedTuple):
    """out [B, H, T, V]; lse [B, H, T] log of the softmax denominator; weights [B, H, T, S]. The last two if
    needed.
    """

    out: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None


Kernel = Callable[..., Attended]


def _axes(rows: int, heads: int, device: torch.device) -> tuple[Tensor, Tensor]:
    b = torch.arange(rows, device=device)[:, None, None, None]
    h = torch.arange(heads, device=device)[None, :, None, None]
    return b, h


def _visible(mask: Mask, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    """(visible, alive): rows that see nothing are opened and reported: a softmax over nothing is NaN."""
    visible = mask(b, h, i, j)
    alive = visible.any(-1, keepdim=True)
    return visible | ~alive, alive


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    i: Tensor,
    j: Tensor,
    mask: Mask | None,
    scores: Sequence[Score],
    scale: float,
    dropout: float = 0.0,
    need: Sequence[str] = (),
    aligned: bool = False,
) -> Attended:
    """The reference: softmax(score(scale * q k^T)) v in plain broadcasting, O(T S) memory. Defines what is
    correct.
    """
    B, H, T, D = q.shape
    G, S = k.shape[1:3]
    b, h = _axes(B, H, q.device)
    grouped = (q * scale).view(B, G, H // G, T, D)
    score = (grouped @ k.unsqueeze(2).transpose(-1, -2)).view(B, H, T, S)
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    for function in scores:
        score = function(score, b, h, i, j)
    if mask is None:
        weights = score.softmax(-1)
    else:
        visible, alive = _visible(mask, b, h, i, j)
        score = score.masked_fill(~visible, -torch.inf)
        weights = score.softmax(-1).masked_fill(~alive, 0.0)
    lse = None
    if "lse" in need:
        lse = score.logsumexp(-1)
        lse = lse if mask is None else lse.masked_fill(~alive.squeeze(-1), -torch.inf)
    dropped = F.dropout(weights, dropout) if dropout else weights
    out = dropped.to(v.dtype).view(B, G, H // G, T, S) @ v.unsqueeze(2)
    return Attended(out.view(B, H, T, -1), lse, weights if "weights" in need else None)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    i: Tensor,
    j: Tensor,
    mask: Mask | None,
    scores: Sequence[Score],
    scale: float,
    dropout: float = 0.0,
    need: Sequence[str] = (),
    aligned: bool = False,
) -> Attended:
    """`torch.nn.functional.scaled_dot_product_attention`: fused where the mask is causal, or an explicit
    mask.

    Its `is_causal` counts from the top left, so that one query over eight cached keys would see key 0 only;
    it is used where there is no past and nothing else. Grouped heads go through `enable_gqa`:
    keys are never repeated.
    """
    if need:
        raise Unsupported(f"kernel sdpa gives no {' or '.join(need)}: use kernel=eager (or flex for lse)")
    for function in scores:
        if not isinstance(function, Bias):
            raise Unsupported(
                f"kernel sdpa takes additive scores only, not {function.__name__}: "
                "use kernel=eager or kernel=flex"
            )
    B, H, T, _ = q.shape
    G, S = k.shape[1:3]
    in_rows = T == 1 and H > G  # the heads of a group become queries of one product: their keys are read once
    if in_rows:
        q = q.reshape(B, G, H // G, -1)
    call = {"scale": scale, "dropout_p": dropout, "enable_gqa": H != G and not in_rows}
    if mask is causal and aligned and not scores and T in (1, S):  # the newest query sees every key
        out = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1, **call)
        return Attended(out.reshape(B, H, T, -1) if in_rows else out)
    b, h = _axes(B, H, q.device)
    bias, alive = None, None
    if scores:
        bias = sum(function.bias(b, h, i, j) for function in scores).to(q.dtype)
    if mask is not None:
        visible, alive = _visible(mask, b, h, i, j)
        bias = visible if bias is None else bias.masked_fill(~visible, -torch.inf)
    if bias is not None and in_rows and bias.shape[1] > 1:
        bias = bias.expand(B, H, 1, S).reshape(B, G, H // G, S)
    if bias is not None:
        bias = bias.expand(B, G if in_rows else H, q.shape[2], S)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, **call).reshape(B, H, T, -1)
    return Attended(out if alive is None else out.masked_fill(~alive, 0.0))
