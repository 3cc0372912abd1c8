"""Cache of the answers of a trainer's `check`, so that planning the same command again needs no torch.

An answer stays valid while nothing changes that it could depend on: the config, attnlab's code and the
user's code that the config reaches, the installed packages, the machine and its devices, the environment,
the files that the config names, and the parent's result. Nothing is cached if one of them is unknown.
Errors are not cached: they end the command anyway, and their cause (a missing file, a missing GPU) may
change without any of these.
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
from attnlab.store import disk_cache, fingerprint
from attnlab.store.file_names import VOCABULARY_FILE
from attnlab.store.guards import inputs
from attnlab.store.safe_paths import is_plain_name
from attnlab.store.source_digests import hash_sources

MAX_FILES = 2000  # files below the folders that a config names; with more of them nothing is cached
# Skipped below folders that a config names: attnlab's own cache follows from inputs already in the key.
_CACHE_FOLDERS = (*get_args(disk_cache.CacheKind), "corpora", "overlap", "tokenizers", "tokens")
_DEVICE_PATTERNS = ("nvidia*", "nvidia*/*", "kfd", "dri/render*")  # below /dev
# Variables of a terminal, a login or a shell, which no check reads. All others enter the cache key: a user's
# own parts may read any of them, and a needless one costs only a repeated check.
_SESSION_VARIABLES = frozenset({
    "_", "ATTNLAB_CHAIN", "ATTNLAB_COMMAND", "ATTNLAB_EXCLUDED_NODES", "ATTNLAB_TARGETS", "COLORTERM",
    "COLUMNS", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "GPG_TTY", "HISTFILE", "INVOCATION_ID",
    "JOURNAL_STREAM", "LINES", "LS_COLORS", "OLDPWD", "PROMPT_COMMAND", "PS1", "PWD", "SHLVL", "STY", "TERM",
    "TMUX", "TMUX_PANE", "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION_ID",
})  # fmt: skip
_SESSION_PREFIXES = ("GNOME_TERMINAL_", "ITERM_", "KONSOLE_", "SSH_", "TERM_", "VSCODE_", "WT_")


def load_or_run_check(
    config: Mapping[str, Any], module: str, run_check: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the cached answer of `module` about a resolved config, or run the check and cache its answer."""
    key_before = make_cache_key(config, module)
    cached_answer = None if key_before is None else disk_cache.read_cache_entry(config, "checks", key_before)
    if isinstance(cached_answer, dict):
        return cached_answer
    answer = run_check()
    # the check may have written a corpus into the cache folder, which the config names
    key_after = make_cache_key(config, module)
    if key_after is not None and _is_json_stable(answer):
        disk_cache.write_cache_entry(config, "checks", key_after, answer)
    return answer


def make_cache_key(config: Mapping[str, Any], module: str) -> str | None:
    """Return a digest of everything that an answer could depend on; None if that is unknown."""
    files = list(islice(_identify_named_files(config), MAX_FILES + 1))
    if len(files) > MAX_FILES:
        return None
    settings = {
        **(config.get("sweep") or {}),
        "show": None,
        "command": None,
    }  # `plan` checks the same configs as a sweep
    relevant_config = {**config, "sweep": settings}
    modules = {module, *fingerprint.find_target_names(config)}
    sources = hash_sources(sorted(name for name in modules if not name.startswith("attnlab.")))
    with suppress(OSError, TypeError, ValueError):  # no working directory; a value without JSON form
        return fingerprint.compute_digest(
            [relevant_config, module, sources, collect_environment_state(), files], 32
        )
    return None


def collect_environment_state() -> list[Any]:
    """Return the inputs of every answer: code, packages, machine, working directory and environment."""
    return [
        _digest_package_code(),
        _list_installed_packages(),
        _describe_machine(),
        os.getcwd(),
        _list_environment_variables(),
    ]


def _is_json_stable(answer: Any) -> bool:
    """Whether JSON gives the answer back unchanged."""
    try:
        return isinstance(answer, dict) and bool(json.loads(json.dumps(answer, allow_nan=False)) == answer)
    except (TypeError, ValueError):
        return False


def _identify_named_files(config: Mapping[str, Any]) -> Iterator[tuple[str | int, ...]]:
    """Yield the identity of every file that an answer could depend on.

    These are the files that the config names, the files in folders that it names, and the files that
    determine the parent's vocabulary.
    """
    parent = config.get("parent")
    if isinstance(parent, str) and is_plain_name(parent):
        folder = Path((config.get("paths") or {}).get("runs") or "runs", parent)
        yield from (identify_file(folder / name) for name in ("run.json", VOCABULARY_FILE))
    input_config = {key: value for key, value in config.items() if key != "paths"}  # paths are outputs
    for key, text in fingerprint.iterate_possible_paths(input_config):
        is_pattern = key in [f"data.{name}" for name in inputs.DATA_FILE_KEYS]
        for path in inputs.match_data_files(text, key) if is_pattern else [Path(text)]:
            yield from _identify_files_below(path)


def _identify_files_below(path: Path) -> Iterator[tuple[str | int, ...]]:
    with suppress(OSError):
        if path.is_dir():
            for folder, folders, files in os.walk(path):
                folders[:] = sorted(child for child in folders if child not in _CACHE_FOLDERS)
                yield from (identify_file(Path(folder, file)) for file in sorted(files))
        elif path.exists():
            yield identify_file(path)


def identify_file(path: Path) -> tuple[str | int, ...]:
    """Return path, size, and the times of content and inode; nobody can set the last one."""
    absolute_path = os.path.abspath(path)
    try:
        status = path.stat()
    except OSError:  # missing, deleted since it was listed, or a broken link
        return (absolute_path,)
    return absolute_path, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@cache
def _digest_package_code() -> str:
    """Digest all source of attnlab: code outside every run id may still change the answer of a check."""
    digest = hashlib.sha256()
    home = Path(attnlab.__file__).parent
    for file in sorted(home.rglob("*.py")):
        digest.update(f"{file.relative_to(home)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _list_installed_packages() -> list[str]:
    """Return name and version of every installed package, from folder names alone: no file is opened."""
    names = [sys.version]
    for folder in sys.path:
        with suppress(OSError):
            names += [
                entry for entry in os.listdir(folder or ".") if entry.endswith((".dist-info", ".egg-info"))
            ]
    return sorted(names)


@cache
def _describe_machine() -> list[str]:
    """Return the machine, its memory, and signs of the devices that torch would see, without driver calls."""
    signs = [platform.node(), platform.platform(), platform.machine(), *_describe_memory()]
    signs += sorted(str(path) for pattern in _DEVICE_PATTERNS for path in Path("/dev").glob(pattern))
    driver = Path("/proc/driver/nvidia")
    for path in (driver / "version", *sorted(driver.glob("gpus/*/information"))):
        with suppress(OSError):
            signs.append(path.read_text())
    return signs


def _describe_memory() -> list[str]:
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    return [str(os.sysconf(name)) for name in names] if hasattr(os, "sysconf") else []


def _list_environment_variables() -> list[str]:
    return sorted(
        f"{key}={value}"
        for key, value in os.environ.items()
        if key not in _SESSION_VARIABLES and not key.startswith(_SESSION_PREFIXES)
    )
