"""The sample of long tests that `make test-rare` runs; `make test-all` runs all of them.

The choice depends on the names alone, so it is the same on every machine, and a case that is added to a list
leaves the choice among the others as it was.
"""

import hashlib
import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")

FULL = os.environ.get("ATTNLAB_TESTS") == "all"
full = pytest.mark.skipif(not FULL, reason="make test-all runs it")
CASES = 4  # of a rare test with many parameters, unless its marker has `sample=`


def sample(items: Iterable[T], count: int) -> list[T]:
    """`count` of these items in their order; all of them where the full set is asked for."""
    items = list(items)
    if FULL:
        return items
    chosen = sorted(range(len(items)), key=lambda n: hashlib.sha256(str(items[n]).encode()).digest())[:count]
    return [items[n] for n in sorted(chosen)]
