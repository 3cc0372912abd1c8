"""The command line of a sweep, read with Hydra's own grammar: seeds, swept keys, plain overrides.

`seed=0,1` and `seed=range(5)` name the seeds of one report; any other swept key multiplies the reports.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from omegaconf import OmegaConf

from attnlab.errors import Refused

HOW = ("paths", "sweep", "logger", "hydra")  # a command is carried out, and nothing of what it asks
NEUTRAL = ("experiment", "texts", "ladder", *HOW)  # these change no report
MOST_RUNS = 10_000  # of a command; more were never meant


@dataclass(frozen=True)
class Command:
    """`points` holds one list of plain overrides per report; `seeds` is None where none was named."""

    seeds: tuple[int, ...] | None
    points: tuple[tuple[str, ...], ...]


def parse(lines: Sequence[str], loader: Any = None) -> list[Override]:
    """The overrides. Refused where one gives a key an empty mapping: Hydra merges it, and nothing changes."""
    if loader is None:
        return [_parse(line) for line in lines]
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(lines))
    for override in parsed:
        _refuse_empty(override)
    return parsed


@cache
def _parse(line: str) -> Override:
    [override] = OverridesParser.create().parse_overrides([line])
    _refuse_empty(override)
    return override


def _refuse_empty(override: Override) -> None:
    key = override.key_or_group
    if not (override.is_add() or override.is_delete()) and override.value() == {}:
        raise Refused(
            f"{override.input_line}: an empty mapping changes nothing of {key}; remove a key of it with "
            f"~{key}.NAME"
        )


def read(arguments: Sequence[str], loader: Any = None) -> Command:
    """Split a command line into its seeds and the override lists of its reports."""
    seeds: tuple[int, ...] | None = None
    axes: list[list[str]] = []
    given = parse(arguments, loader)
    _refuse_twice(given)
    for override in given:
        if override.key_or_group == "seed":
            seeds = _seeds(override)
        elif override.key_or_group == "leakage":
            raise Refused(f"{override.input_line}: only an experiment file says which arms see future tokens")
        elif override.is_interval_sweep():
            raise Refused(f"{override.input_line}: an interval has no end; list the values, or use range()")
        elif override.key_or_group == "logger" and override.is_sweep_override():
            several = str(override.input_line).partition("=")[2]
            raise Refused(f"{override.input_line}: a comma sweeps; for all at once: 'logger=[{several}]'")
        elif override.is_sweep_override():
            key = override.get_key_element()
            axes.append([f"{key}={value}" for value in _few(override.sweep_string_iterator(), override)])
        else:
            axes.append([str(override.input_line)])
    if (count := len(seeds or [0]) * math.prod(map(len, axes))) > MOST_RUNS:
        raise Refused(f"the swept keys ask for {count} runs, and a command has at most {MOST_RUNS}")
    return Command(seeds, tuple(itertools.product(*axes)))


def _refuse_twice(given: Sequence[Override]) -> None:
    """Refused where a key has two values in one command: the first would be dropped in silence. How it is
    carried out may be said again at the end of a line, as everywhere in Hydra.
    """
    lines: dict[str, str] = {}
    for override in given:
        line = str(override.input_line)
        key = override.key_or_group
        if lines.setdefault(key, line) != line and key.split(".")[0] not in HOW:
            several = f"{key}={lines[key].partition('=')[2]},{line.partition('=')[2]}"
            raise Refused(
                f"{key} is set twice, {lines[key]} and {line}: leave one out, or sweep both: {several}"
            )


def parted(points: Sequence[Sequence[str]]) -> tuple[list[str], dict[str, list[str]]]:
    """What all points of a command have in common, and by what differs the rest of each: `gqa rope`, or with
    the keys where a value could be that of another key. Refused where two points are one.
    """
    varied = [len(set(values)) > 1 for values in zip(*points, strict=True)]
    common = [line for line, differs in zip(points[0], varied, strict=True) if not differs]
    own = [[line for line, differs in zip(point, varied, strict=True) if differs] for point in points]
    if len({tuple(lines) for lines in own}) < len(own):
        raise Refused("two values of a swept key are the same: name each value once")
    columns = [{_short(line) for line in lines} for lines in zip(*own, strict=True)]
    unclear = len(set().union(*columns)) < sum(map(len, columns))
    names = [" ".join(line.lstrip("+") if unclear else _short(line) for line in lines) for lines in own]
    return common, dict(zip(names, own, strict=True))


def _short(line: str) -> str:
    """Of what a command sets, the option of a group alone; of another key its last part too: gqa, dim=64."""
    key, _, value = line.lstrip("+").partition("=")
    return value if value.isidentifier() and "." not in key else f"{key.rpartition('.')[2]}={value}"


def _few(swept: Iterable[Any], override: Override) -> list[Any]:
    """What is swept; Refused where there is more of it than can be meant, without going to its end."""
    found = list(itertools.islice(swept, MOST_RUNS + 1))
    if len(found) > MOST_RUNS:
        raise Refused(
            f"{override.input_line}: more values than a command can mean, which is {MOST_RUNS}: name fewer"
        )
    return found


def _seeds(override: Override) -> tuple[int, ...]:
    value: Any = override.value()
    given = value if isinstance(value, list) else [value]
    values = _few(override.sweep_iterator() if override.is_sweep_override() else given, override)
    if not values or any(type(seed) is not int for seed in values):
        raise Refused(f"{override.input_line}: seeds are integers, as in seed=0,1,2 or seed=range(5)")
    return tuple(values)


def keys(lines: Sequence[str]) -> dict[str, str]:
    """The config key or group that each override touches, and the override itself."""
    return {override.key_or_group: str(override.input_line) for override in parse(lines)}


def refuse_hidden(given: Sequence[str], arm: str, arm_overrides: Sequence[str]) -> None:
    """An arm's overrides come last, so one of the command line for the same key would be silently lost. What
    chooses an option of a group neither loses nor hides the keys within, which Hydra sets after it.
    """
    for key, line in keys(given).items():
        for other, arm_line in keys(arm_overrides).items():
            within = key.startswith(other + ".") and not _chooses(arm_line)
            around = other.startswith(key + ".") and not _chooses(line)
            if key == other or within or around:
                raise Refused(
                    f"{line} would be hidden by arm {arm}, which sets {arm_line}: "
                    f"drop it, or leave the arm out with arms=[...]"
                )


def _chooses(line: str) -> bool:
    """Whether it names an option: a key that has others within it has no word as its value."""
    return isinstance(parse([line])[0].value(), str)


def seeded(base: dict[str, Any], point: Sequence[str], seeds: Sequence[int] | None) -> dict[str, Any]:
    """With the seeds of the command line, where it names others."""
    if seeds is None or list(seeds) == base.get("seeds"):
        return base
    looks = {} if "looks" in keys(point) else {"looks": "anytime"}  # nobody knows who looked when
    return {**base, "seeds": list(seeds), **looks}


def quoted(text: str) -> str:
    """A text as a value of an override: Hydra's grammar and OmegaConf's interpolation give it back."""
    plain = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    return QuotedString(plain, Quote.single).with_quotes()


def text(lines: Sequence[str], key: str) -> str | None:
    """The text that overrides give a key, as the config has it; None where they do not set it."""
    values = [override.value() for override in parse(lines) if override.key_or_group == key]
    return str(OmegaConf.create([values[-1]])[0]) if values else None


def root(key: str) -> str:
    """The group or key at the top that a key is within."""
    return re.split(r"[./@]", key)[0]


def changes(
    point: Sequence[str], seeds: Sequence[int] | None, choices: Mapping[str, Any], declared: Mapping[str, Any]
) -> tuple[str, ...]:
    """The overrides of the command line that make this report another than the declared one, by its choices
    and values.
    """
    left = []
    for override in parse(point):
        key = override.key_or_group
        same = choices[key] if key in choices else leaf(declared, key)
        if root(key) not in NEUTRAL and not (same is not None and same == override.value()):
            left.append(str(override.input_line))
    if seeds is not None and list(seeds) != declared.get("seeds"):
        left.append(f"seeds={list(seeds)}")
    return tuple(left)


def leaf(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
