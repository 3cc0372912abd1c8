"""The flex kernel: `torch.nn.attention.flex_attention` driven by the same position-based functions as the
reference.

It works on slots, the functions on positions, so each is wrapped once per call with the two position
tables. Compiled on CUDA; on a CPU it runs its own slow reference, forward only.
"""

import warnings
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from attnlab.attention.contracts import Attended, AttentionInputs, Mask, Unsupported
from attnlab.attention.kernels.visibility import settled

KEPT = 4  # block masks a layer keeps: training, validation, the probe, and one more


@final
class Flex:
    """One per layer, so that its compiled code and its block masks are reused. `compile` None means: on
    CUDA only.

    Block masks of a design mask over plain positions are kept per (B, T, S, device).
    """

    def __init__(self, compile: bool | None = None) -> None:
        self.compile = compile
        self._compiled: Callable | None = None
        self._blocks: dict[tuple, BlockMask] = {}

    __name__ = "flex"

    def __call__(self, inputs: AttentionInputs) -> Attended:
        """See `contracts.Kernel`."""
        q, k, v, q_pos, kv_pos = inputs[:5]
        mask, scores, need = inputs.mask, inputs.scores, inputs.need
        if inputs.dropout:
            raise Unsupported(
                "kernel flex has no dropout on attention weights: use kernel=eager or kernel=sdpa"
            )
        if inputs.normalizer is not None:
            raise Unsupported("kernel flex knows the softmax only: use kernel=eager")
        if "weights" in need:
            raise Unsupported("kernel flex gives no weights: use kernel=eager")
        on_cpu = q.device.type == "cpu"
        if on_cpu and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            raise Unsupported(
                "kernel flex has no backward pass on a CPU: use kernel=sdpa or kernel=eager, or a GPU"
            )
        B, H, T, _ = q.shape
        S, V = v.shape[2:]
        if not q.numel():  # nobody asks, and torch's own stumbles
            lse = q.new_empty(B, H, T, dtype=torch.promote_types(q.dtype, torch.float32))
            return Attended(q.new_empty(B, H, T, V), lse if "lse" in need else None)
        k = k.view_as(k)
        v = v.view_as(v)  # tied heads give one tensor thrice: torch 2.13's guards stumble
        q_at = q_pos.expand(B, 1, T, 1)[:, 0, :, 0]
        kv_at = kv_pos.expand(B, 1, 1, S)[:, 0, 0]

        def score_mod(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            for function in scores:
                score = function(score, b, h, q_at[b, query], kv_at[b, key])
            return score

        block_mask = None
        if mask is not None:

            def mask_mod(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
                return mask(b, h, q_at[b, query], kv_at[b, key])

            block_mask = self._block_mask(mask, mask_mod, (B, T, S), q.device, inputs.aligned)
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
                enable_gqa=settled(k.shape[1] != H),
                return_aux=AuxRequest(lse=True),
            )
        return Attended(out, aux.lse if "lse" in need else None)

    def _block_mask(
        self, mask: Mask, mask_mod: Callable, shape: tuple[int, int, int], device: torch.device, aligned: bool
    ) -> BlockMask:
        B, T, S = shape
        key = (mask, *shape, device)
        reusable = aligned and T == S
        if not reusable or key not in self._blocks:
            block = create_block_mask(mask_mod, B, None, T, S, device=device)
            if not reusable:
                return block
            while len(self._blocks) >= KEPT:  # a data mask is new in every batch: let the oldest go
                del self._blocks[next(iter(self._blocks))]
            self._blocks[key] = block
        return self._blocks[key]
