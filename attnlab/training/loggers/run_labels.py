"""Names, groups, tags and config of a run in its loggers, the same in each of them."""

import re
from collections.abc import Mapping
from typing import Any

from attnlab.store.run_schema import RunConfig

DEFAULT_PROJECT = "attnlab"  # W&B project if none is configured
TOKENS_METRIC = "tokens"  # tokens seen in training, the x-axis
_UNNAMED_KEYS = ("experiment", "seed", "size", "logger", "ladder", "paths", "hydra", "sweep", "arms")


def make_run_labels(spec: RunConfig) -> dict[str, Any]:
    """Return the labels of a run.

    The group is the first experiment that trains it. The config holds the keys that decide its result, `axes`
    (the option chosen in each group, as in `axes.heads`), arm, experiment, size, commit and versions.
    """
    use = spec.use
    provenance = {
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
        "name": f"{spec.arm if use.experiment else _make_run_name(spec)}/seed={spec.seed}",
        "tags": [tag for tag in (use.experiment, spec.arm) if tag],
        "config": {**spec.identity.get("config", {}), "seed": spec.seed, **provenance},
    }


def flatten_labels(run_labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels as hyperparameters, for loggers without groups, tags and configs."""
    tags = {"group": run_labels.get("group"), "tags": ", ".join(run_labels.get("tags") or ())}
    return {"id": run_labels["id"], "name": run_labels["name"], **tags, **(run_labels.get("config") or {})}


def to_folder_names(name: str | None) -> list[str]:
    """Split a name into folder names: characters other than letters, digits and `_.=+ ~-` become `_`."""
    head, slash, tail = (name or "").rpartition("/")
    parts = [head, tail] if slash else [tail]
    return [re.sub(r"[^\w.=+ ~-]", "_", part).lstrip(".")[:120] for part in parts if part.strip(".")]


def _make_run_name(spec: RunConfig) -> str:
    """Return the command's overrides that define a variant, or the arm if there are none."""
    words = [
        word.lstrip("+")
        for word in spec.overrides
        if word.lstrip("+").split("=")[0].split(".")[0] not in _UNNAMED_KEYS
    ]
    return " ".join(words) or spec.arm
