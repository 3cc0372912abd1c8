"""`plan` and `status`: what a command would train, and where its runs stand now; `ladder`: an experiment at
every rung of a ladder of sizes.
"""

import argparse
from collections.abc import Sequence

from attnlab.cli.hydra import config_dirs, handed_on, hydra
from attnlab.errors import Refused, nearest
from attnlab.sweep.plan import overrides

GROUP = "ladder"
USUAL = "two_cores"


def plan(options: argparse.Namespace) -> int:
    """The plan of a command, with nothing trained."""
    return _show("plan_json" if options.json else "plan", options)


def status(options: argparse.Namespace) -> int:
    """How the runs of a command stand now; `--watch` until all have ended."""
    if options.watch and options.json:
        raise Refused("status: --watch draws a table, --json tells once: name one")
    return _show("watch" if options.watch else "status_json" if options.json else "status", options)


def ladder(options: argparse.Namespace) -> int:
    """Runs the experiment at all rungs; returns the exit status of its sweep."""
    options.words = _experiment(options)
    given = overrides.keys(options.words)
    if "experiment" not in given:
        raise Refused(f"ladder of what? As in: python -m attnlab ladder +experiment=NAME ladder={USUAL}")
    usual = [] if GROUP in given else [f"{GROUP}={USUAL}"]
    return hydra([*handed_on(options), *options.words, *usual])


def _show(kind: str, options: argparse.Namespace) -> int:
    if not options.words:
        verb = "plan" if kind.startswith("plan") else "status"
        raise Refused(f"{verb} what? As in: python -m attnlab {verb} +experiment=NAME")
    return hydra([*handed_on(options), f"++sweep.show={kind}", *_experiment(options)])


def _experiment(options: argparse.Namespace) -> Sequence[str]:
    """The words, of which the name of an experiment alone stands for +experiment=NAME."""
    bare = [word for word in options.words if "=" not in word and word.isidentifier()]
    if not bare:
        return list(options.words)
    folders = config_dirs(handed_on(options))
    names = sorted({path.stem for folder in folders for path in (folder / "experiment").glob("*.yaml")})
    for word in bare:
        if word not in names:
            raise Refused(f"{word}: no experiment of that name{nearest(word, names)}; python -m attnlab list")
    return [f"+experiment={word}" if word in bare else word for word in options.words]
