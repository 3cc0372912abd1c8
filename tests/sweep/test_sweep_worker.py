"""Classification of a worker's exceptions and exit codes."""

import errno

import pytest

from attnlab.errors import HelperProcessKilled
from attnlab.sweep.execute.exit_records import classify_exit_code
from attnlab.sweep.execute.node_setup import WrongDevice
from attnlab.sweep.execute.process_control import DISK_FULL, NO_STATUS, RANK_LOST
from attnlab.sweep.execute.worker import classify_exception


class OutOfMemoryError(RuntimeError):
    """Stand-in with the name of torch's exception."""


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
        (HelperProcessKilled("a signal killed another rank: SIGKILL"), "killed"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), "killed"),
        (OSError(errno.ENOSPC, "No space left on device"), "killed"),
        (OSError(errno.ESTALE, "Stale file handle"), "killed"),
        (OSError(errno.EIO, "Input/output error"), "killed"),
        (WrongDevice("planned for cpu, but this machine trains on the card"), "killed"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), "out_of_memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "out_of_memory"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "crashed"),
        (RuntimeError("shapes differ"), "crashed"),
        (KeyError("x"), "crashed"),
    ],
)
def test_exception_is_classified_by_its_cause(error, status):
    assert classify_exception(error) == status


@pytest.mark.parametrize(
    ("code", "memory_ran_out", "status"),
    [
        (-9, False, "killed"),
        (-9, True, "host_out_of_memory"),
        (-11, True, "killed"),
        (-40, False, "killed"),  # a real-time signal, which has no name
        (NO_STATUS, False, "killed"),
        (RANK_LOST, False, "killed"),
        (DISK_FULL, False, "killed"),
        (7, False, "crashed"),
        (255, False, "crashed"),
    ],
)
def test_hard_exit_is_classified_by_its_exit_code(code, memory_ran_out, status):
    assert classify_exit_code(code, memory_ran_out)[0] == status
