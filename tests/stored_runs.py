"""Stored run configs with real ids, as a plan makes them."""

from pathlib import Path
from typing import Any

from attnlab.store import run_directories
from attnlab.store.run_schema import RunConfig, RunEstimate, Use
from attnlab.sweep.plan.arms import make_run_config

EXAM = Use(experiment="exam", arm="mha")


def make_spec(
    config: dict[str, Any], name: str = "", estimate: RunEstimate | None = None, use: Use = EXAM
) -> RunConfig:
    """Make a run config; runs of one config and different names differ as runs of different code do."""
    return make_run_config(config, estimate or RunEstimate(), {"test": name}, use)


def write_spec(root: Path, spec: RunConfig) -> Path:
    """Write spec.json and return the run directory."""
    run_directories.write_run_config(root, spec)
    return root / spec.id
