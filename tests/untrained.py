"""Run directories of untrained models: run config, weights as initialized, vocabulary."""

from pathlib import Path
from typing import Any

from safetensors.torch import save_model
from stored_runs import make_spec, write_spec

from attnlab.model.build import build_model, instantiate_config
from attnlab.store.run_schema import RunEstimate


def write_untrained(root: Path, config: dict[str, Any]) -> Path:
    """Write a run directory without training, and return it."""
    data = instantiate_config(config["data"])
    estimate = RunEstimate(data=data.describe(), context=data.task.length)
    folder = write_spec(root, make_spec(config, estimate=estimate))
    save_model(build_model(config, data.task.vocab_size), str(folder / "model.safetensors"))
    data.task.vocabulary().write(folder)
    return folder
