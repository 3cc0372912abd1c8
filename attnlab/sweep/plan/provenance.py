"""Where a report comes from: command, code, packages, device, and what was declared."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import attnlab
from attnlab.store import fingerprint
from attnlab.store.schema import RunRecord
from attnlab.sweep.plan import overrides

HOME = Path(attnlab.__file__).parent.parent
DIFF_LIMIT = 100_000  # characters of uncommitted changes that a report carries
PACKAGES = ("torch", "pytorch-lightning", "hydra-core", "numpy", "scipy", "datasets", "wandb")


def provenance(
    arguments: Sequence[str],
    declared: Mapping[str, Any],
    changed: Sequence[str],
    device: str,
    records: Sequence[RunRecord],
) -> dict[str, Any]:
    """Plain values only. `declaration_sha256` is of what the file says; `date` is the runs' own. The command
    is what `sweep.command` says: `compare` hands on another line than the one that was typed.
    """
    commit, dirty = git()
    return {
        "command": typed(arguments),
        "commit": commit,
        "dirty": dirty,
        "dirty_diff": _ask("diff", "HEAD")[:DIFF_LIMIT] if dirty else None,
        "packages": packages(),
        "device": f"cpu ({os.cpu_count()} cores)" if device == "cpu" else device,
        "date": max((record.started[:10] for record in records if record.started), default=None),
        "declared": dict(declared),
        "declaration_sha256": fingerprint.digest(declared, 64),
        "changed": list(changed),
    }


def typed(arguments: Sequence[str]) -> str:
    """The line that was typed."""
    return overrides.text(arguments, "sweep.command") or shlex.join(["python", "-m", "attnlab", *arguments])


def packages() -> dict[str, str]:
    """Versions of what decides results, from installed metadata: nothing is imported."""
    versions = {"attnlab": attnlab.__version__}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git() -> tuple[str | None, bool | None]:
    """Commit of attnlab's checkout and whether it was edited; (None, None) where there is no git."""
    try:
        if "site-packages" in HOME.parts:
            return None, None
        return _ask("rev-parse", "HEAD"), bool(_ask("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _ask(*words: str) -> str:
    # Asking must not refresh the index: on a full disk, git would leave the user's checkout locked.
    command = ["git", "--no-optional-locks", "-C", str(HOME), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
