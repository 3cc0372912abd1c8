"""Interface of the module that trains the runs of a sweep: attnlab's own, or the one in `sweep.train`."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from attnlab.errors import InvalidConfig
from attnlab.store.guards.trust import DEFAULT_TRAINER

TRAINER_FUNCTIONS = ("check", "run", "measure_again", "device_kind", "verify")


class Trainer(Protocol):
    """A module with these functions; none may be missing.

    It may also have `count_resource(config, name)`, which returns one entry of `check`'s estimate if that is
    cheaper to compute alone. Budget matching uses it.
    """

    def check(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the estimate of a run before it starts, as fields of `run_schema.RunEstimate`."""
        ...

    def run(self, folder: Path) -> None:
        """Train the run that `folder/spec.json` describes, and write its result last."""
        ...

    def measure_again(self, folder: Path) -> None:
        """Repeat, from the final weights, the measurements whose code changed since a run finished."""
        ...

    def device_kind(self, config: Mapping[str, Any]) -> str:
        """Return "cpu", or the name of the GPU that a run would train on here."""
        ...

    def verify(self, config: Mapping[str, Any]) -> Sequence[Any]:
        """Test the invariants of attention; each outcome has `invariant`, `status` and `detail`."""
        ...


def get_trainer_name(config: Mapping[str, Any]) -> str:
    """Return the name of the module that trains a run."""
    return str((config.get("sweep") or {}).get("train") or DEFAULT_TRAINER)


def load_trainer(name: str) -> Trainer:
    """Import a trainer module.

    Raises:
        InvalidConfig: There is no such module, or it lacks a function.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but an import of its own is missing
        raise InvalidConfig(
            f"sweep.train={name}: module {error.name} not found: give a module that can be imported"
        ) from None
    for function in TRAINER_FUNCTIONS:
        if not callable(getattr(module, function, None)):
            raise InvalidConfig(
                f"sweep.train={name} has no function {function}: a trainer needs "
                f"{', '.join(TRAINER_FUNCTIONS)}"
            )
    return cast(Trainer, module)
