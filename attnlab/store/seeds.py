"""Derive the seed of a random generator from a path, such as (seed, parameter name).

torch's CPU generator keeps only the low 32 bits of its seed, so `(seed << 32) + step` would give every seed
the same numbers; a hash keeps paths apart. The function decides every weight, batch and dropout mask of every
stored run, so its values must never change.
"""

import hashlib
from collections.abc import Callable
from typing import Any


def derive_seed(*path: object, hash_function: Callable[[bytes], Any] = hashlib.sha256) -> int:
    """Return the first 8 digest bytes (or all of a shorter digest) of `a/b/c` as a little-endian integer."""
    return int.from_bytes(hash_function("/".join(map(str, path)).encode()).digest()[:8], "little")
