"""Cache of low-bit integers, with a scale and a zero point per group."""

from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from attnlab.attention.cache import CarriedStateMixin, concatenate_states, count_bytes
from attnlab.attention.contracts import State

Axis = Literal["token", "channel"]


class PackedTensor(NamedTuple):
    """Integers of `bits` bits, packed into bytes along the last dim, with 16-bit scales and zero points."""

    codes: Tensor
    scale: Tensor
    zero: Tensor
    width: int
    dtype: torch.dtype


def pack_tensor(x: Tensor, bits: int, dim: int) -> PackedTensor:
    """Quantize x [..., S, width] by rounding to nearest between the minimum and maximum along `dim`.

    Numbers along `dim` share a scale.
    """
    low = x.amin(dim, keepdim=True).half().to(x.dtype)
    high = x.amax(dim, keepdim=True)
    scale = ((high - low) / (2**bits - 1)).clamp(min=torch.finfo(torch.half).tiny).half()
    codes = ((x - low) / scale.to(x.dtype)).round().clamp(0, 2**bits - 1).to(torch.uint8)
    per_byte = 8 // bits
    width = codes.shape[-1]
    codes = torch.nn.functional.pad(codes, (0, -width % per_byte)).unflatten(-1, (-1, per_byte))
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=x.device)
    return PackedTensor((codes << shifts).sum(-1, dtype=torch.uint8), scale, low.half(), width, x.dtype)


def unpack_tensor(packed: PackedTensor, bits: int) -> Tensor:
    """Reconstruct x from its codes, up to the rounding error."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.codes.device)
    codes = (packed.codes[..., None] >> shifts) & (2**bits - 1)
    codes = codes.flatten(-2)[..., : packed.width]
    return codes.to(packed.dtype) * packed.scale.to(packed.dtype) + packed.zero.to(packed.dtype)


@final
class QuantizedCache(CarriedStateMixin):
    """Cache of 8, 4 or 2 bits per number, asymmetric, rounded to nearest (KIVI).

    Keys, the first member of a state, share a scale per token, or per channel over `group` tokens; all other
    members share one per token. The newest `recent` tokens, and those of an incomplete group, stay
    unquantized. `bits` = 16 quantizes nothing, which is the plain cache. Scales and zero points take 16 bits
    each.

    Source: Liu et al. 2024, arXiv 2402.02750, §3.2-3.3.
    """

    capacity: int | None = None
    max_cached_tokens: int | None = None

    def __init__(self, bits: int = 4, keys: Axis = "channel", group: int = 16, recent: int = 0) -> None:
        super().__init__()
        if bits not in (2, 4, 8, 16):
            raise ValueError(f"a quantized cache supports 2, 4, 8 or 16 bits, got {bits}")
        if keys not in ("token", "channel"):
            raise ValueError(f"a quantized cache needs keys=token or keys=channel, got {keys}")
        if group < 1 or recent < 0:
            raise ValueError(f"a quantized cache needs group >= 1 and recent >= 0, got {group} and {recent}")
        self.bits = bits
        self.keys = keys
        self.group = group
        self.recent = recent
        self.packed_blocks: list[list[PackedTensor]] = []  # by block of tokens, then by member of the state
        self.state: State | None = None  # of the unquantized tokens
        self.positions: Tensor | None = None

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Append T new keys; return the dequantized and the unquantized tokens, then quantize the oldest."""
        dequantized = tuple(
            torch.cat([unpack_tensor(block[n], self.bits) for block in self.packed_blocks], dim=2)
            if self.packed_blocks
            else None
            for n in range(len(state))
        )
        # positions cover all tokens, `self.state` only the unquantized ones
        self.state, self.positions = concatenate_states(self.state, self.positions, state, positions_BT)
        full_state = tuple(
            unquantized if old is None else torch.cat((old, unquantized), dim=2)
            for old, unquantized in zip(dequantized, self.state, strict=True)
        )
        self._pack_old_tokens()
        return full_state, self.positions

    def _pack_old_tokens(self) -> None:
        assert self.state is not None
        if self.bits == 16 or not self.state:
            return
        size = self.group if self.keys == "channel" else 1
        n_old = (self.state[0].shape[2] - self.recent) // size * size
        if n_old <= 0:
            return
        for begin in range(0, n_old, self.group if size > 1 else n_old):
            end = min(begin + (self.group if size > 1 else n_old), n_old)
            parts = [part[:, :, begin:end] for part in self.state]
            dims = [-2 if n == 0 and self.keys == "channel" else -1 for n in range(len(parts))]
            self.packed_blocks.append(
                [pack_tensor(part, self.bits, dim) for part, dim in zip(parts, dims, strict=True)]
            )
        self.state = tuple(part[:, :, n_old:] for part in self.state)

    def __len__(self) -> int:
        """Number of tokens so far."""
        return 0 if self.positions is None else self.positions.shape[1]

    def live_bytes(self) -> int:
        """Bytes of codes, scales and zero points, of the unquantized tokens and of the carried state."""
        packed = [part for block in self.packed_blocks for member in block for part in member[:3]]
        return count_bytes(self.state, *packed, *self.carried.values())
