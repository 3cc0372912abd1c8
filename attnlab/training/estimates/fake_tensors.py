"""CPU tensors without data: operations on them give the shapes, dtypes and storages of real ones.

The only module that uses `torch._subclasses`: torch documents its FakeTensorMode without a public name. The
public device `meta` is no substitute: attention takes the unfused path there, which saves all weights for the
backward pass, and autocast has no effect.
"""

from contextlib import AbstractContextManager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def enable_fake_tensors() -> AbstractContextManager[object]:
    """Return a context in which all new tensors are fake."""
    return FakeTensorMode()


def replace_parameters(model: nn.Module) -> None:
    """Replace a model's parameters and buffers on the meta device by fake ones; tied tensors stay tied.

    Call it within `enable_fake_tensors()`.
    """
    fake_parameters: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            fake = fake_parameters.setdefault(
                id(parameter), nn.Parameter(_make_empty_like(parameter), parameter.requires_grad)
            )
            setattr(module, name, fake)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, _make_empty_like(buffer))


def _make_empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
