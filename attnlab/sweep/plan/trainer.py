"""What a sweep asks of the module that trains its runs: attnlab's own, or what `sweep.train` names."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from attnlab.errors import Refused
from attnlab.store.guards.trust import TRAINER

PARTS = ("check", "run", "measure_again", "device_kind", "verify")


class Trainer(Protocol):
    """A module with these functions. None may be missing: what is not asked for is not known to hold.

    It may have a further one, `count_resource(config, name)`: one figure of what `check` returns, where that
    is cheaper alone. Arms are matched by it.
    """

    def check(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is known of a run before it starts, as `schema.Estimate` has it; ValueError where it cannot
        run.
        """
        ...

    def run(self, folder: Path) -> None:
        """Trains the run that `folder/spec.json` describes and writes its record last."""
        ...

    def measure_again(self, folder: Path) -> None:
        """Takes again, from the final weights, what other code measured in a finished run."""
        ...

    def device_kind(self, config: Mapping[str, Any]) -> str:
        """ "cpu", or the name of the card that a run would train on here."""
        ...

    def verify(self, config: Mapping[str, Any]) -> Sequence[Any]:
        """What the laws of attention say of it: outcomes with `law`, `status` and `detail`."""
        ...


def trainer_of(config: Mapping[str, Any]) -> str:
    """The name of the module that trains a run."""
    return str((config.get("sweep") or {}).get("train") or TRAINER)


def trainer(name: str) -> Trainer:
    """The module, imported. Refused where there is none, or it lacks a part."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and something that it imports is not
        raise Refused(
            f"sweep.train={name}: there is no module {error.name}; name one that can be imported"
        ) from None
    for part in PARTS:
        if not callable(getattr(module, part, None)):
            raise Refused(f"sweep.train={name} has no function {part}; a trainer has {', '.join(PARTS)}")
    return cast(Trainer, module)
