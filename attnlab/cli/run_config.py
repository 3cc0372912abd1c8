"""Composition of one run's config for verbs that start no sweep."""

from collections.abc import Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict

from attnlab.config import CONF, register_resolvers
from attnlab.store import config_groups
from attnlab.store.guards import inputs
from attnlab.sweep.plan.config_files import list_config_folders
from attnlab.testing.invariants.variant_composition import reject_hidden_options, validate_choices


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
