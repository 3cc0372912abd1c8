"""The reference kernel: plain broadcasting, O(T S) memory. It defines what is correct."""

import functools
from contextlib import nullcontext

import torch
import torch.nn.functional as F

from attnlab.attention.contracts import Attended, AttentionInputs, Kernel, Unsupported
from attnlab.attention.kernels.visibility import batch_and_head, open_blind_rows

EXACT = (torch.float32, torch.float64)


def exactly(kernel: Kernel) -> Kernel:
    """`kernel` in float32 at least, under autocast too; only its output is rounded, to the dtype of v."""

    @functools.wraps(kernel)
    def exact_kernel(inputs: AttentionInputs) -> Attended:
        q, k, v = inputs[:3]
        device = "cpu" if q.is_cpu else q.device.type  # its name takes longer
        mixed = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        if not mixed and q.dtype == k.dtype == v.dtype in EXACT:
            return kernel(inputs)
        exact = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(device, enabled=False) if mixed else nullcontext():
            attended = kernel(inputs._replace(q=q.to(exact), k=k.to(exact), v=v.to(exact)))
        return attended._replace(out=attended.out.to(v.dtype))

    return exact_kernel


@exactly
def eager(inputs: AttentionInputs) -> Attended:
    """The reference: softmax(score(scale * q k^T)) v in plain broadcasting, O(T S) memory. Defines what is
    correct.
    """
    q, k, v, q_pos, kv_pos = inputs[:5]
    mask, normalizer, need = inputs.mask, inputs.normalizer, inputs.need
    if normalizer is not None and "lse" in need:
        raise Unsupported("weights that are no softmax have no lse: use normaliser=softmax, or epilogue=none")
    normalize = normalizer or (lambda score: score.softmax(-1))
    B, H, T, D = q.shape
    G, S, V = v.shape[1:]
    b, h = batch_and_head(B, H, q.device)
    grouped = (q * inputs.scale).view(B, G, H // G, T, D)
    score = (grouped @ k.unsqueeze(2).transpose(-1, -2)).view(B, H, T, S)
    for function in inputs.scores:
        score = function(score, b, h, q_pos, kv_pos)
    if mask is None:
        weights = normalize(score)
    else:
        visible, sighted = open_blind_rows(mask, b, h, q_pos, kv_pos)
        score = score.masked_fill(~visible, -torch.inf)
        weights = normalize(score).masked_fill(~sighted, 0.0)
    lse = None
    if "lse" in need:
        lse = score.logsumexp(-1)
        lse = lse if mask is None else lse.masked_fill(~sighted.squeeze(-1), -torch.inf)
    dropped = F.dropout(weights, inputs.dropout) if inputs.dropout else weights
    out = dropped.to(v.dtype).view(B, G, H // G, T, S) @ v.unsqueeze(2)
    return Attended(out.view(B, H, T, V), lse, weights if "weights" in need else None)
