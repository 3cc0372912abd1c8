"""torch's fused attention."""

from functools import reduce

import torch
import torch.nn.functional as F

from attnlab.attention.contracts import Attended, AttentionInputs, Unsupported
from attnlab.attention.kernels.visibility import batch_and_head, open_blind_rows, settled
from attnlab.attention.masks.causal import causal
from attnlab.attention.scores.bias import Bias


def sdpa(inputs: AttentionInputs) -> Attended:
    """`torch.nn.functional.scaled_dot_product_attention`: fused where the mask is causal, or an explicit
    mask.

    Its `is_causal` counts from the top left, so that one query over eight cached keys would see key 0 only;
    it is used where there is no past and nothing else. Grouped heads go through `enable_gqa`:
    keys are never repeated.
    """
    q, k, v, q_pos, kv_pos = inputs[:5]
    mask, scale, dropout = inputs.mask, inputs.scale, inputs.dropout
    if inputs.need:
        raise Unsupported(
            f"kernel sdpa gives no {' or '.join(inputs.need)}: use kernel=eager (or flex for lse)"
        )
    if inputs.normalizer is not None:
        raise Unsupported("kernel sdpa knows the softmax only: use kernel=eager")
    biases: list[Bias] = []
    for function in inputs.scores:
        if not isinstance(function, Bias):
            name = getattr(function, "__name__", type(function).__name__)
            raise Unsupported(
                f"kernel sdpa takes additive scores only, not {name}: use kernel=eager or kernel=flex"
            )
        biases.append(function)
    B, H, T, D = q.shape
    G, S, V = v.shape[1:]
    in_rows = T == 1 and H > G  # the heads of a group become queries of one product: their keys are read once
    if in_rows:
        q = q.reshape(B, G, H // G, D)
    grouped = settled(H != G and not in_rows)
    if mask is causal and inputs.aligned and not biases and T in (1, S):  # the newest query sees every key
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=settled(T > 1), dropout_p=dropout, scale=scale, enable_gqa=grouped
        )
        return Attended(out.reshape(B, H, T, V) if in_rows else out)
    b, h = batch_and_head(B, H, q.device)
    bias = None
    sighted = None
    if biases:
        bias = reduce(torch.add, (each.bias(b, h, q_pos, kv_pos) for each in biases)).to(q.dtype)
    if mask is not None:
        visible, sighted = open_blind_rows(mask, b, h, q_pos, kv_pos)
        bias = visible if bias is None else bias.masked_fill(~visible, -torch.inf)
    if bias is not None and in_rows and bias.shape[1] > 1:
        bias = bias.expand(B, H, 1, S).reshape(B, G, H // G, S)
    if bias is not None:
        bias = bias.expand(B, G if in_rows else H, q.shape[2], S)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale, enable_gqa=grouped
    ).reshape(B, H, T, V)
    return Attended(out if sighted is None else out.masked_fill(~sighted, 0.0))
