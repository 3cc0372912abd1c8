"""A module without torch's machinery around calls and attributes: the same tensors, less Python.

A decoding step is a hundred tiny operations, and `nn.Module` costs about as much as they do: a call looks for
hooks, an attribute for parameters, buffers and children. A lean copy's calls are its class's `forward`, its
attributes plain. Tensors are shared, not copied; results differ by rounding at most (see `_rms_norm`).
The one module that reads how `nn.Module` stores its parts: torch has no public way around its calls.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Capabilities
from attnlab.attention.layer import Attention

M = TypeVar("M", bound=nn.Module)


def lean(module: M) -> M:
    """A copy for inference, of the module and all below it. Modules with hooks keep calling them."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    own: Any = type(module)
    kind = own if hooked else _class(own, _leaner(module))
    copy = object.__new__(kind)
    children = {name: child if child is None else lean(child) for name, child in module._modules.items()}
    copy.__dict__.update(vars(module), **module._parameters, **module._buffers, **children)
    copy.__dict__.update(_modules=children, training=False)
    if isinstance(module, nn.RMSNorm) and module.weight is not None:
        eps = torch.finfo(module.weight.dtype).eps if module.eps is None else module.eps
        copy.__dict__.update(small=module.weight.new_tensor(eps), share=1 / module.normalized_shape[-1])
    return copy


def laid_out(module: M, copies: dict[int, Tensor]) -> M:
    """A lean module with its matrices in copies, column by column: the product with one token then reads
    memory in long runs, sooner by a quarter once the caches of a CPU are too small. `copies` are shared by
    those who are given the same dict.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            weight = part.weight
            if id(weight) not in copies:
                copies[id(weight)] = weight.detach().t().contiguous().t()
            part.__dict__["weight"] = copies[id(weight)]
    return module


@functools.cache
def _class(kind: Any, call: Callable[..., Any] | None) -> Any:
    return type(kind.__name__, (kind,), {"__call__": call or kind.forward})


def _leaner(module: nn.Module) -> Callable[..., Any] | None:
    """Another way to compute what a module of torch's own computes, where that is shorter."""
    plain = type(module) is nn.RMSNorm and len(module.normalized_shape) == 1 and module.weight is not None
    if plain and not module.weight.is_cuda and module.weight.dtype in (torch.float32, torch.float64):
        return _rms_norm
    return None


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    """Half of the time of torch's for one token: on a CPU that one is put together of more operations, and a
    number of Python's costs each of them a tensor.
    """
    if x.numel() == x.shape[-1]:  # one token: half of the sum's time again
        flat = x.view(-1)
        square = torch.dot(flat, flat)
    else:
        square = (x * x).sum(-1, keepdim=True)
    return x * torch.add(self.small, square, alpha=self.share).rsqrt_() * self.weight


def absorb(model: nn.Module) -> None:
    """Sets heads that can to read their cache as it is, where their layer allows it."""
    for layer in model.modules():
        if isinstance(layer, Attention) and Capabilities.of(layer.heads).can_absorb:
            heads: Any = layer.heads
            heads.absorbed = layer.can_absorb
