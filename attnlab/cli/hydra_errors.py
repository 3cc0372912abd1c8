"""What Hydra's exceptions come to: one line that says what is wrong, and which names come near."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf

from attnlab.errors import nearest
from attnlab.store import fingerprint


def one_line(error: BaseException, config_dirs: Sequence[Path]) -> str:
    """One line for an exception that Hydra or OmegaConf raised. `config_dirs`: where names may come from.

    Its notes, which say where it happened, stand before it.
    """
    return "".join(getattr(error, "__notes__", [])) + _told(error, config_dirs)


def _told(error: BaseException, config_dirs: Sequence[Path]) -> str:
    text = _joined(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not an override; write key=value ({_first(error.message)})"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing(str(error.missing_cfg_file), error.options or (), config_dirs)
    if match := re.search(r"Could not override '([^']+)'\. No match in the defaults list", text):
        return _unselected(match[1], config_dirs)
    if match := re.search(r"Could not override '([^']+)'", text):
        return f"no key {match[1]}{nearest(match[1], _keys(config_dirs))}; to add it, write +{match[1]}=..."
    if match := re.search(r"Missing mandatory value: .*?full_key: (\S+)", text, re.DOTALL):
        return f"{match[1]} has no value: set {match[1]}=..."
    if match := re.search(r"^(?:Type|Value)Error raised while resolving.*?full_key: (\S+)", text, re.DOTALL):
        return _unresolved(match[1], _first(text), config_dirs)
    return _first(text)


def _joined(error: BaseException) -> str:
    """The texts of an exception and of what caused it: Hydra hides the telling one in the cause."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < 4:
        if str(cause).strip():
            parts.append(str(cause).strip())
        cause = (
            cause.__cause__ if cause.__cause__ or not isinstance(cause, HydraException) else cause.__context__
        )
    return "\n".join(parts) or type(error).__name__


def _first(text: str) -> str:
    """The lines that speak to a user, on one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    noise = ("full_key:", "object_type=", "See ", "reference_type")
    telling = [line for line in lines if not line.startswith(noise)]
    keys = [line for line in lines if line.startswith("full_key:")]
    return " ".join([*telling[:3], *(f"({key})" for key in keys[:1])])


def _unresolved(key: str, said: str, config_dirs: Sequence[Path]) -> str:
    """A value that is worked out of others: these are what somebody wrote."""
    group, _, last = key.rpartition(".")
    files = (path for folder in config_dirs for path in (folder / group.replace(".", "/")).glob("*.yaml"))
    said_there = "\n".join(map(_text, files))
    lines = re.findall(rf"^{re.escape(last)}:(.*)", said_there, re.MULTILINE)
    others = sorted({other for line in lines for other in re.findall(r"\$\{([\w.]+)\}", line)})
    return f"{key} is worked out of {' and '.join(others)}: {said}" if others else said


def _missing(wanted: str, options: Iterable[str], config_dirs: Sequence[Path]) -> str:
    group, _, option = wanted.rpartition("/")
    known = list(options) or [path.stem for folder in config_dirs for path in (folder / group).glob("*.yaml")]
    if not group:
        return f"no config file {option}{nearest(option, known)}"
    return f"{group} has no option {option}{nearest(option, known)}"


def _unselected(group: str, config_dirs: Sequence[Path]) -> str:
    if any(any((folder / group).glob("*.yaml")) for folder in config_dirs):
        return f"{group} is not selected by default: write +{group}=... to add it"
    return f"no group {group}{nearest(group, _keys(config_dirs))}"


def _keys(config_dirs: Sequence[Path]) -> set[str]:
    """Everything that may be overridden: groups, and the dotted keys of all yaml files."""
    names: set[str] = set()
    for folder in config_dirs:
        for path in folder.rglob("*.yaml"):
            group = str(path.parent.relative_to(folder)).replace("/", ".")
            if group != ".":
                names.add(group.replace(".", "/"))
            text = _text(path)
            package = "" if group == "." or "@package _global_" in text else group + "."
            names |= {f"{package}{key}" for key in _flat(text)}
    # What the launchers may be told: their schemas are in Python, not in a yaml file.
    schemas = ConfigStore.instance().repo.get("hydra", {}).get("launcher", {})
    nodes = [schema.node for schema in schemas.values() if hasattr(schema, "node")]
    return names | {f"hydra.launcher.{key}" for node in nodes for key in node}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _flat(text: str) -> set[str]:
    try:
        loaded: Any = OmegaConf.to_container(OmegaConf.create(text))
    except Exception:  # a broken file has its own message when it is composed
        return set()
    if not isinstance(loaded, dict):
        return set()
    for key in ("defaults", "hydra", "arm_overrides", "size_overrides"):
        loaded.pop(key, None)
    return {key for key, _ in fingerprint.flatten(loaded) if key}
