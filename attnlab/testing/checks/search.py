"""Search for the smallest input with which a check fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

SHORT_LENGTH = 11  # longest input, in tokens, of the upward search
FailureT = TypeVar("FailureT")


def find_smallest_failure(
    attempt: Callable[[int, int], FailureT | None], rows: int, longest: int
) -> tuple[FailureT, int, int] | None:
    """Search from one row of one token upwards; return the first failure, its rows and length."""
    for length in [*range(1, min(longest, SHORT_LENGTH) + 1), longest]:
        for batch in range(1, rows + 1):
            if (failure := attempt(batch, length)) is not None:
                return failure, batch, length
    return None


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Compute in one thread: the tensors are tiny, and other processes may want the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
