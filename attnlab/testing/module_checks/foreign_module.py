"""A module under test: its factory, adapter and precision, and instances with reproducible weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.testing.checks.numerics import describe_error
from attnlab.testing.checks.random_state import use_seed
from attnlab.testing.checks.subject import SEED, Subject
from attnlab.testing.module_checks.adapters import (
    FlaAdapter,
    ModuleAdapter,
    MultiheadAdapter,
    PlainAdapter,
    QkvAdapter,
    read_parameters,
)
from attnlab.testing.module_checks.transformers_adapter import TransformersAdapter

Factory = Callable[[], Callable[..., Any]]
CONSTANT_NOISE = 0.1  # standard deviation of the noise added to constant parameters
ADAPTERS: dict[str, type[ModuleAdapter]] = {
    adapter.name: adapter
    for adapter in (MultiheadAdapter, TransformersAdapter, FlaAdapter, QkvAdapter, PlainAdapter)
}


@dataclass(frozen=True)
class ModuleSubject(Subject):
    """A factory with its adapter. `dtype` is float64, or float32 if the module has no float64 kernel."""

    factory: Factory
    name: str
    adapter: type[ModuleAdapter]
    is_causal: bool
    dtype: torch.dtype = torch.float64
    no_float64: str | None = None

    tolerance: float = 1e-5

    zero_gradient = 1e-6  # many modules compute a softmax or a Fourier transform in float32
    gradient_tolerance = 5e-3  # a wrong gradient differs by more; a kink, as of a relu, within a step by less
    rounding_ratio = 5.0

    def build(self, dtype: torch.dtype | None = None, seed: int = SEED) -> ModuleAdapter:
        """Build an instance in evaluation mode; equal seeds give equal weights."""
        module = build_module(self.factory, seed)
        if isinstance(module, nn.Module):
            module = module.to(dtype or self.dtype).eval()
        return self.adapter(module, self.is_causal)

    def construct(self) -> Any:
        """Call the factory."""
        return self.factory()


def prepare_subject(factory: Factory, adapter: str | None, causal: bool) -> ModuleSubject:
    """Build the module once, choose its adapter and precision, and run it once.

    Raises:
        InvalidConfig: the factory raises, no adapter fits, or the module does not run with the adapter.
    """
    name = getattr(factory, "__qualname__", type(factory).__name__)
    module = build_module(factory, SEED)
    if not callable(module):
        raise InvalidConfig(f"factory {name} returns {type(module).__name__}: return a module or function")
    adapter_class = choose_adapter(module, adapter)
    subject = ModuleSubject(factory, name, adapter_class, causal, dtype=torch.float32)
    try:
        _try_forward(subject, torch.float32)
    except Exception as error:
        raise InvalidConfig(
            f"{type(module).__name__} does not run with the adapter {adapter_class.name}, "
            f"{adapter_class.form} ({describe_error(error)}): name another one of {', '.join(ADAPTERS)}, or "
            "wrap the module in one with forward(x)"
        ) from error
    try:
        _try_forward(subject, torch.float64)
    except Exception as error:
        return replace(subject, no_float64=describe_error(error), tolerance=1e-4)
    return replace(subject, dtype=torch.float64)


def choose_adapter(module: Callable[..., Any], name: str | None) -> type[ModuleAdapter]:
    """Return the named adapter, or the first one whose form the module has.

    Raises:
        InvalidConfig: the name is unknown, or none fits.
    """
    if name is not None:
        if name not in ADAPTERS:
            raise InvalidConfig(f"unknown adapter {name}{format_suggestions(name, ADAPTERS)}")
        return ADAPTERS[name]
    parameters = read_parameters(module)
    for adapter in ADAPTERS.values():
        if adapter.fits(module, parameters):
            return adapter
    signature = ", ".join(parameters) or "unknown"
    raise InvalidConfig(
        f"no adapter fits {type(module).__name__} (arguments: {signature}): name one of "
        f"{', '.join(ADAPTERS)}, or wrap the module in one with forward(x)"
    )


def build_module(factory: Factory, seed: int) -> Callable[..., Any]:
    """Call the factory with seeded random generators. Add noise to parameters that are constant.

    Zero output projections, unit gains and zero biases would hide defects.
    """
    with use_seed(seed):
        try:
            module = factory()
        except Exception as error:
            name = getattr(factory, "__qualname__", type(factory).__name__)
            raise InvalidConfig(
                f"factory {name}() raises {describe_error(error)}: give a function without arguments that "
                "returns the module"
            ) from error
    if isinstance(module, nn.Module):
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.is_floating_point() and parameter.numel() and parameter.min() == parameter.max():
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.add_(CONSTANT_NOISE * noise.to(parameter))
    return module


@torch.no_grad()
def _try_forward(subject: ModuleSubject, dtype: torch.dtype) -> None:
    """Run the module on x [2, 5, D].

    Raises:
        ValueError: the output is no tensor of shape [2, 5, E].
    """
    adapter = subject.build(dtype)
    y = adapter.forward(subject.draw_input(adapter, 2, 5, dtype=dtype))
    if not isinstance(y, Tensor) or y.dim() != 3 or y.shape[:2] != (2, 5):
        shape = [*y.shape] if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"the output for x of shape [2, 5, {adapter.dim}] is {shape}")
