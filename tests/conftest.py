"""What the tests share: one thread, W&B that never leaves the machine, and composed configs of tiny runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toys import attnlab, planned, toy  # noqa: F401 - fixtures

os.environ.pop("WANDB_MODE", None)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40


@pytest.fixture
def compose(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`compose(*overrides)`: the resolved config of a debug-size run on a small text."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    from attnlab.config import CONF, register_resolvers

    register_resolvers()
    book = tmp_path / "book.txt"
    book.write_text(TEXT)

    def make(*overrides: str) -> dict[str, Any]:
        small = [
            "size=debug",
            "data=text",
            f"data.path={book}",
            f"paths.cache={tmp_path / 'cache'}",
            "logger=none",
        ]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra_compose("config", overrides=[*small, *overrides])
        found = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        assert isinstance(found, dict)
        return found

    return make


@pytest.fixture
def store(tmp_path: Path) -> Callable[[str, dict[str, Any]], Path]:
    """`store(id, config)`: a run's folder, ready for `attnlab.training.run.run`."""

    def make(name: str, config: dict[str, Any]) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        spec = {"schema": 1, "id": name, "config": config, "use": {"experiment": "exam", "arm": "mha"}}
        (folder / "spec.json").write_text(json.dumps(spec))
        return folder

    return make
