"""The options that distinguish the arms of a report, in a few words each: `heads=gqa n_kv_heads=2`.

A pure function of report.json: the overrides of each arm, and the config keys in which the arms differ.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

import yaml

from attnlab.report.schema import Report
from attnlab.store.fingerprint import flatten_config

Option = tuple[str, str]  # full key and value
MAX_LENGTH = 80  # characters of an arm's options on the page
MAX_TIE_OPTIONS = 4  # config keys that tell two arms with the same options apart
INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")
OPERATORS = {"times": "\N{MULTIPLICATION SIGN}", "divide": "/"}
MEASUREMENT_GROUPS = ("measurement", "measure")  # what is measured, no part of an arm's design
HIDDEN_LEAVES = ("_partial_", "seed")


def describe_arm_options(report: Report) -> dict[str, str]:
    """Describe each arm by the options that not all arms share: config groups, then keys, rarest first.

    Interpolations become numbers, or the experiment's own words; classes their short names. Measurements
    appear only where arms have nothing else that differs, and after them the config keys that differ.
    """
    arms = report.experiment.arms
    overrides = report.reproduce.preregistered.get("arm_overrides") or {}
    resolved = {
        (row.key, cell.arm): cell.value for row in report.config.rows for cell in row.cells if cell.present
    }
    parsed = {
        arm: [
            option for override in overrides.get(arm) or [] for option in _parse(str(override), arm, resolved)
        ]
        for arm in arms
    }
    counts = Counter(option for options in parsed.values() for option in options)
    values_by_key = defaultdict(set)
    for key, value in counts:
        values_by_key[key].add(value)

    def is_shown(option: Option) -> bool:
        key, n_arms = option[0], counts[option]
        if key.partition(".")[0] not in MEASUREMENT_GROUPS:
            return n_arms < len(arms)
        is_detail = key.startswith("measurement.") and ".metrics." not in f"{key}."
        return is_detail and (n_arms == 1 or len(values_by_key[key]) > 1)

    shown = {arm: list(filter(is_shown, parsed[arm])) for arm in arms}
    measured = {arm: [option for option in parsed[arm] if option[0] == "measurement"] for arm in arms}
    _separate_equal_arms(shown, lambda group: measured)
    _separate_equal_arms(shown, lambda group: _list_differing_keys(report, group))
    counts = Counter(option for options in shown.values() for option in options)
    names = _shorten_keys(key for key, _ in counts)
    return {
        arm: " ".join(
            f"{names[key]}={value}"
            for key, value in sorted(
                dict.fromkeys(options), key=lambda option: ("." in option[0], counts[option])
            )
        )
        for arm, options in shown.items()
    }


def cut_options(text: str) -> str:
    """Cut options after the last one within MAX_LENGTH characters."""
    if len(text) <= MAX_LENGTH:
        return text
    return f"{text[:MAX_LENGTH].rpartition(' ')[0] or text[:MAX_LENGTH]} …"


def _parse(override: str, arm: str, resolved: dict[tuple[str, str], Any]) -> list[Option]:
    """Parse `key=value` to options; a mapping with a `_target_` to one for its class and one per leaf."""
    key, _, text = override.lstrip("+").partition("=")
    if "${" in text and "${seed}" not in text and (key, arm) in resolved:
        return [(key, _format_value(resolved[key, arm]))]
    while (words := INTERPOLATION.sub(_name_interpolation, text)) != text:
        text = words
    if not text.startswith("{"):
        return [(key, text.strip("'\""))]
    try:
        leaves = dict(flatten_config(yaml.safe_load(text), key))
    except yaml.YAMLError:
        return [(key, text)]
    return list(_format_leaves(leaves.items()))


def _name_interpolation(match: re.Match[str]) -> str:
    """Name an interpolation: `${protocol.int8}` by its last word, `${times:4,${model.dim}}` as a product."""
    resolver, _, operands = match[1].rpartition(":")
    if resolver:
        return OPERATORS.get(resolver, f" {resolver} ").join(operands.split(","))
    return operands.rpartition(".")[2]


def _format_leaves(leaves: Iterable[tuple[str, Any]]) -> Iterable[Option]:
    """Format config leaves as options; a class or function by its short name."""
    for path, value in leaves:
        parent, _, name = path.rpartition(".")
        if name in ("_target_", "path") and "." in str(value):
            if not str(value).startswith("hydra."):
                yield parent, str(value).rpartition(".")[2]
        elif name not in (*HIDDEN_LEAVES, value):  # `lengths: ${protocol.lengths}` says nothing
            yield path, _format_value(value)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _separate_equal_arms(
    shown: dict[str, list[Option]], find_options: Callable[[list[str]], dict[str, list[Option]]]
) -> None:
    """Add to arms with the same shown options those of `find_options` that not all of them share."""
    groups = defaultdict(list)
    for arm, options in shown.items():
        groups[frozenset(options)].append(arm)
    for group in groups.values():
        if len(group) > 1:
            added = find_options(group)
            counts = Counter(option for arm in group for option in added[arm])
            for arm in group:
                shown[arm] += [option for option in added[arm] if counts[option] < len(group)]


def _list_differing_keys(report: Report, group: list[str]) -> dict[str, list[Option]]:
    """List the config keys in which the arms of a group differ: the first few, with each arm's values."""
    rows: list[dict[str, Any]] = []
    for row in report.config.rows:
        values = {cell.arm: cell.value for cell in row.cells if cell.present and cell.arm in group}
        is_equal = len(values) == len(group) and len({_format_value(value) for value in values.values()}) == 1
        if row.key.partition(".")[0] not in (*MEASUREMENT_GROUPS, "protocol") and values and not is_equal:
            rows.append({"key": row.key, "values": values})
    options = {
        arm: list(_format_leaves((row["key"], row["values"][arm]) for row in rows if arm in row["values"]))
        for arm in group
    }
    keys = list(dict.fromkeys(key for arm in group for key, _ in options[arm]))[:MAX_TIE_OPTIONS]
    return {arm: [option for option in options[arm] if option[0] in keys] for arm in group}


def _shorten_keys(keys: Iterable[str]) -> dict[str, str]:
    """Shorten dotted keys to as many last parts as it takes to tell them apart; for a seed two or more."""
    parts = {key: key.split(".") for key in keys}

    def shorten(key: str) -> str:
        def is_ambiguous(n: int) -> bool:
            return sum(other[-n:] == parts[key][-n:] for other in parts.values()) > 1

        n = 1 + sum(1 for _ in takewhile(is_ambiguous, range(1, len(parts[key]))))
        n = max(n, 2 if parts[key][-1] == "seed" else 1)
        return ".".join(parts[key][-n:])

    return {key: shorten(key) for key in parts}
