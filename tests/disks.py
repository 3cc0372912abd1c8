"""A small disk that can be filled to the last byte."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB of its own. Skipped where mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def fill(disk: Path) -> Callable[[int], Path]:
    """`fill(left)`: leaves so many bytes free on the disk; returns the file that takes the rest."""

    def call(left: int) -> Path:
        balloon = disk / "balloon"
        with balloon.open("wb", buffering=0) as file:
            with suppress(OSError):
                while file.write(b"x" * 4096):
                    pass
            file.truncate(file.tell() - left)
        return balloon

    return call
