"""What can be done here, in turn; and why the rest cannot."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnlab.attention.contracts import Unsupported
from attnlab.errors import OUT_OF_MEMORY, is_out_of_memory
from attnlab.measure.timing import interleave


def survey(
    works: Mapping[str, Callable[[], float]], rounds: int, say: Callable[[str], None]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Interleaved samples of the works that can be done here, and why the others cannot."""
    notes: dict[str, str] = {}
    for name, work in works.items():
        note = attempt(work)
        if note is not None:
            notes[name] = note
    able = {name: work for name, work in works.items() if name not in notes}
    return (interleave(able, rounds, say, warm_up=False) if able else {}), notes


def attempt(work: Callable[[], Any]) -> str | None:
    """Does it once; None, or why it cannot be done: unsupported, or out of memory."""
    try:
        work()
    except Unsupported as error:
        return str(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return OUT_OF_MEMORY
    return None
