"""Tables of runs that another program trained."""

from collections.abc import Iterable
from pathlib import Path


def write_table(path: str | Path, values: Iterable[object], first_seed: int = 0) -> None:
    """Write a CSV file with a row per run: its seed and its loss."""
    rows = (f"{seed},{value}\n" for seed, value in enumerate(values, first_seed))
    Path(path).write_text("seed,loss\n" + "".join(rows))
