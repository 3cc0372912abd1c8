"""What a run leaves on disk once it is done: its record, and the curves beside it."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from attnlab.model.build import device_of
from attnlab.store.files import replacing, write_json
from attnlab.training.environment import environment

CURVES = ("step", "tokens", "name", "value")


def of(
    folder: Path, config: Mapping[str, Any], facts: Mapping[str, Any], clock: float, **found: Any
) -> dict[str, Any]:
    """The record of the run that began when `time.perf_counter()` said `clock`. `facts`: what was known of it
    before; `found`: what its end adds.
    """
    seconds = time.perf_counter() - clock
    declared = {name: asdict(metric) for name, metric in found.pop("declared").items()}
    return {
        "schema": 1,
        "id": folder.name,
        "status": "done",
        "seed": config["seed"],
        "failure": None,
        "config": config,
        "data": facts["data"],
        "environment": environment(device_of(config)),
        "budget": {
            key: value for key, value in facts.items() if key not in ("data", "device_kind", "declared")
        },
        **found,
        "declared": facts["declared"] | declared,
        "started": (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
    }


def write(folder: Path, found: Mapping[str, Any], curves: Iterable[tuple[int, int, str, float]]) -> None:
    """curves.parquet, where there are any; then run.json, with which the run is done."""
    columns = dict(zip(CURVES, zip(*curves, strict=True), strict=False))
    if columns:
        with replacing(folder / "curves.parquet") as temporary:
            pq.write_table(pa.table(columns), temporary)
    write_json(folder / "run.json", found)
