"""Where a report comes from: command, code, packages, device, and what was declared."""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import attnlab
from attnlab.report.schema import Provenance
from attnlab.store import fingerprint
from attnlab.store.schema import RunRecord
from attnlab.sweep.plan import overrides

HOME = Path(attnlab.__file__).parent.parent
DIFF_LIMIT = 100_000  # characters of uncommitted changes that a report carries
_MULTIRUN = ("--multirun", "-m")  # what every command is, typed or not
_SHOWN = re.compile(r"\+*sweep\.show=")  # a verb's, which another line makes of the same sweep
_COMMAND = re.compile(r"\+*sweep\.command=")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS", re.IGNORECASE)
PACKAGES = ("torch", "pytorch-lightning", "hydra-core", "numpy", "scipy", "datasets", "wandb")


def provenance(
    line: Sequence[str],
    declared: Mapping[str, Any],
    changed: Sequence[str],
    device: str,
    records: Sequence[RunRecord],
) -> Provenance:
    """Plain values only. `declaration_sha256` is of what the file says; `date` is the runs' own. The command
    is what `sweep.command` says: `compare` hands on another line than the one that was typed.
    """
    commit, dirty = git()
    return Provenance(
        command=typed(line),
        commit=commit,
        dirty=dirty,
        dirty_diff=_ask("diff", "HEAD")[:DIFF_LIMIT] if dirty else None,
        packages=packages(),
        device=f"cpu ({os.cpu_count()} cores)" if device == "cpu" else device,
        date=max((record.started[:10] for record in records if record.started), default=None),
        declared=dict(declared),
        declaration_sha256=fingerprint.digest(declared, 64) if declared else None,
        changed=list(changed),
    )


def typed(line: Sequence[str]) -> str:
    """The line that was typed, Hydra's own flags included, as a shell takes it: with the variables of the
    environment that it names, but for what is secret by its name.
    """
    said = overrides.text([word for word in line if _COMMAND.match(word)], "sweep.command")
    words = [word for word in line if word not in _MULTIRUN and not _SHOWN.match(word)]
    command = said or shlex.join(["python", "-m", "attnlab", *words])
    named = dict.fromkeys(re.findall(r"\$\{oc\.env:\s*(\w+)", command))
    given = {name: os.environ[name] for name in named if name in os.environ}
    settings = [
        f"{name}={'...' if _SECRET.search(name) else shlex.quote(value)} " for name, value in given.items()
    ]
    return f"{''.join(settings)}{command}"


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
