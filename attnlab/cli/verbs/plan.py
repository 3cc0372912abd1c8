"""`plan`, `status` and `ladder`: preview of a command, state of its runs, all sizes of a ladder."""

import argparse

from attnlab.cli.hydra_runner import extract_hydra_flags, list_config_dirs, run_hydra
from attnlab.cli.own_options import format_own_option
from attnlab.cli.verbs.list import list_experiments
from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.sweep.plan import overrides

LADDER_GROUP = "ladder"
DEFAULT_LADDER = "two_cores"


def print_plan(options: argparse.Namespace) -> int:
    """Print a command's plan without training."""
    return _run_with_show("plan_json" if options.json else "plan", options)


def print_status(options: argparse.Namespace) -> int:
    """Print the state of a command's runs; with `--watch`, update until all have ended."""
    if options.watch and options.json:
        raise InvalidConfig("status: --watch refreshes a table and --json prints once: choose one")
    return _run_with_show("watch" if options.watch else "status_json" if options.json else "status", options)


def run_ladder(options: argparse.Namespace) -> int:
    """Run the experiment at all ladder sizes and return the exit status of its sweep."""
    options.words = expand_experiment_name(options)
    override_by_key = overrides.index_by_key(options.words)
    if "experiment" not in override_by_key:
        raise InvalidConfig(
            "ladder needs an experiment, as in python -m attnlab ladder +experiment=NAME "
            f"ladder={DEFAULT_LADDER}"
        )
    default_ladder = [] if LADDER_GROUP in override_by_key else [f"{LADDER_GROUP}={DEFAULT_LADDER}"]
    return run_hydra([*extract_hydra_flags(options), *options.words, *default_ladder])


def _run_with_show(view: str, options: argparse.Namespace) -> int:
    if not options.words:
        verb = "plan" if view.startswith("plan") else "status"
        raise InvalidConfig(
            f"{verb} needs an experiment or overrides, as in python -m attnlab {verb} +experiment=NAME"
        )
    return run_hydra(
        [*extract_hydra_flags(options), f"++sweep.show={view}", *expand_experiment_name(options)]
    )


def expand_experiment_name(options: argparse.Namespace) -> list[str]:
    """Return the words of a verb, with +experiment=NAME in place of a bare experiment name.

    Raises:
        InvalidConfig: A bare word is no experiment, or not the only one.
    """
    names = [word for word in options.words if "=" not in word and not word.startswith("~")]
    if not names:
        return list(options.words)
    folders = list_config_dirs(extract_hydra_flags(options))
    known_names = list_experiments(folders)
    for name in names:
        if name not in known_names:
            hint = format_own_option("experiment", name, folders)
            hint = hint or f"{format_suggestions(name, known_names)}: see python -m attnlab list"
            raise InvalidConfig(f"{name}: unknown experiment{hint}")
    words = [f"+experiment={word}" if word in names else word for word in options.words]
    experiments = [word for word in words if word.startswith("+experiment=")]
    if len(experiments) > 1:
        raise InvalidConfig(f"{' '.join(experiments)}: a command takes one experiment: remove the others")
    return words
