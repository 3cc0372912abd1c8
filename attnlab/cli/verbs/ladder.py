"""`ladder`: an experiment at every rung of a ladder of sizes, and what these say together."""

import argparse

from attnlab.cli.hydra import handed_on, hydra
from attnlab.errors import Refused
from attnlab.sweep.plan import overrides

GROUP, USUAL = "ladder", "two_cores"


def ladder(options: argparse.Namespace) -> int:
    """Runs the experiment at all rungs; returns the exit status of its sweep."""
    given = overrides.keys(options.words)
    if "experiment" not in given:
        raise Refused(f"ladder of what? As in: python -m attnlab ladder +experiment=NAME ladder={USUAL}")
    usual = [] if GROUP in given else [f"{GROUP}={USUAL}"]
    return hydra([*handed_on(options), *options.words, *usual])
