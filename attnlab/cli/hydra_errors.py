"""One-line messages for Hydra's exceptions, with suggestions of similar names."""

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf

from attnlab.cli.own_options import format_own_option
from attnlab.errors import format_suggestions
from attnlab.store import fingerprint
from attnlab.store.atomic_files import read_text_or_empty
from attnlab.store.experiment_schema import Experiment
from attnlab.sweep.plan.overrides import get_root_key, quote_value

SYNONYMS = {"learning_rate": "lr", "hidden_size": "dim"}  # usual names of keys that share no word with them


def format_hydra_error(error: BaseException, config_dirs: Sequence[Path]) -> str:
    """Format an exception of Hydra or OmegaConf as one line, prefixed with its notes, which hold the place.

    `config_dirs` are searched for similar names.
    """
    return "".join(getattr(error, "__notes__", [])) + _explain_message(error, config_dirs)


def _explain_message(error: BaseException, config_dirs: Sequence[Path]) -> str:
    text = _join_causes(error)
    if isinstance(error, OverrideParseException):
        return _explain_syntax(str(error.override), str(error.message))
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return explain_missing_option(str(error.missing_cfg_file), error.options or (), config_dirs)
    if match := re.search(r"Could not override '([^']+)'\. No match in the defaults list", text):
        return _explain_unselected_group(match[1], config_dirs)
    if match := re.search(r"Could not override '([^']+)'", text):
        key = match[1]
        if inner := re.search(rf"full_key: ({re.escape(key)}\.\S+)", text):
            key = inner[1]  # a key of a mapping: optim={lrr: 1}
        if key in Experiment.model_fields:
            return (
                f"{key} is a key of experiments: add +experiment=NAME, or write +{key}=... if the "
                "experiment does not set it"
            )
        known_keys = _list_override_keys(config_dirs)
        how = f"write +{key}=..."
        if key in known_keys:
            return f"{key} is a key of an option that is not selected: select it, or {how}"
        suggestions = format_key_suggestions(key, known_keys)
        return f"unknown key {key}{suggestions or f': to add it, {how}'}"
    if match := re.search(r"Missing mandatory value: .*?full_key: (\S+)", text, re.DOTALL):
        return f"{match[1]} has no value: set {match[1]}=..."
    if re.search(r"attention\.heads\.n_kv_heads' not found.*?full_key: model\.layers", text, re.DOTALL):
        return (
            "layers with shared keys and values (layers=cross_layer, yoco) read those of grouped heads, but "
            "the selected heads have no n_kv_heads: they store a latent or factors, which a layer expands "
            "with weights of its own; use heads=mha, gqa, mqa, single or tied_qkv, or layers=uniform"
        )
    if match := re.search(r"^(Type|Value)Error raised while resolving.*?full_key: (\S+)", text, re.DOTALL):
        message = "give a number" if match[1] == "Type" else _extract_user_lines(text)
        return _explain_interpolation(match[2], message, config_dirs)
    return _extract_user_lines(text)


def _explain_syntax(line: str, message: str) -> str:
    """Explain an override that Hydra's grammar rejects, and show it quoted as the shell and Hydra read it."""
    key, equals, value = line.partition("=")
    if re.search(r"\s[+~]*[\w./@:-]+=", value):
        return f"{line}: several overrides in one argument: remove the quotes around them"
    if equals and re.fullmatch(r"[+~]*[\w./@:-]+", key):
        quoted = quote_value(value) if set(value) & set('"\\$') else f'"{value}"'
        example = shlex.quote(f"{key}={quoted}")
        is_open = any(value.count(pair[0]) != value.count(pair[1]) for pair in ("[]", "{}", "()"))
        problem = "a bracket is not closed" if is_open else "Hydra reads some of these characters as syntax"
        return f"{line}: {problem}: to mean the characters themselves, quote the value, as in {example}"
    reason = f" ({_extract_user_lines(message)})" if equals else ""
    return f"{line}: not an override: write key=value{reason}"


def _join_causes(error: BaseException) -> str:
    """Join the messages of an exception and its causes: Hydra's informative message is often in the cause."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < 4:
        if str(cause).strip():
            parts.append(str(cause).strip())
        cause = (
            cause.__cause__ if cause.__cause__ or not isinstance(cause, HydraException) else cause.__context__
        )
    return "\n".join(parts) or type(error).__name__


def _extract_user_lines(text: str) -> str:
    """Join the informative lines of a message into one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    noise_prefixes = ("full_key:", "object_type=", "See ", "reference_type")
    informative = [line for line in lines if not line.startswith(noise_prefixes)]
    keys = [line for line in lines if line.startswith("full_key:")]
    return " ".join([*informative[:3], *(f"({key})" for key in keys[:1])])


