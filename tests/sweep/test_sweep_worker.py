import errno

import pytest

from attnlab.errors import ProcessLost
from attnlab.sweep.execute.exits import classify as classify_death
from attnlab.sweep.execute.process import NO_STATUS, RANK_LOST
from attnlab.sweep.execute.worker import classify


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (FloatingPointError("nan"), "diverged"),
        (MemoryError(), "host_out_of_memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "host_out_of_memory"),
        (OutOfMemoryError("CUDA out of memory."), "out_of_memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            "host_out_of_memory",
        ),
        (ProcessLost("a signal ended another rank: SIGKILL"), "killed"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), "killed"),
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
        (-9, True, "host_out_of_memory"),
        (-11, True, "killed"),
        (-40, False, "killed"),  # a real-time signal, which has no name
        (NO_STATUS, False, "killed"),
        (RANK_LOST, False, "killed"),
        (7, False, "crashed"),
        (255, False, "crashed"),
    ],
)
def test_a_hard_end_is_told_by_its_exit_status(code, memory_ran_out, status):
    assert classify_death(code, memory_ran_out)[0] == status
