"""Where a report comes from: command, code, packages, device, and what was declared."""

import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import attnlab
from attnlab.sweep import semantic

PACKAGES = ("torch", "pytorch-lightning", "hydra-core", "numpy", "scipy", "datasets", "wandb")


def provenance(
    arguments: Sequence[str], declared: Mapping[str, Any], changed: Sequence[str], device_kind: str
) -> dict[str, Any]:
    """Plain values only. `declaration` is the sha256 of what the experiment's file says."""
    commit, dirty = git()
    return {
        "command": shlex.join(["python", "-m", "attnlab", *arguments]),
        "commit": commit,
        "dirty": dirty,
        "packages": packages(),
        "device": device_kind,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "declared": dict(declared),
        "declaration": semantic.digest(declared, 64),
        "changed": list(changed),
    }


def packages() -> dict[str, str]:
    """Versions of what decides results, from installed metadata: nothing is imported."""
    found = {"attnlab": attnlab.__version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git() -> tuple[str | None, bool | None]:
    """Commit of attnlab's checkout and whether it was edited; (None, None) where there is no git."""
    home = Path(attnlab.__file__).parent

    def ask(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(home), *words], capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout.strip()

    try:
        if "site-packages" in home.parts:
            return None, None
        return ask("rev-parse", "HEAD"), bool(ask("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None
