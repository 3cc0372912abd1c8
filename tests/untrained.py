"""Run directories of untrained models: run config, weights as initialized, vocabulary."""

from pathlib import Path
from typing import Any

from safetensors.torch import save_model

from attnlab.model.build import build_model, instantiate_config
from attnlab.store import run_directories
from attnlab.store.run_schema import RunConfig, RunEstimate, Use


def write_untrained(root: Path, name: str, config: dict[str, Any]) -> Path:
    """Write the run directory `root / name` without training, and return it."""
    data = instantiate_config(config["data"])
    estimate = RunEstimate(data=data.describe(), context=data.task.length)
    use = Use(experiment="exam", arm="mha")
    run_directories.write_run_config(root, RunConfig(id=name, config=config, estimate=estimate, use=use))
    save_model(build_model(config, data.task.vocab_size), str(root / name / "model.safetensors"))
    data.task.vocabulary().write(root / name)
    return root / name
