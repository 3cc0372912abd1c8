"""Sample of the cases that `make test` and `make test-rare` run; `make test-all` runs all of them.

The choice depends on the names alone: it is the same on every machine, and adding a case to a list leaves
the choice among the others unchanged.
"""

import hashlib
import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")

FULL = os.environ.get("ATTNLAB_TESTS") == "all"
full = pytest.mark.skipif(not FULL, reason="make test-all runs it")
CASES = 4  # per parametrized rare test, unless its marker has `sample=`


def sample(items: Iterable[T], count: int) -> list[T]:
    """Return `count` of the items in their order, or all of them if ATTNLAB_TESTS=all."""
    items = list(items)
    if FULL:
        return items
    chosen = sorted(range(len(items)), key=lambda n: hashlib.sha256(str(items[n]).encode()).digest())[:count]
    return [items[n] for n in sorted(chosen)]