def _explain_interpolation(key: str, message: str, config_dirs: Sequence[Path]) -> str:
    """Name the keys that a failed interpolation refers to, since the user set those."""
    group, _, last = key.rpartition(".")
    files = (path for folder in config_dirs for path in (folder / group.replace(".", "/")).glob("*.yaml"))
    yaml_text = "\n".join(map(read_text_or_empty, files))
    lines = re.findall(rf"^{re.escape(last)}:(.*)", yaml_text, re.MULTILINE)
    referenced_keys = sorted({other for line in lines for other in re.findall(r"\$\{([\w.]+)\}", line)})
    return (
        f"{key} is computed from {' and '.join(referenced_keys)}: {message}" if referenced_keys else message
    )


def explain_missing_option(config_path: str, options: Iterable[str], config_dirs: Sequence[Path]) -> str:
    """Explain that `config_path`, as in `heads/gqaa`, does not exist; similar names come from `options`."""
    path = config_path.removeprefix("data/")
    if path != config_path and os.path.exists(path):
        usage = f"hub data.name={path}" if os.path.isdir(path) else f"text data.path={path}"
        return f"data={path} is no option, but it exists here: use data={usage}"
    group, _, option = config_path.rpartition("/")
    known_options = list(options) or [
        path.stem for folder in config_dirs for path in (folder / group).glob("*.yaml")
    ]
    if not group:
        return f"unknown config file {option}{format_suggestions(option, known_options)}"
    hint = format_own_option(group, option, config_dirs) or format_suggestions(option, known_options)
    return f"{group} has no option {option}{hint}"


def _explain_unselected_group(group: str, config_dirs: Sequence[Path]) -> str:
    if any(any((folder / group).glob("*.yaml")) for folder in config_dirs):
        return f"{group} has no default option: write +{group}=... to select one"
    return f"unknown group {group}{format_suggestions(group, _list_override_keys(config_dirs))}"


def format_key_suggestions(name: str, known_keys: set[str]) -> str:
    """Format a hint for an unknown key: those with its last part, similar ones, or those with its words."""
    last = name.rpartition(".")[2]
    last = SYNONYMS.get(last, last)
    other_roots = {*Experiment.model_fields, "protocol", "measurement"}  # set by experiment files
    leaves = {key: key.rpartition(".")[2] for key in known_keys if get_root_key(key) not in other_roots}
    keys = sorted([key for key in leaves if leaves[key] == last], key=lambda key: (key.count("."), key))
    if not keys and not difflib.get_close_matches(name, leaves, cutoff=0.8):
        words = {word for word in last.split("_") if len(word) > 1}
        scores = {
            key: (max(map(len, common)), difflib.SequenceMatcher(None, last, leaf).ratio())
            for key, leaf in leaves.items()
            if (common := words & {*leaf.split("_")})
        }
        keys = sorted(scores, key=lambda key: (scores[key], key), reverse=True)
    return f" (nearest: {', '.join(keys[:3])})" if keys else format_suggestions(name, known_keys)


def _list_override_keys(config_dirs: Sequence[Path]) -> set[str]:
    """List every override target: groups, and the dotted keys of all yaml files."""
    names: set[str] = set()
    for folder in config_dirs:
        for path in folder.rglob("*.yaml"):
            group = str(path.parent.relative_to(folder)).replace("/", ".")
            if group != ".":
                names.add(group.replace(".", "/"))
            text = read_text_or_empty(path)
            package = "" if group == "." or "@package _global_" in text else group + "."
            names |= {f"{package}{key}" for key in _flatten_keys(text)}
    # Launcher schemas are defined in Python, not in a yaml file.
    schemas = ConfigStore.instance().repo.get("hydra", {}).get("launcher", {})
    nodes = [schema.node for schema in schemas.values() if hasattr(schema, "node")]
    return names | {f"hydra.launcher.{key}" for node in nodes for key in node}


def _flatten_keys(text: str) -> set[str]:
    try:
        loaded: Any = OmegaConf.to_container(OmegaConf.create(text))
    except Exception:  # composing a broken file raises its own error
        return set()
    if not isinstance(loaded, dict):
        return set()
    for key in ("defaults", "hydra", "overrides", "arm_overrides", "size_overrides"):
        loaded.pop(key, None)
    return {key for key, _ in fingerprint.flatten_config(loaded) if key}
