"""Typed records of checks on an attention module of any project."""

from dataclasses import dataclass
from typing import Literal

CheckStatus = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Reproduction:
    """Smallest failing case of a check.

    The input is `torch.randn(x_shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)`
    in the dtype `dtype`, and `torch.manual_seed(seed)` is set before the factory is called.
    `largest_difference` is relative to the largest expected value; None if the module raises an error or
    returns NaN or infinity. `position` is the place of that difference in the output.
    """

    seed: int
    x_shape: tuple[int, ...]
    dtype: str
    case: str
    position: str
    largest_difference: float | None

    def describe_input(self) -> str:
        """Describe the input, as in `x [1, 2, 48] float64, seed 0`."""
        return f"x [{', '.join(map(str, self.x_shape))}] {self.dtype}, seed {self.seed}"


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check. `detail` has the measured number, or the reason why the check was skipped."""

    name: str
    statement: str
    outcome: CheckStatus
    detail: str
    measured: float | None = None
    reproduction: Reproduction | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.outcome}: {self.detail}"
