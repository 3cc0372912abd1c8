"""Command lines of sweeps, parsed with Hydra's own grammar: seeds, swept keys, plain overrides.

`seed=0,1` and `seed=range(5)` name the seeds of one report; any other swept key multiplies the reports.
"""

import decimal
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from omegaconf import OmegaConf

from attnlab.errors import InvalidConfig
from attnlab.store.fingerprint import flatten_config

EXECUTION_GROUPS = ("paths", "sweep", "logger", "hydra")  # how a command runs, no part of the comparison
REPORT_NEUTRAL_GROUPS = ("experiment", "corpora", "ladder", *EXECUTION_GROUPS)  # change no report
STEPS_KEY = "trainer.max_steps"
MAX_NESTING = 40  # levels of an override; Hydra's parser is recursive
MAX_RUNS = 10_000  # per command; more are a mistake


@dataclass(frozen=True)
class Command:
    """A parsed command line: one list of plain overrides per report, and the seeds (None if not named)."""

    seeds: tuple[int, ...] | None
    points: tuple[tuple[str, ...], ...]


def parse_overrides(lines: Sequence[str], loader: Any = None) -> list[Override]:
    """Parse override lines.

    Raises:
        InvalidConfig: One has no key, gives a key an empty mapping, which Hydra would merge without a change,
            or is nested too deeply.
    """
    for line in lines:
        _reject_deep_nesting(line)
    if loader is None:
        return [_parse_line(line) for line in lines]
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(lines))
    for override in parsed:
        _validate_override(override)
    return parsed


@cache
def _parse_line(line: str) -> Override:
    [override] = OverridesParser.create().parse_overrides([line])
    _validate_override(override)
    return override


def _reject_deep_nesting(line: str) -> None:
    key, _, value = line.partition("=")
    brackets = itertools.accumulate((c in "[{(") - (c in "]})") for c in value)
    if key.count(".") >= MAX_NESTING or max(brackets, default=0) > MAX_NESTING:
        raise InvalidConfig(
            f"{line[:40]}...: nested more than {MAX_NESTING} levels deep: write it with fewer levels"
        )


def _validate_override(override: Override) -> None:
    key = override.key_or_group
    if not key.strip("/.") or override.package == "":
        raise InvalidConfig(f"{override.input_line}: names no key: write key=value")
    if not (override.is_add() or override.is_delete()) and override.value() == {}:
        raise InvalidConfig(
            f"{override.input_line}: an empty mapping does not change {key}; remove a key with ~{key}.NAME"
        )


def parse_command(arguments: Sequence[str], loader: Any = None) -> Command:
    """Split a command line into its seeds and the override lists of its reports.

    Raises:
        InvalidConfig: A key is set twice, cannot be swept, or is only allowed in an experiment file; or the
            command asks for more than `MAX_RUNS` runs.
    """
    seeds: tuple[int, ...] | None = None
    axes: list[list[str]] = []
    overrides = parse_overrides(arguments, loader)
    reject_duplicate_keys(overrides)
    for override in overrides:
        if override.key_or_group == "seed":
            seeds = _parse_seeds(override)
        elif override.key_or_group == "leakage":
            raise InvalidConfig(f"{override.input_line}: only an experiment file can set leakage; remove it")
        elif override.is_interval_sweep():
            raise InvalidConfig(
                f"{override.input_line}: an interval cannot be swept; list the values, or use range()"
            )
        elif override.key_or_group == "logger" and override.is_sweep_override():
            values = str(override.input_line).partition("=")[2]
            raise InvalidConfig(
                f"{override.input_line}: a comma sweeps the options; to use them together, write "
                f"'logger=[{values}]'"
            )
        elif override.is_sweep_override():
            key = override.get_key_element()
            axes.append(
                [f"{key}={value}" for value in _limit_values(override.sweep_string_iterator(), override)]
            )
        else:
            axes.append([str(override.input_line)])
    if (count := len(seeds or [0]) * math.prod(map(len, axes))) > MAX_RUNS:
        raise InvalidConfig(
            f"the swept keys need {count} runs, but the limit is {MAX_RUNS} per command: sweep fewer values"
        )
    return Command(seeds, tuple(itertools.product(*axes)))


def reject_duplicate_keys(overrides: Sequence[Override], can_sweep: bool = True) -> None:
    """Check that no key has two values, of which Hydra would silently drop the first.

    A mapping sets each key within it. Keys of `EXECUTION_GROUPS` may be repeated; the last value counts, as
    everywhere in Hydra. `can_sweep`: whether both values could be swept instead.
    """
    lines: dict[str, str] = {}
    for override in overrides:
        line = str(override.input_line)
        leaves = flatten_config(override.value(), override.key_or_group)
        for key in (override.key_or_group, *(leaf for leaf, _ in leaves)):
            first = lines.setdefault(key, line)
            if first != line and key.split(".")[0] not in EXECUTION_GROUPS:
                is_same_key = first.partition("=")[0] == line.partition("=")[0]
                swept = f", or sweep both with {first},{line.partition('=')[2]}"
                remedy = swept if can_sweep and is_same_key else ""
                raise InvalidConfig(f"{key} is set twice, {first} and {line}: remove one{remedy}")


