"""A run's folder as training leaves it, but for the training: spec, weights as initialized, vocabulary."""

from pathlib import Path
from typing import Any

from safetensors.torch import save_model

from attnlab.model.build import build_model, make
from attnlab.store import runs
from attnlab.store.schema import Estimate, RunSpec, Use


def write_untrained(root: Path, name: str, config: dict[str, Any]) -> Path:
    """The folder of run `name` in the store `root`."""
    data = make(config["data"])
    estimate = Estimate(data=data.facts(), context=data.task.length)
    use = Use(experiment="exam", arm="mha")
    runs.write_spec(root, RunSpec(id=name, config=config, estimate=estimate, use=use))
    save_model(build_model(config, data.task.vocab_size), str(root / name / "model.safetensors"))
    data.task.vocabulary().write(root / name)
    return root / name
