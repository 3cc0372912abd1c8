"""The flex kernel: `torch.nn.attention.flex_attention` over the reference's position-based functions.

flex_attention works on slots, the functions on positions, so each function is wrapped once per call with the
two position tables. Compiled on CUDA; on a CPU it runs torch's own slow reference, forward only.
"""

import warnings
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from attnlab.attention.contracts import AttentionInputs, AttentionOutput, Mask, Unsupported
from attnlab.attention.kernels.masking import to_python_bool

MAX_CACHED_BLOCK_MASKS = 4  # per layer: training, validation, the probe, and one more


@final
class Flex:
    """Flex kernel; one instance per layer, so that its compiled code and its block masks are reused.

    `compile` None compiles on CUDA only. Block masks of a design mask over plain positions are cached per (B,
    T, S, device).
    """

    def __init__(self, compile: bool | None = None) -> None:
        self.compile = compile
        self._compiled: Callable | None = None
        self._block_masks: dict[tuple, BlockMask] = {}

    __name__ = "flex"

    def __call__(self, inputs: AttentionInputs) -> AttentionOutput:
        """Compute attention as in `contracts.Kernel`.

        Raises:
            Unsupported: dropout, a normalizer, a score map, weights, or gradients on a CPU.
        """
        q, k, v, q_idx, kv_idx = inputs[:5]
        mask, scores, need = inputs.mask, inputs.scores, inputs.need
        if inputs.dropout:
            raise Unsupported(
                "kernel=flex does not support dropout on attention weights: use kernel=eager or kernel=sdpa"
            )
        if inputs.normalizer is not None:
            raise Unsupported("kernel=flex supports only softmax: use kernel=eager")
        if inputs.score_map is not None:
            raise Unsupported("kernel=flex supports only pointwise scores, no score map: use kernel=eager")
        if "weights" in need:
            raise Unsupported("kernel=flex does not return weights: use kernel=eager")
        on_cpu = q.device.type == "cpu"
        if on_cpu and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            raise Unsupported(
                "kernel=flex has no backward pass on a CPU: use kernel=sdpa or kernel=eager, or a GPU"
            )
        B, H, T, _ = q.shape
        S, V = v.shape[2:]
        if not q.numel():  # flex_attention fails on empty queries
            lse = q.new_empty(B, H, T, dtype=torch.promote_types(q.dtype, torch.float32))
            return AttentionOutput(q.new_empty(B, H, T, V), lse if "lse" in need else None)
        k = k.view_as(k)
        v = v.view_as(v)  # tied heads pass one tensor three times, which torch 2.13's guards reject
        query_positions = q_idx.expand(B, 1, T, 1)[:, 0, :, 0]
        key_positions = kv_idx.expand(B, 1, 1, S)[:, 0, 0]

        def score_mod(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            for score_function in scores:
                score = score_function(score, b, h, query_positions[b, query], key_positions[b, key])
            return score

        block_mask = None
        if mask is not None:

            def mask_mod(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
                return mask(b, h, query_positions[b, query], key_positions[b, key])

            block_mask = self._get_block_mask(mask, mask_mod, (B, T, S), q.device, inputs.aligned)
        attend = flex_attention
        if self.compile if self.compile is not None else not on_cpu:
            self._compiled = self._compiled or torch.compile(flex_attention, dynamic=False)
            attend = self._compiled
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            out, aux = attend(
                q,
                k,
                v,
                score_mod=score_mod if scores else None,
                block_mask=block_mask,
                scale=inputs.scale,
                enable_gqa=to_python_bool(k.shape[1] != H),
                return_aux=AuxRequest(lse=True),
            )
        return AttentionOutput(out, aux.lse if "lse" in need else None)

    def _get_block_mask(
        self, mask: Mask, mask_mod: Callable, shape: tuple[int, int, int], device: torch.device, aligned: bool
    ) -> BlockMask:
        B, T, S = shape
        key = (mask, *shape, device)
        reusable = aligned and T == S
        if not reusable or key not in self._block_masks:
            block = create_block_mask(mask_mod, B, None, T, S, device=device)
            if not reusable:
                return block
            # every batch has a new data mask: evict the oldest
            while len(self._block_masks) >= MAX_CACHED_BLOCK_MASKS:
                del self._block_masks[next(iter(self._block_masks))]
            self._block_masks[key] = block
        return self._block_masks[key]
