"""Provenance of a report: command, code, packages, device and preregistration."""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attnlab
from attnlab.report.schema import Provenance
from attnlab.store import fingerprint
from attnlab.store.run_schema import RunResult
from attnlab.sweep.plan import overrides

HOME = Path(attnlab.__file__).parent.parent
DIFF_LIMIT = 100_000  # characters of uncommitted changes in a report
MULTIRUN_FLAGS = ("--multirun", "-m")  # implied in every command
_SHOW_OVERRIDE = re.compile(r"\+*sweep\.(show|work)=")  # set by a verb; the sweep is the same without it
_COMMAND_OVERRIDE = re.compile(r"\+*sweep\.command=")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS", re.IGNORECASE)
PACKAGES = ("torch", "pytorch-lightning", "hydra-core", "numpy", "scipy", "datasets", "wandb")


def collect_provenance(
    line: Sequence[str],
    declared: Mapping[str, Any],
    changed: Sequence[str],
    device: str,
    records: Sequence[RunResult],
) -> Provenance:
    """Return the provenance of a report, in plain values.

    `preregistration_sha256` is the digest of the declared experiment; `date` is the start of the latest run.
    The command is `sweep.command` if set: `compare` passes on another line than the one that was typed.
    """
    commit, dirty = get_git_state()
    return Provenance(
        command=format_command(line),
        commit=commit,
        dirty=dirty,
        dirty_diff=_run_git("diff", "HEAD")[:DIFF_LIMIT] if dirty else None,
        packages=list_package_versions(),
        device=f"cpu ({os.cpu_count()} cores)" if device == "cpu" else device,
        date=max((record.started[:10] for record in records if record.started), default=None),
        preregistered=dict(declared),
        preregistration_sha256=fingerprint.compute_digest(declared, 64) if declared else None,
        changed=list(changed),
    )


def format_command(line: Sequence[str]) -> str:
    """Return the line that was typed, Hydra's own flags included, quoted for a shell.

    Environment variables that the line refers to come first with their values, except those whose name marks
    a secret.
    """
    replacement = overrides.get_override_text(
        [word for word in line if _COMMAND_OVERRIDE.match(word)], "sweep.command"
    )
    words = [word for word in line if word not in MULTIRUN_FLAGS and not _SHOW_OVERRIDE.match(word)]
    command = replacement or shlex.join(["python", "-m", "attnlab", *words])
    variables = dict.fromkeys(re.findall(r"\$\{oc\.env:\s*(\w+)", command))
    values = {name: os.environ[name] for name in variables if name in os.environ}
    settings = [
        f"{name}={'...' if _SECRET_NAME.search(name) else shlex.quote(value)} "
        for name, value in values.items()
    ]
    return f"{''.join(settings)}{command}"


def list_package_versions() -> dict[str, str]:
    """Return the versions of packages that affect results, from installed metadata, without importing any."""
    return {"attnlab": attnlab.__version__} | fingerprint.read_package_versions(PACKAGES)


def get_git_state() -> tuple[str | None, bool | None]:
    """Return the commit of attnlab's checkout and whether it was edited; (None, None) without git."""
    try:
        if "site-packages" in HOME.parts:
            return None, None
        return _run_git("rev-parse", "HEAD"), bool(_run_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _run_git(*words: str) -> str:
    # A query must not refresh the index: on a full disk, git would leave the user's checkout locked.
    command = ["git", "--no-optional-locks", "-C", str(HOME), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
