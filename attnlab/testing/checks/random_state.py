"""Random states of torch, Python and NumPy, and dropout."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.testing.checks.subject import Adapter


@contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Seed all random states, and restore them at the end."""
    python_state, numpy = random.getstate(), _find_numpy_random()
    numpy_state = numpy.get_state() if numpy else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.set_state(numpy_state)


def read_random_states() -> dict[str, bytes]:
    """Read the random states by library."""
    states = {"torch": torch.get_rng_state().numpy().tobytes(), "Python": repr(random.getstate()).encode()}
    if numpy := _find_numpy_random():
        states["NumPy"] = repr(
            [part.tolist() if hasattr(part, "tolist") else part for part in numpy.get_state()]
        ).encode()
    return states


@contextmanager
def disable_dropout() -> Iterator[None]:
    """Make `torch.nn.functional.dropout` the identity, which `nn.Dropout` calls too."""
    dropout = F.dropout
    F.dropout = lambda x, *settings, **more: x
    try:
        yield
    finally:
        F.dropout = dropout


def is_random(adapter: Adapter, x: Tensor) -> bool:
    """Whether two random states give different outputs in training mode."""
    outputs = []
    for seed in (1, 2):
        other = adapter.copy(is_training=True)
        with use_seed(seed):
            outputs.append(other.forward(x))
    return not torch.equal(*outputs)


def _find_numpy_random() -> Any:
    """NumPy's global generator, if NumPy was imported."""
    return getattr(sys.modules.get("numpy"), "random", None)
