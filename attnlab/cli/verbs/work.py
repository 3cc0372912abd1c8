"""`python -m attnlab work +experiment=NAME`: one of several workers that share a sweep."""

import argparse
import re

from attnlab.cli.hydra_runner import extract_hydra_flags, run_hydra
from attnlab.cli.verbs.plan import expand_experiment_name
from attnlab.errors import InvalidConfig
from attnlab.sweep.plan import overrides

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def main(options: argparse.Namespace) -> int:
    """Work on the sweep within the limits, and return the exit status."""
    words = expand_experiment_name(options)
    keys = overrides.index_by_key(words)
    if "experiment" not in keys:
        raise InvalidConfig("work needs an experiment, as in python -m attnlab work +experiment=NAME")
    if "hydra/launcher" in keys:
        raise InvalidConfig(
            "work trains on the machine where it is started: remove hydra/launcher, and start one on each"
        )
    limits = {
        "seconds": parse_duration(options.seconds, "--for"),
        "max_runs": _parse_count(options.max_runs),
        "idle": parse_duration(options.idle, "--idle"),
    }
    given = ",".join(f"{key}:{'null' if value is None else value}" for key, value in limits.items())
    return run_hydra([*extract_hydra_flags(options), f"++sweep.work={{{given}}}", *words])


def parse_duration(text: str | None, flag: str) -> float | None:
    """Parse `90s`, `10m`, `2h` or `1d` as seconds; None if there is no text.

    Raises:
        InvalidConfig: it is no duration, or zero.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text, re.ASCII)
    if match is None or not float(match[1]):
        raise InvalidConfig(f"{flag} {text}: must be a number with a unit, as in 90s, 10m or 2h")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def _parse_count(text: str | None) -> int | None:
    if text is not None and not (text.isdecimal() and int(text)):
        raise InvalidConfig(f"--max-runs {text}: must be an integer of at least 1")
    return int(text) if text else None
