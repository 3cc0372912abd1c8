"""The reference kernel: plain broadcasting, O(T S) memory. It defines the correct result."""

import functools

import torch
import torch.nn.functional as F

from attnlab.attention.contracts import AttentionInputs, AttentionOutput, Kernel, Unsupported
from attnlab.attention.kernels.autocast import disable_autocast, is_autocast_enabled
from attnlab.attention.kernels.masking import make_batch_head_indices, unmask_empty_rows

FULL_PRECISION_DTYPES = (torch.float32, torch.float64)


def upcast_inputs(kernel: Kernel) -> Kernel:
    """Run `kernel` in float32 at least, under autocast too; only its output is rounded, to the dtype of v."""

    @functools.wraps(kernel)
    def upcast_kernel(inputs: AttentionInputs) -> AttentionOutput:
        q, k, v = inputs[:3]
        if not is_autocast_enabled(q) and q.dtype == k.dtype == v.dtype in FULL_PRECISION_DTYPES:
            return kernel(inputs)
        compute_dtype = torch.promote_types(q.dtype, torch.float32)
        with disable_autocast(q):
            output = kernel(
                inputs._replace(q=q.to(compute_dtype), k=k.to(compute_dtype), v=v.to(compute_dtype))
            )
        return output._replace(out=output.out.to(v.dtype))

    return upcast_kernel


@upcast_inputs
def eager(inputs: AttentionInputs) -> AttentionOutput:
    """Compute softmax(score(scale * q k^T)) v by plain broadcasting, in O(T S) memory.

    This kernel defines the correct result.

    Raises:
        Unsupported: lse is needed and the normalizer is not the softmax.
    """
    q, k, v, q_idx, kv_idx = inputs[:5]
    mask, normalizer, need = inputs.mask, inputs.normalizer, inputs.need
    if normalizer is not None and "lse" in need:
        raise Unsupported("lse is defined only for softmax weights: use normalizer=softmax or epilogue=none")
    normalize = normalizer or (lambda score: score.softmax(-1))
    B, H, T, D = q.shape
    G, S, V = v.shape[1:]
    b, h = make_batch_head_indices(B, H, q.device)
    visible = sees_any_key = None
    if mask is not None:
        visible, sees_any_key = unmask_empty_rows(mask, b, h, q_idx, kv_idx)
    grouped_q = (q * inputs.scale).view(B, G, H // G, T, D)
    score = (grouped_q @ k.unsqueeze(2).transpose(-1, -2)).view(B, H, T, S)
    if inputs.score_map is not None:
        score = inputs.score_map(
            score, inputs, torch.ones_like(kv_idx, dtype=torch.bool) if visible is None else visible
        )
    for score_function in inputs.scores:
        score = score_function(score, b, h, q_idx, kv_idx)
    if visible is None or sees_any_key is None:
        weights = normalize(score)
    else:
        score = score.masked_fill(~visible, -torch.inf)
        weights = normalize(score).masked_fill(~sees_any_key, 0.0)
    lse = None
    if "lse" in need:
        lse = score.logsumexp(-1)
        lse = lse if sees_any_key is None else lse.masked_fill(~sees_any_key.squeeze(-1), -torch.inf)
    dropped_weights = F.dropout(weights, inputs.dropout) if inputs.dropout else weights
    out = dropped_weights.to(v.dtype).view(B, G, H // G, T, S) @ v.unsqueeze(2)
    return AttentionOutput(out.view(B, H, T, V), lse, weights if "weights" in need else None)
