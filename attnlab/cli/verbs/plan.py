"""`plan` and `status`: what a command would train, and where its runs stand now."""

from collections.abc import Sequence

from attnlab.cli.hydra import hydra
from attnlab.errors import Refused


def plan(arguments: Sequence[str]) -> int:
    """The plan of a command, with nothing trained."""
    return _show("plan", arguments)


def status(arguments: Sequence[str]) -> int:
    """How the runs of a command stand now; `--watch` until all have ended."""
    watch = "--watch" in arguments
    return _show("watch" if watch else "status", [word for word in arguments if word != "--watch"])


def _show(kind: str, arguments: Sequence[str]) -> int:
    if not arguments:
        raise Refused(f"{kind} what? As in: python -m attnlab {kind} +experiment=NAME")
    overrides = (i for i, word in enumerate(arguments) if "=" in word and not word.startswith("-"))
    at = next(overrides, len(arguments))  # argparse wants overrides in a row
    return hydra([*arguments[:at], f"++sweep.show={kind}", *arguments[at:]])
