"""The interface of the checks: a subject builds instances of a module, and an adapter calls one of them."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from attnlab.testing.checks.deviation import CheckSkipped

SEED = 0


class Adapter(ABC):
    """An instance behind one interface: x [B, T, D] to y [B, T, E].

    `layout` names the tensors that the module gets. `no_cache` and `no_padding` are the reasons why the
    module has no cache or takes no padding; None if it does. `pads_cache`: whether `step` takes padding too.
    `guesses_padding`: whether the form of the padding mask is a guess. `changes_with_length`: an output
    is declared to depend on the number of later inputs. `has_other_losses`: parameters learn from losses
    other than that of the output. `borders`: tokens at which it may work in blocks.
    """

    layout: ClassVar[str] = "x [B, T, D]"
    no_cache: str | None = "the module has no cache"
    no_padding: str | None = "the module takes no padding mask"
    pads_cache: ClassVar[bool] = False
    guesses_padding: bool = False
    changes_with_length: bool = False
    has_other_losses: bool = False
    borders: tuple[int, ...] = (16, 32, 64, 96, 128, 192, 256)
    module: Any
    is_causal: bool = True

    @property
    @abstractmethod
    def dim(self) -> int:
        """Channels D of x."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, is_token_BT: Tensor | None = None) -> Tensor:
        """Compute y [B, T, E] of whole sequences; `is_token_BT` is False at padding."""

    @property
    def max_cached(self) -> int | None:
        """The most tokens that the cache takes; None for any number."""
        return None

    def start(self) -> Any:
        """Make the empty cache of a new batch of sequences."""
        raise NotImplementedError

    def step(self, x_BTD: Tensor, state: Any, is_token_BS: Tensor | None = None) -> tuple[Tensor, Any]:
        """Compute y of the next tokens, and the state after them.

        `is_token_BS` is False at padding, among the S tokens so far and the next ones; only for `pads_cache`.
        """
        raise NotImplementedError

    def decode(self, x_BTD: Tensor, sizes: Iterable[int], is_token_BT: Tensor | None = None) -> Tensor:
        """Compute y [B, T, E] with a new cache, in chunks of these sizes."""
        state, first, outputs = self.start(), 0, []
        for size in sizes:
            chunk = x_BTD[:, first : first + size].contiguous()
            first += size
            y, state = self.step(chunk, state, None if is_token_BT is None else is_token_BT[:, :first])
            outputs.append(y.clone())
        return torch.cat(outputs, dim=1)

    def compute_reachability(self, length: int) -> Tensor:
        """Return [T, T]: whether an output may depend on an input."""
        everything = torch.ones(length, length, dtype=torch.bool)
        return everything.tril() if self.is_causal else everything

    def compute_visibility(self, length: int) -> Tensor:
        """Return [T, T]: whether an output must depend on an input; here the second on the first."""
        visible = torch.zeros(length, length, dtype=torch.bool)
        visible[1:2, :1] = True
        return visible

    def may_refuse(self, split: Sequence[int]) -> bool:
        """Whether `step` may raise `Unsupported` for chunks of these sizes."""
        return True

    def list_state(self) -> dict[str, Tensor]:
        """List the tensors that no call in evaluation may change."""
        return self.module.state_dict() if isinstance(self.module, nn.Module) else {}

    def copy(self, dtype: torch.dtype | None = None, is_training: bool = False) -> Self:
        """Copy the instance, in another dtype or mode.

        Raises:
            CheckSkipped: Python cannot copy the module.
        """
        other = copy.copy(self)
        try:
            other.module = copy.deepcopy(self.module)
        except Exception as error:
            raise CheckSkipped(f"the module cannot be copied ({type(error).__name__}: {error})") from error
        if isinstance(other.module, nn.Module):
            other.module.train(is_training)
            if dtype is not None:
                other.module.to(dtype)
        return other

    def get_parameters(self) -> dict[str, nn.Parameter]:
        """Get the parameters that are trained, by name."""
        named = self.module.named_parameters() if isinstance(self.module, nn.Module) else ()
        return {name: each for name, each in named if each.requires_grad and each.is_floating_point()}


class Subject(ABC):
    """A module whose instances are checked.

    `dtype`: the precision of structural checks, with their relative `tolerance` and that of a gradient
    which must be zero, `zero_gradient`. `gradient_tolerance`: of gradients and finite differences.
    `rounding_ratio`: the largest error in 16 bits, relative to that of rounded weights and inputs.
    `no_float64`: the error in float64 if there is no such kernel.
    """

    dtype: torch.dtype = torch.float64
    tolerance: float
    zero_gradient: float
    gradient_tolerance: float
    rounding_ratio: float
    no_float64: str | None = None

    @abstractmethod
    def build(self, dtype: torch.dtype | None = None, seed: int = SEED) -> Adapter:
        """Build an instance in evaluation mode; equal seeds give equal weights."""

    @abstractmethod
    def construct(self) -> Any:
        """Construct an instance without a seed."""

    def draw_input(
        self, adapter: Adapter, batch: int, length: int, seed: int = SEED, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Draw x [B, T, D] from a normal distribution, on the device of the module."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(batch, length, adapter.dim, generator=generator, dtype=torch.float64)
        return x.to(_find_device(adapter.module), dtype or self.dtype)


def _find_device(module: Any) -> torch.device:
    parameters = module.parameters() if isinstance(module, nn.Module) else iter(())
    return next((parameter.device for parameter in parameters), torch.device("cpu"))
