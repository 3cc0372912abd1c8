"""Result of a run on disk: run.json, its curves, and the environment that trained it."""

import platform
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

import attnlab
from attnlab.model.build import get_device_kind, select_device
from attnlab.store import fingerprint, run_directories
from attnlab.store.atomic_files import replace_atomically
from attnlab.store.guards import digests
from attnlab.store.run_schema import RunConfig, RunResult, Use

CURVE_COLUMNS = ("step", "tokens", "name", "value")


def make_run_result(run_config: RunConfig, start_time: float, **measured: Any) -> RunResult:
    """Build the result of a finished run.

    Args:
        start_time: `time.perf_counter()` at the start.
        **measured: Fields measured after training.
    """
    seconds = time.perf_counter() - start_time
    return RunResult(
        id=run_config.id,
        status="done",
        seed=run_config.seed,
        config=run_config.config,
        estimate=run_config.estimate,
        environment=describe_environment(select_device(run_config.config), run_config.use),
        measured_by=run_config.estimate.measured_by,
        observed_by=run_config.estimate.observed_by,
        **measured,
        started=(datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    )


def save_run(folder: Path, run_result: RunResult, curves: Iterable[tuple[int, int, str, float]]) -> None:
    """Write curves.parquet, if there are curves, then run.json, which finishes the run.

    run.json holds the digests of the other files, which must be written before.
    """
    columns = dict(zip(CURVE_COLUMNS, zip(*curves, strict=True), strict=False))
    if columns:
        with replace_atomically(folder / "curves.parquet") as temporary:
            pq.write_table(pa.table(columns), temporary)
    run_directories.write_run_result(
        folder, run_result.model_copy(update={"files": digests.hash_run_files(folder)})
    )


def load_curves(folder: Path) -> list[tuple[int, int, str, float]]:
    """Return the rows of curves.parquet, in the order in which they were recorded; none without the file."""
    path = folder / "curves.parquet"
    return list(zip(*pq.read_table(path).to_pydict().values(), strict=True)) if path.exists() else []


def describe_environment(device: str, provenance: Use) -> dict[str, Any]:
    """Return where the run ran, its package versions, and the commit of attnlab in its config."""
    packages = fingerprint.read_package_versions(
        ("torch", "pytorch-lightning", "hydra-core", "numpy", "datasets", "wandb")
    )
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": packages["pytorch-lightning"],
        "attnlab": attnlab.__version__,
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "device": device,
        "device_kind": get_device_kind(device),
        "threads": torch.get_num_threads(),
        "git_commit": provenance.commit,
        "git_dirty": provenance.dirty,
        "packages": packages,
    }
