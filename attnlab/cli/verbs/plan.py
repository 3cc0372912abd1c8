"""`plan` and `status`: what a command would train, and where its runs stand now; `ladder`: an experiment at
every rung of a ladder of sizes.
"""

import argparse

from attnlab.cli.hydra import handed_on, hydra
from attnlab.errors import Refused
from attnlab.sweep.plan import overrides

GROUP, USUAL = "ladder", "two_cores"


def plan(options: argparse.Namespace) -> int:
    """The plan of a command, with nothing trained."""
    return _show("plan", options)


def status(options: argparse.Namespace) -> int:
    """How the runs of a command stand now; `--watch` until all have ended."""
    return _show("watch" if options.watch else "status", options)


def ladder(options: argparse.Namespace) -> int:
    """Runs the experiment at all rungs; returns the exit status of its sweep."""
    given = overrides.keys(options.words)
    if "experiment" not in given:
        raise Refused(f"ladder of what? As in: python -m attnlab ladder +experiment=NAME ladder={USUAL}")
    usual = [] if GROUP in given else [f"{GROUP}={USUAL}"]
    return hydra([*handed_on(options), *options.words, *usual])


def _show(kind: str, options: argparse.Namespace) -> int:
    if not options.words:
        verb = "plan" if kind == "plan" else "status"
        raise Refused(f"{verb} what? As in: python -m attnlab {verb} +experiment=NAME")
    return hydra([*handed_on(options), f"++sweep.show={kind}", *options.words])
