"""Config and conditions of a subject that measures in its own process."""

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict

from attnlab.cli.bench import BenchResult
from attnlab.config import CONF, register_resolvers
from attnlab.measure.roofline import Roofline, measure_roofline
from attnlab.model.build import get_device_kind, select_device
from attnlab.store import config_groups
from attnlab.store.guards import inputs
from attnlab.sweep.plan.config_files import list_config_folders
from attnlab.testing.invariants.variant_composition import reject_hidden_options, validate_choices

SHAPE_KEYS = ("model.dim", "model.n_layers", "model.n_heads", "model.ffn_width", "data.length")


def compose_local_config(
    defaults: Sequence[str], overrides: Sequence[str], threads: int | None
) -> dict[str, Any]:
    """Compose the config of a subject that measures in this process, and set its threads (default 1).

    A size among the overrides (size=debug) replaces the shape in the defaults.
    """
    torch.set_num_threads(threads or 1)
    has_size = any(word.startswith("size=") for word in overrides)
    applicable_defaults = [
        word for word in defaults if not (has_size and word.partition("=")[0] in SHAPE_KEYS)
    ]
    return compose_run_config([*applicable_defaults, *overrides])


def is_debug(config: Mapping[str, Any]) -> bool:
    """Whether the smallest setting is selected: few lengths, few steps."""
    return bool(config["size"] == "debug")


def compose_run_config(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose and resolve the config of a run with these overrides.

    Raises:
        InvalidConfig: A group has several options, or a selected option is also in a folder of the user.
    """
    register_resolvers()
    validate_choices(overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("config", overrides=list(overrides), return_hydra_config=True)
    runtime = composed.hydra.runtime
    reject_hidden_options(runtime.choices, list_config_folders(runtime.config_sources))
    with open_dict(composed):
        del composed["hydra"]
    config: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    config_groups.validate_groups(config)
    inputs.validate_inputs(config)
    return config


def describe_conditions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the device, versions and model of the measurement."""
    return {
        "device": get_device_kind(select_device(config)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "model": {key: config["model"][key] for key in ("dim", "n_layers", "n_heads", "ffn_width")},
        "length": config["data"]["length"],
        "batch": config["data"]["batch_size"],
        "dtype": config["trainer"]["precision"],
    }


def measure_limits(
    config: Mapping[str, Any], dtype: torch.dtype, bench: BenchResult, log: Callable[[str], None]
) -> Roofline:
    """Measure the limits of the device, and record them and the conditions with the benchmark."""
    log("measuring copy bandwidth and matrix products")
    limits = measure_roofline(select_device(config), dtype)
    bench.conditions |= describe_conditions(config) | {
        "copy_bytes_per_s": limits.bytes_per_s,
        "matmul_flops_per_s": limits.flops_per_s,
    }
    return limits
