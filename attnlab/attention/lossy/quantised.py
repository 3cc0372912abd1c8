"""A cache of fewer bits: what is held are small integers, with a scale and a zero for each group of them."""

from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from attnlab.attention.cache import Carrying, bytes_of, joined
from attnlab.attention.contracts import State

Axis = Literal["token", "channel"]


class Packed(NamedTuple):
    """Integers of `bits` bits, packed into bytes along the last dim; scale and zero of each group, in 16
    bits.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor
    width: int
    dtype: torch.dtype


def pack(x: Tensor, bits: int, dim: int) -> Packed:
    """x [..., S, width], round-to-nearest between the least and the largest along `dim`, which share a
    scale.
    """
    low = x.amin(dim, keepdim=True).half().to(x.dtype)
    high = x.amax(dim, keepdim=True)
    scale = ((high - low) / (2**bits - 1)).clamp(min=torch.finfo(torch.half).tiny).half()
    codes = ((x - low) / scale.to(x.dtype)).round().clamp(0, 2**bits - 1).to(torch.uint8)
    per_byte = 8 // bits
    width = codes.shape[-1]
    codes = torch.nn.functional.pad(codes, (0, -width % per_byte)).unflatten(-1, (-1, per_byte))
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=x.device)
    return Packed((codes << shifts).sum(-1, dtype=torch.uint8), scale, low.half(), width, x.dtype)


def unpack(packed: Packed, bits: int) -> Tensor:
    """What is left of x."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.codes.device)
    codes = (packed.codes[..., None] >> shifts) & (2**bits - 1)
    codes = codes.flatten(-2)[..., : packed.width]
    return codes.to(packed.dtype) * packed.scale.to(packed.dtype) + packed.zero.to(packed.dtype)


@final
class QuantisedCache(Carrying):
    """Holds 8, 4 or 2 bits a number, asymmetric, round-to-nearest. Keys, the first member of a state, share
    a scale per token, or per channel over `group` tokens; all else per token (KIVI, Liu et al. 2024, arXiv
    2402.02750, §3.2-3.3). The newest `recent` tokens, and those of a group that is not full yet, stay as
    they are.

    `bits` 16 holds everything as it came, which is the plain cache. Scales and zeros take 16 bits each.
    """

    room: int | None = None
    holds: int | None = None

    def __init__(self, bits: int = 4, keys: Axis = "channel", group: int = 16, recent: int = 0) -> None:
        super().__init__()
        if bits not in (2, 4, 8, 16):
            raise ValueError(f"a quantised cache has 2, 4, 8 or 16 bits, got {bits}")
        if keys not in ("token", "channel"):
            raise ValueError(f"keys share a scale per token or channel, got {keys}")
        if group < 1 or recent < 0:
            raise ValueError(f"a quantised cache needs group >= 1 and recent >= 0, got {group} and {recent}")
        self.bits = bits
        self.keys = keys
        self.group = group
        self.recent = recent
        self.blocks: list[list[Packed]] = []  # by block of tokens, by member of the state
        self.state: State | None = None  # of tokens that are as they came
        self.positions: Tensor | None = None

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """What is held, read back, and the new tokens as they came; then those that have grown old are
        packed.
        """
        held = tuple(
            torch.cat([unpack(block[n], self.bits) for block in self.blocks], dim=2) if self.blocks else None
            for n in range(len(state))
        )
        # positions are kept of all tokens, states of the fresh ones
        self.state, self.positions = joined(self.state, self.positions, state, positions_BT)
        whole = tuple(
            fresh if old is None else torch.cat((old, fresh), dim=2)
            for old, fresh in zip(held, self.state, strict=True)
        )
        self._pack()
        return whole, self.positions

    def _pack(self) -> None:
        assert self.state is not None
        if self.bits == 16 or not self.state:
            return
        size = self.group if self.keys == "channel" else 1
        old = (self.state[0].shape[2] - self.recent) // size * size
        if old <= 0:
            return
        for begin in range(0, old, self.group if size > 1 else old):
            end = min(begin + (self.group if size > 1 else old), old)
            parts = [part[:, :, begin:end] for part in self.state]
            dims = [-2 if n == 0 and self.keys == "channel" else -1 for n in range(len(parts))]
            self.blocks.append([pack(part, self.bits, dim) for part, dim in zip(parts, dims, strict=True)])
        self.state = tuple(part[:, :, old:] for part in self.state)

    def __len__(self) -> int:
        """Tokens seen so far."""
        return 0 if self.positions is None else self.positions.shape[1]

    def live_bytes(self) -> int:
        """Bytes of codes, scales and zeros, of the tokens held as they came, and of what is carried."""
        packed = [part for block in self.blocks for member in block for part in member[:3]]
        return bytes_of(self.state, *packed, *self.carried.values())
