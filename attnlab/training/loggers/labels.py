"""What a run is called in a logger: its group, its tags, its config. The same names in each of them."""

import re
from collections.abc import Mapping
from typing import Any

from attnlab.store.schema import RunSpec

PROJECT = "attnlab"  # in W&B, where nothing names another
TOKENS = "tokens"  # seen in training so far: the x-axis
_NO_NAME = ("experiment", "seed", "size", "logger", "ladder", "paths", "hydra", "sweep", "arms")


def labels(spec: RunSpec) -> dict[str, Any]:
    """Grouped by the first experiment that trains it, in config what decides its result, `axes` (the option
    chosen of each group, as in `axes.heads`), arm, experiment, size, commit and versions.
    """
    use = spec.use
    origin = {
        "axes": use.axes,
        "arm": spec.arm,
        "experiment": use.experiment,
        "size": use.axes.get("size"),
        "commit": use.commit,
        "versions": spec.identity.get("versions", {}),
    }
    return {
        "id": spec.id,
        "group": use.experiment,
        "job_type": spec.arm,
        "name": f"{spec.arm if use.experiment else _named(spec)}/seed={spec.seed}",
        "tags": [tag for tag in (use.experiment, spec.arm) if tag],
        "config": {**spec.identity.get("config", {}), "seed": spec.seed, **origin},
    }


def flat(run: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of what has a group, tags and a config in no other place."""
    tags = {"group": run.get("group"), "tags": ", ".join(run.get("tags") or ())}
    return {"id": run["id"], "name": run["name"], **tags, **(run.get("config") or {})}


def folders(name: str | None) -> list[str]:
    """A name as the names of folders: what is no letter, digit or one of `_.=+ ~-` becomes `_`."""
    head, slash, tail = (name or "").rpartition("/")
    parts = [head, tail] if slash else [tail]
    return [re.sub(r"[^\w.=+ ~-]", "_", part).lstrip(".")[:120] for part in parts if part.strip(".")]


def _named(spec: RunSpec) -> str:
    """By what its command sets, but for what makes no other variant; its arm where that is nothing."""
    words = [
        word.lstrip("+")
        for word in spec.overrides
        if word.lstrip("+").split("=")[0].split(".")[0] not in _NO_NAME
    ]
    return " ".join(words) or spec.arm
