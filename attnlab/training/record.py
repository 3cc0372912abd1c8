"""What a run leaves on disk once it is done: its record, the curves beside it, and where it was trained."""

import platform
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

import attnlab
from attnlab.model.build import device_kind, device_of
from attnlab.store import runs
from attnlab.store.files import replacing
from attnlab.store.guards import digests
from attnlab.store.schema import RunRecord, RunSpec, Use

CURVES = ("step", "tokens", "name", "value")


def of(spec: RunSpec, clock: float, **measured: Any) -> RunRecord:
    """The record of the run that began when `time.perf_counter()` said `clock`; `measured`: what its end
    adds to what its spec says.
    """
    seconds = time.perf_counter() - clock
    return RunRecord(
        id=spec.id,
        status="done",
        seed=spec.seed,
        config=spec.config,
        estimate=spec.estimate,
        environment=environment(device_of(spec.config), spec.use),
        measured_by=spec.estimate.measured_by,
        observed_by=spec.estimate.observed_by,
        **measured,
        started=(datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    )


def write(folder: Path, record: RunRecord, curves: Iterable[tuple[int, int, str, float]]) -> None:
    """curves.parquet, where there are any; then run.json, with which the run is done. It holds the digests of
    the files beside it, so they are written before.
    """
    columns = dict(zip(CURVES, zip(*curves, strict=True), strict=False))
    if columns:
        with replacing(folder / "curves.parquet") as temporary:
            pq.write_table(pa.table(columns), temporary)
    runs.write_record(folder, record.model_copy(update={"files": digests.of_files(folder)}))


def environment(device: str, use: Use) -> dict[str, Any]:
    """Where the run ran, and at which commit of attnlab, as its spec says."""
    packages = {
        name: version(name)
        for name in ("torch", "pytorch-lightning", "hydra-core", "numpy", "datasets", "wandb")
    }
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": packages["pytorch-lightning"],
        "attnlab": attnlab.__version__,
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "device": device,
        "device_kind": device_kind(device),
        "threads": torch.get_num_threads(),
        "git_commit": use.commit,
        "git_dirty": use.dirty,
        "packages": packages,
    }