def split_common_overrides(points: Sequence[Sequence[str]]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the overrides that all points share, and a mapping of names to the other ones of each point.

    A name abbreviates its overrides, as in `gqa rope`; it has the keys if a value could belong to several.

    Raises:
        InvalidConfig: Two points are equal.
    """
    varied = [len(set(values)) > 1 for values in zip(*points, strict=True)]
    common = [line for line, varies in zip(points[0], varied, strict=True) if not varies]
    distinct = [[line for line, varies in zip(point, varied, strict=True) if varies] for point in points]
    if len({tuple(lines) for lines in distinct}) < len(distinct):
        raise InvalidConfig("two values of a swept key are the same: list each value once")
    columns = [{_abbreviate_override(line) for line in lines} for lines in zip(*distinct, strict=True)]
    is_ambiguous = len(set().union(*columns)) < sum(map(len, columns))
    names = [
        " ".join(line.lstrip("+") if is_ambiguous else _abbreviate_override(line) for line in lines)
        for lines in distinct
    ]
    return common, dict(zip(names, distinct, strict=True))


def _abbreviate_override(line: str) -> str:
    """Return the bare option of a group (gqa), or the value with the last part of its key (dim=64)."""
    key, _, value = line.lstrip("+").partition("=")
    return value if value.isidentifier() and "." not in key else f"{key.rpartition('.')[2]}={value}"


def _limit_values(swept: Iterable[Any], override: Override) -> list[Any]:
    """Return the swept values, without iterating past `MAX_RUNS` of them.

    Raises:
        InvalidConfig: There are more, or a range has no end.
    """
    try:
        values = list(itertools.islice(swept, MAX_RUNS + 1))
    except decimal.InvalidOperation as error:  # range(1,nan)
        raise InvalidConfig(f"{override.input_line}: give the range in finite numbers") from error
    if len(values) > MAX_RUNS:
        raise InvalidConfig(f"{override.input_line}: more than {MAX_RUNS} values: sweep fewer")
    return values


def _parse_seeds(override: Override) -> tuple[int, ...]:
    value: Any = override.value()
    raw_seeds = value if isinstance(value, list) else [value]
    values = _limit_values(override.sweep_iterator() if override.is_sweep_override() else raw_seeds, override)
    if not values or any(type(seed) is not int or not 0 <= seed < 2**63 for seed in values):
        raise InvalidConfig(
            f"{override.input_line}: seeds must be integers of at least 0, as in seed=0,1,2 or seed=range(5)"
        )
    return tuple(values)


def index_by_key(lines: Sequence[str]) -> dict[str, str]:
    """Map the config key or group of each override to its line."""
    return {override.key_or_group: str(override.input_line) for override in parse_overrides(lines)}


def reject_hidden_overrides(lines: Sequence[str], arm: str, arm_overrides: Sequence[str]) -> None:
    """Check that no override of the command line is hidden by an arm.

    An arm's overrides come last, so a command line override of the same key would be silently lost. Selecting
    an option of a group neither hides nor loses the keys within it, which Hydra sets afterwards.
    """
    for key, line in index_by_key(lines).items():
        for arm_key, arm_line in index_by_key(arm_overrides).items():
            is_within = key.startswith(arm_key + ".") and not _is_option_choice(arm_line)
            is_around = arm_key.startswith(key + ".") and not _is_option_choice(line)
            if key == arm_key or is_within or is_around:
                raise InvalidConfig(
                    f"{line} would be hidden by arm {arm}, which sets {arm_line}: remove it, or "
                    "exclude the arm with arms=[...]"
                )


def _is_option_choice(line: str) -> bool:
    """Whether the override selects a group's option: a key with keys within it has no string as value."""
    return isinstance(parse_overrides([line])[0].value(), str)


def apply_seeds(base: dict[str, Any], point: Sequence[str], seeds: Sequence[int] | None) -> dict[str, Any]:
    """Return the config with the seeds of the command line, if it names others.

    Analyses are then anytime-valid unless the command line sets `looks`: the schedule no longer holds.

    Raises:
        InvalidConfig: The command line has both `seed` and `seeds`.
    """
    if seeds is None or list(seeds) == base.get("seeds"):
        return base
    lines = index_by_key(point)
    if "seeds" in lines and base["seeds"] is not None:
        raise InvalidConfig(f"{lines['seeds']}: seed= replaces it: remove one of the two", ("seeds",))
    looks = {} if "looks" in lines else {"looks": "anytime"}
    return {**base, "seeds": list(seeds), **looks}


def quote_value(text: str) -> str:
    """Quote a string so that Hydra's grammar and OmegaConf's interpolation give it back unchanged."""
    return quote_yaml_text(escape_interpolations(text))


def quote_yaml_text(text: str) -> str:
    """Quote a string so that Hydra's grammar gives it back as a yaml file has it, with its interpolations."""
    return QuotedString(text, Quote.single).with_quotes()


def escape_interpolations(text: str) -> str:
    """Escape a string so that OmegaConf gives it back unchanged."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def get_override_text(lines: Sequence[str], key: str) -> str | None:
    """Return the text that the overrides give a key, as the config has it; None if they do not set it."""
    values = [override.value() for override in parse_overrides(lines) if override.key_or_group == key]
    return str(OmegaConf.create([values[-1]])[0]) if values else None


def get_root_key(key: str) -> str:
    """Return the top-level group or key that contains a key."""
    return re.split(r"[./@]", key)[0]


def find_changes(
    point: Sequence[str],
    seeds: Sequence[int] | None,
    declared_seeds: Any,
    is_neutral: Callable[[Override], bool],
) -> tuple[str, ...]:
    """Return the overrides that make this report differ from the declared experiment.

    `is_neutral` returns whether the experiment has an override's value anyway.
    """
    changes = [
        str(override.input_line)
        for override in parse_overrides(point)
        if get_root_key(override.key_or_group) not in REPORT_NEUTRAL_GROUPS and not is_neutral(override)
    ]
    if seeds is not None and list(seeds) != declared_seeds:
        changes.append(f"seeds={list(seeds)}")
    return tuple(changes)


def get_leaf(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, or None if there is none."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
