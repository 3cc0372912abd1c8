"""`python -m attnlab noise +experiment=NAME`: the noise of an experiment's metric by source."""

import argparse

from attnlab.cli.hydra_runner import extract_hydra_flags, run_hydra
from attnlab.cli.verbs.plan import expand_experiment_name
from attnlab.errors import InvalidConfig
from attnlab.sweep.plan import overrides


def main(options: argparse.Namespace) -> int:
    """Measure the noise and return the exit status of its sweep."""
    words = expand_experiment_name(options)
    if "experiment" not in overrides.index_by_key(words):
        raise InvalidConfig("noise needs an experiment, as in python -m attnlab noise +experiment=NAME")
    return run_hydra([*extract_hydra_flags(options), f"++sweep.noise={options.levels}", *words])
