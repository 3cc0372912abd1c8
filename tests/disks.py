"""A small disk that can be filled to the last byte."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a 4 MB disk; skip the test if mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def fill(disk: Path) -> Callable[[int], Path]:
    """`fill(free_bytes)`: fill the disk up to `free_bytes`; returns the file that occupies it."""

    def fill_disk(free_bytes: int) -> Path:
        balloon = disk / "balloon"
        with balloon.open("wb", buffering=0) as file:
            with suppress(OSError):
                while file.write(b"x" * 4096):
                    pass
            file.truncate(file.tell() - free_bytes)
        return balloon

    return fill_disk
