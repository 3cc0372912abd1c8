"""A module without torch's machinery around calls and attributes: the same code and tensors, less Python.

A decoding step is a hundred tiny operations, and `nn.Module` costs about as much as they do: a call looks for
hooks, an attribute for parameters, buffers and children. A bare copy's calls are its class's `forward`, its
attributes plain. Nothing is computed otherwise, and tensors are shared, not copied.
"""

import functools
from typing import Any, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def bare(module: M) -> M:
    """A copy for inference, of the module and all below it. Modules with hooks keep calling them."""
    kind = type(module) if _is_hooked(module) else _bare_class(type(module))
    made = object.__new__(kind)
    children = {name: child if child is None else bare(child) for name, child in module._modules.items()}
    made.__dict__.update(vars(module), **module._parameters, **module._buffers, **children)
    made.__dict__.update(_modules=children, _parameters={**module._parameters})
    return made


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


@functools.cache
def _bare_class(kind: type) -> Any:
    return type(kind.__name__, (kind,), {"__call__": kind.forward})
