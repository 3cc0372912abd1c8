"""From a place, such as (seed, name of a parameter), to the number that its random generator starts from.

Surprising: torch's CPU generator keeps only the low 32 bits of its seed, so `(seed << 32) + step` would give
every seed the same numbers. A hash leaves no two places alike. It decides every weight, batch and dropout of
every stored run, so what it returns stays as it is.
"""

import hashlib
from collections.abc import Callable
from typing import Any


def seed_of(*place: object, algorithm: Callable[[bytes], Any] = hashlib.sha256) -> int:
    """The first 8 bytes (or as many as there are) of the hash of `a/b/c`, the lowest byte first."""
    return int.from_bytes(algorithm("/".join(map(str, place)).encode()).digest()[:8], "little")
