"""CPU tensors without numbers: operations on them give the shapes, dtypes and storages of real ones.

The one module that uses `torch._subclasses`: torch documents its FakeTensorMode, and has no public name for
it. The public device `meta` is no substitute: there attention takes the unfused path, which keeps all
weights for the backward pass, and autocast changes nothing.
"""

from contextlib import AbstractContextManager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def fake_tensors() -> AbstractContextManager[object]:
    """Within it, all new tensors are fake."""
    return FakeTensorMode()


def replace_parameters(model: nn.Module) -> None:
    """Puts fake parameters and buffers in the place of a model's own, which live on the meta device; those
    that were tied stay tied. To be called within `fake_tensors()`.
    """
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, own in module.named_parameters(recurse=False, remove_duplicate=False):
            fake = made.setdefault(id(own), nn.Parameter(_like(own), own.requires_grad))
            setattr(module, name, fake)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, _like(buffer))


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
