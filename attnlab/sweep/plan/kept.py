"""What a trainer's `check` answered is kept in the cache: who plans again what was planned needs no torch.

An answer holds for as long as nothing changes that it could depend on: the config, attnlab's code and the
user's that the config reaches, the installed packages, the machine and its devices, the environment, the
files that the config names, and the parent's record. Where one of them cannot be told, nothing is kept.
Refusals are not kept: they end the command anyway, and what they are about (a missing file, a missing GPU)
may change without any of these.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import attnlab
from attnlab.store import answers, fingerprint
from attnlab.store.guards import inputs
from attnlab.store.guards.digests import VOCABULARY
from attnlab.store.source import sources

MANY = 2000  # files below a folder that a config names; with more of them nothing is kept
# of the cache: made of what an answer's name holds
_MADE_HERE = (*get_args(answers.Kind), "corpora", "tokenizers", "tokens")
_DEVICES = ("nvidia*", "nvidia*/*", "kfd", "dri/render*")  # below /dev
# Variables of a terminal, a login or a shell, which a check does not read. All others count: a user's own
# parts may read any, and one too many costs a check, no more.
_SESSION = frozenset({
    "_", "ATTNLAB_COMMAND", "COLORTERM", "COLUMNS", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "GPG_TTY",
    "HISTFILE", "INVOCATION_ID", "JOURNAL_STREAM", "LINES", "LS_COLORS", "OLDPWD", "PROMPT_COMMAND", "PS1",
    "PWD", "SHLVL", "STY", "TERM", "TMUX", "TMUX_PANE", "WAYLAND_DISPLAY", "WINDOWID",
    "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION_ID",
})  # fmt: skip
_SESSIONS = ("GNOME_TERMINAL_", "ITERM_", "KONSOLE_", "SSH_", "TERM_", "VSCODE_", "WT_")  # how others begin


def remembered(config: Mapping[str, Any], module: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `module` answers about a resolved config: as it was kept, else as `ask()` says, which is kept."""
    before = name(config, module)
    kept = None if before is None else answers.kept(config, "checks", before)
    if isinstance(kept, dict):
        return kept
    answer = ask()
    after = name(config, module)  # asking may have put a text into the cache, which the config names
    if after is not None and _survives_json(answer):
        answers.keep(config, "checks", after, answer)
    return answer


def name(config: Mapping[str, Any], module: str) -> str | None:
    """One name for all that an answer could depend on; None where that cannot be told."""
    files = list(islice(_files(config), MANY + 1))
    if len(files) > MANY:
        return None
    settings = {**(config.get("sweep") or {}), "show": None, "command": None}  # `plan` asks what a sweep asks
    asked = {**config, "sweep": settings}
    reached = {module, *fingerprint.targets(config)}
    users = tuple(sorted(user for user in reached if not user.startswith("attnlab.")))  # of ours, all counts
    with suppress(OSError, TypeError, ValueError):  # no working folder; a value that JSON does not have
        return fingerprint.digest([asked, module, _sources(users), surroundings(), files], 32)
    return None


def surroundings() -> list[Any]:
    """What any answer could depend on: code, packages, machine, working folder and environment."""
    return [_code(), _packages(), _machine(), os.getcwd(), _environment()]


def _survives_json(answer: Any) -> bool:
    try:
        return isinstance(answer, dict) and bool(json.loads(json.dumps(answer, allow_nan=False)) == answer)
    except (TypeError, ValueError):
        return False


def _files(config: Mapping[str, Any]) -> Iterator[tuple[str | int, ...]]:
    """The identity of every file that the config names, of those in the folders that it names, and of the
    files that show the parent's vocabulary.
    """
    parent = config.get("parent")
    if isinstance(parent, str) and inputs.is_name(parent):
        folder = Path((config.get("paths") or {}).get("runs") or "runs", parent)
        yield from (identity(folder / name) for name in ("run.json", VOCABULARY))
    named = {key: value for key, value in config.items() if key != "paths"}  # where runs and reports go
    for key, leaf in fingerprint.flatten(named):
        for value in leaf if isinstance(leaf, list) else [leaf]:
            if isinstance(value, str) and value and len(value) < 4096 and "\0" not in value:
                for path in inputs.matching(value) if key == "data.path" else [Path(value)]:
                    yield from _below(path)


def _below(path: Path) -> Iterator[tuple[str | int, ...]]:
    with suppress(OSError):
        if path.is_dir():
            for folder, folders, files in os.walk(path):
                folders[:] = sorted(child for child in folders if child not in _MADE_HERE)
                yield from (identity(Path(folder, file)) for file in sorted(files))
        elif path.exists():
            yield identity(path)


def identity(path: Path) -> tuple[str | int, ...]:
    """Path, size, and the times of the content and of the file itself, which nobody can set."""
    where = os.path.abspath(path)
    try:
        status = path.stat()
    except OSError:  # not there, gone since it was listed, or a link to nothing
        return (where,)
    return where, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@cache
def _sources(names: tuple[str, ...]) -> dict[str, str]:
    return sources(names)


@cache
def _code() -> str:
    """All of attnlab's own source: also what no run's id counts may decide what a check says."""
    digest = hashlib.sha256()
    home = Path(attnlab.__file__).parent
    for file in sorted(home.rglob("*.py")):
        digest.update(f"{file.relative_to(home)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _packages() -> list[str]:
    """Name and version of everything that is installed, from the names of folders: nothing is opened."""
    names = [sys.version]
    for folder in sys.path:
        with suppress(OSError):
            names += [
                entry for entry in os.listdir(folder or ".") if entry.endswith((".dist-info", ".egg-info"))
            ]
    return sorted(names)


@cache
def _machine() -> list[str]:
    """The machine, its memory, and the signs of the devices that torch would see, without asking a driver."""
    signs = [platform.node(), platform.platform(), platform.machine(), *_memory()]
    signs += sorted(str(path) for sign in _DEVICES for path in Path("/dev").glob(sign))
    driver = Path("/proc/driver/nvidia")
    for path in (driver / "version", *sorted(driver.glob("gpus/*/information"))):
        with suppress(OSError):
            signs.append(path.read_text())
    return signs


def _memory() -> list[str]:
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    return [str(os.sysconf(name)) for name in names] if hasattr(os, "sysconf") else []


def _environment() -> list[str]:
    return sorted(
        f"{key}={value}"
        for key, value in os.environ.items()
        if key not in _SESSION and not key.startswith(_SESSIONS)
    )
