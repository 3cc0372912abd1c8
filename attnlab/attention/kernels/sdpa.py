"""PyTorch's fused attention kernel."""

from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention.contracts import AttentionInputs, AttentionOutput, Unsupported
from attnlab.attention.kernels.masking import make_batch_head_indices, to_python_bool, unmask_empty_rows
from attnlab.attention.masks.causal import causal
from attnlab.attention.scores.bias import Bias


def sdpa(inputs: AttentionInputs) -> AttentionOutput:
    """`torch.nn.functional.scaled_dot_product_attention`, with its causal flag or an explicit mask.

    Its `is_causal` counts from the top left, so one query over eight cached keys would see key 0 only. The
    flag is therefore used only without a past and without any other mask or bias. Grouped heads go through
    `enable_gqa`: keys are never repeated. On a GPU the queries of one token over grouped heads take two
    batched products instead, since torch's kernel uses one block of the GPU per row and KV head: on an H200
    with a batch of one, 8,192 keys and 8 KV heads for 32 heads it takes six times as long as the products.

    Raises:
        Unsupported: lse or weights are needed, a normalizer or score map is given, or a score is no `Bias`.
    """
    q, k, v, q_idx, kv_idx = inputs[:5]
    mask, scale, dropout = inputs.mask, inputs.scale, inputs.dropout
    if inputs.need:
        raise Unsupported(
            f"kernel=sdpa does not return {' or '.join(inputs.need)}: use kernel=eager (or kernel=flex "
            "for lse)"
        )
    if inputs.normalizer is not None:
        raise Unsupported("kernel=sdpa supports only softmax: use kernel=eager")
    if inputs.score_map is not None:
        raise Unsupported("kernel=sdpa supports only additive scores, no score map: use kernel=eager")
    biases: list[Bias] = []
    for score_function in inputs.scores:
        if not isinstance(score_function, Bias):
            name = getattr(score_function, "__name__", type(score_function).__name__)
            raise Unsupported(
                f"kernel=sdpa supports only additive scores, not {name}: use kernel=eager or kernel=flex"
            )
        biases.append(score_function)
    B, H, T, D = q.shape
    G, S, V = v.shape[1:]
    heads_as_queries = T == 1 and H > G  # one product per group, so that its keys are read once
    if heads_as_queries:
        q = q.reshape(B, G, H // G, D)
    by_products = heads_as_queries and q.is_cuda and not dropout
    enable_gqa = to_python_bool(H != G and not heads_as_queries)
    if mask is causal and inputs.aligned and not biases and T in (1, S):  # the newest query sees every key
        if by_products:
            return AttentionOutput(_attend_by_products(q, k, v, scale).reshape(B, H, T, V))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=to_python_bool(T > 1), dropout_p=dropout, scale=scale, enable_gqa=enable_gqa
        )
        return AttentionOutput(out.reshape(B, H, T, V) if heads_as_queries else out)
    b, h = make_batch_head_indices(B, H, q.device)
    bias = None
    sees_any_key = None
    if biases:
        bias = reduce(torch.add, (each.compute_bias(b, h, q_idx, kv_idx) for each in biases)).to(q.dtype)
    if mask is not None:
        visible, sees_any_key = unmask_empty_rows(mask, b, h, q_idx, kv_idx)
        bias = visible if bias is None else bias.masked_fill(~visible, -torch.inf)
    if bias is not None and heads_as_queries and bias.shape[1] > 1:
        bias = bias.expand(B, H, 1, S).reshape(B, G, H // G, S)
    if bias is not None:  # one mask for all rows and heads stays one: torch would convert every expanded copy
        bias = bias.expand(-1, -1, q.shape[2], S)
    if by_products:
        out = _attend_by_products(q, k, v, scale, bias)
    else:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale, enable_gqa=enable_gqa
        )
    out = out.reshape(B, H, T, V)
    return AttentionOutput(out if sees_any_key is None else out.masked_fill(~sees_any_key, 0.0))


def _attend_by_products(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """Compute attention of q [B, G, N, D] over k [B, G, S, D] by batched products, with a float32 softmax.

    `bias` [B, G, N, S] is added to the scores, or shows the visible keys if it is boolean.
    """
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if bias is not None:
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    return scores.softmax(-1).to(v.dtype) @ v
