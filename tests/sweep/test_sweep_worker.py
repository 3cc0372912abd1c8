import pytest

from attnlab.sweep.execute.exits import classify as classify_death
from attnlab.sweep.execute.worker import classify


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (FloatingPointError("nan"), "diverged"),
        (MemoryError(), "out_of_memory"),
        (OutOfMemoryError("CUDA out of memory."), "out_of_memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            "out_of_memory",
        ),
        (RuntimeError("shapes differ"), "crashed"),
        (KeyError("x"), "crashed"),
    ],
)
def test_an_exception_is_recorded_as_what_it_means(error, status):
    assert classify(error) == status


@pytest.mark.parametrize(
    ("code", "memory_ran_out", "status"),
    [
        (-9, False, "killed"),
        (-9, True, "out_of_memory"),
        (-11, True, "killed"),
        (7, False, "crashed"),
    ],
)
def test_a_hard_end_is_told_by_its_exit_status(code, memory_ran_out, status):
    assert classify_death(code, memory_ran_out)[0] == status
