"""Rotary positions in the split-halves pairing of Llama checkpoints.

Source: RoFormer, Su et al. 2021, arXiv 2104.09864, eq. 15. Feature f of the first half is paired with feature
f of the second, not with its neighbor: weights made for the interleaved pairing need a permutation.
Long-context variants change the frequencies through `scaling`. YaRN's magnitude is part of cos and sin, so
the softmax scale belongs to the score axis alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, final

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities

CosSinTable = tuple[Tensor, Tensor]


class RotaryScaling(Protocol):
    """Map from (frequencies [R / 2], base, positions) to (frequencies, magnitude); hashable, like `Rope`.

    A scaling that depends on the positions declares `changes_with_length` (`contracts.Capabilities`).
    """

    def __call__(self, frequencies: Tensor, base: float, positions: Tensor, /) -> tuple[Tensor, float]: ...


def identity_rotation(x_BHTD: Tensor) -> Tensor:
    """Return x unchanged."""
    return x_BHTD


@final
@dataclass(frozen=True)
class Rope:
    """Rotation of a fraction of the D features by position * frequency; the others stay.

    Frequencies over the "rotated" features: base^(-2f/R), where the first R = fraction * D features form R/2
    pairs (GPT-NeoX). Over the whole "head": base^(-2f/D), where all D features form D/2 pairs, and only the
    first fraction of the pairs, the fastest, rotate (proportional RoPE, Gemma 4; after p-RoPE, Barbero et al.
    2024, arXiv 2410.06205, §5). Both are equal if fraction is 1.
    """

    base: float = 10000.0
    fraction: float = 1.0
    scaling: RotaryScaling | None = None
    frequencies: Literal["rotated", "head"] = "rotated"

    @property
    def changes_with_length(self) -> bool:
        """True if the scaling changes with the length."""
        return Capabilities.from_part(self.scaling).changes_with_length

    def __call__(self, positions_BT: Tensor) -> "Rotation":
        """Make the rotation for integer positions [B or 1, T].

        Angles are computed in float32 (float64 for float64 input): bfloat16 would lose whole turns. Calling
        the rotation raises ValueError if it can form no pairs: R or D is odd, or no pair rotates.
        """

        def make_table(width: int, dtype: torch.dtype) -> CosSinTable:
            compute_dtype = torch.promote_types(dtype, torch.float32)
            steps = torch.arange(0, width, 2, device=positions_BT.device, dtype=compute_dtype)
            frequencies = self.base ** (-steps / width)
            magnitude = 1.0
            if self.scaling is not None:
                frequencies, magnitude = self.scaling(frequencies, self.base, positions_BT)
            if self.frequencies == "head":
                n_pairs = int(self.fraction * width // 2)  # as transformers rounds
                if not 1 <= n_pairs <= width // 2:
                    raise ValueError(
                        f"RoPE needs 1 to {width // 2} pairs of head_dim={width}, got {n_pairs} "
                        f"(fraction {self.fraction}): change head_dim or model.attention.rotary.fraction"
                    )
                frequencies = torch.where(steps < 2 * n_pairs, frequencies, 0)
            angles = positions_BT[:, None, :, None].to(compute_dtype) * frequencies
            cos = angles.cos() * magnitude
            sin = angles.sin() * magnitude
            return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)

        return Rotation(1.0 if self.frequencies == "head" else self.fraction, make_table)


@final
class Rotation:
    """Rotation made by `Rope`; it caches its tables, one per width and dtype."""

    def __init__(self, fraction: float, make_table: Callable[[int, torch.dtype], CosSinTable]) -> None:
        self.fraction = fraction
        self.make_table = make_table
        self.tables: dict[tuple[int, torch.dtype], CosSinTable] = {}

    def __call__(self, x_BHTD: Tensor) -> Tensor:
        """Rotate x.

        Raises:
            ValueError: the number of features to rotate is odd or zero.
        """
        width = round(x_BHTD.shape[-1] * self.fraction)
        if width < 2 or width % 2:
            raise ValueError(
                f"RoPE needs an even number of features, got {width} "
                f"(fraction {self.fraction} of head_dim={x_BHTD.shape[-1]}): "
                "change head_dim or model.attention.rotary.fraction"
            )
        cos, sin = self.get_table(width, x_BHTD.dtype)
        features = x_BHTD if self.fraction == 1.0 else x_BHTD[..., :width]
        swapped = features.roll(width // 2, dims=-1)
        rotated = torch.addcmul(features * cos, swapped, sin)  # in the first half, sin is negative
        return rotated if self.fraction == 1.0 else torch.cat((rotated, x_BHTD[..., width:]), dim=-1)

    def get_table(self, width: int, dtype: torch.dtype) -> CosSinTable:
        """Cosines, and sines negated in the first half: each [B or 1, 1, T, width]."""
        if (width, dtype) not in self.tables:
            self.tables[width, dtype] = self.make_table(width, dtype)
        return self.tables[width, dtype]

    def select_position(self, n: int) -> "Rotation":
        """Rotation of the n-th position alone, sliced from these tables."""

        def cut_table(width: int, dtype: torch.dtype) -> CosSinTable:
            cos, sin = self.get_table(width, dtype)
            return cos.narrow(2, n, 1), sin.narrow(2, n, 1)

        return Rotation(self.fraction, cut_table)
