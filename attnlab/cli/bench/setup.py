"""The model that a subject measures in its own process, and under which conditions."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from attnlab.config import CONF, register_resolvers
from attnlab.model.build import device_kind, device_of
from attnlab.store import values
from attnlab.testing.laws.compose import refuse_mixtures

SHAPE = ("model.dim", "model.n_layers", "model.n_heads", "model.ffn_width", "data.length")


def here(defaults: Sequence[str], overrides: Sequence[str], threads: int | None) -> dict[str, Any]:
    """The config of a subject that measures in this process, which gets so many threads, or one. A size among
    the overrides (size=debug) replaces the shape that the defaults set.
    """
    torch.set_num_threads(threads or 1)
    sized = any(word.startswith("size=") for word in overrides)
    kept = [word for word in defaults if not (sized and word.partition("=")[0] in SHAPE)]
    return composed([*kept, *overrides])


def is_debug(config: Mapping[str, Any]) -> bool:
    """Whether the smallest setting was chosen: few lengths, few steps."""
    return bool(config["size"] == "debug")


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved config of a run with these overrides."""
    register_resolvers()
    refuse_mixtures(overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(
            compose("config", overrides=list(overrides)), resolve=True, throw_on_missing=True
        )
    values.refuse(config)
    return config


def conditions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Where and with what it was measured."""
    return {
        "device": device_kind(device_of(config)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "model": {key: config["model"][key] for key in ("dim", "n_layers", "n_heads", "ffn_width")},
        "length": config["data"]["length"],
        "batch": config["data"]["batch_size"],
        "dtype": config["trainer"]["precision"],
    }
