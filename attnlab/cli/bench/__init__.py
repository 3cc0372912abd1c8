"""`python -m attnlab bench NAME`: speed and memory side by side in one run, as ratios, with the raw samples.

Each subject is one file with `OVERRIDES` (its default config), `ROUNDS` and `measure(config, say, rounds)`.
Beside every time stands its roofline: what this machine's own copy bandwidth and matrix products, measured in
the same run, would allow. What does not fit into memory, or is not supported, is a row that says so. Times
are never tested: machines are noisy.
"""

import importlib
import io
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SUBJECTS = ("decode", "train", "attention", "memory")


@dataclass(frozen=True)
class Row:
    """One thing measured: its samples in `unit`, their median and interval, the ratio to the first row of its
    group with its interval. `roofline`, in the same unit, is what the machine would allow; `facts` are exact
    figures beside it (bytes, FLOPs); `note` says why there are no samples.
    """

    group: str
    name: str
    unit: str
    samples: list[float]
    median: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    roofline: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True)
class Bench:
    """What was measured, under which conditions, and the rows; in a group the first is what the others are
    compared with.
    """

    subject: str
    conditions: Mapping[str, Any]
    rows: Sequence[Row]


def rows(
    group: str,
    samples: Mapping[str, Sequence[float]],
    unit: str,
    rooflines: Mapping[str, float] | None = None,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[Row]:
    """Medians with exact intervals; ratios of medians with a bootstrap over interleaved blocks of two. Names
    in `notes` without samples become rows too.
    """
    from attnlab.stats import median_interval, ratio_of_medians

    made, first = [], next(iter(samples.values()), None)
    for name, values in samples.items():
        middle = median_interval(values)
        ratio = ratio_of_medians(_blocks(values), _blocks(first or values))
        made.append(
            Row(
                group, name, unit, list(values), middle.estimate, middle.low, middle.high,
                ratio.estimate, ratio.low, ratio.high, (rooflines or {}).get(name),
                (facts or {}).get(name, {}), (notes or {}).get(name),
            )
        )  # fmt: skip
    missing = [name for name in notes or {} if name not in samples]
    return made + [Row(group, name, unit, [], note=(notes or {})[name]) for name in missing]


def exact(group: str, name: str, unit: str, value: float, first: float, **facts: Any) -> Row:
    """A figure that is counted, not measured: it has no interval."""
    return Row(group, name, unit, [value], value, None, None, value / first, facts=facts)


def survey(
    works: Mapping[str, Callable[[], float]], rounds: int, say: Callable[[str], None]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Interleaved samples of the works that can be done here, and why the others cannot."""
    from attnlab.measure.timing import interleave

    notes: dict[str, str] = {}
    for name, work in works.items():
        note = attempt(work)
        if note is not None:
            notes[name] = note
    able = {name: work for name, work in works.items() if name not in notes}
    return (interleave(able, rounds, say, warm_up=False) if able else {}), notes


def attempt(work: Callable[[], Any]) -> str | None:
    """Does it once; None, or why it cannot be done: unsupported, or out of memory."""
    import torch

    from attnlab.attention.contracts import Unsupported

    try:
        work()
    except Unsupported as error:
        return str(error)
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and not any(said in str(error) for said in ("can't allocate memory", "out of memory")):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return "out of memory"
    return None


def conditions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Where and with what it was measured."""
    import torch

    from attnlab.model.build import device_kind, device_of

    return {
        "device": device_kind(device_of(config)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "model": {key: config["model"][key] for key in ("dim", "n_layers", "n_heads", "ffn_width")},
        "length": config["data"]["length"],
        "batch": config["data"]["batch_size"],
        "dtype": config["trainer"]["precision"],
    }


def main(arguments: Sequence[str]) -> int:
    """bench NAME [threads=N] [rounds=N] [overrides] [--json]."""
    from attnlab.errors import Refused, nearest

    names = [argument for argument in arguments if "=" not in argument and not argument.startswith("-")]
    if len(names) != 1 or names[0] not in SUBJECTS:
        given = names[0] if names else "nothing"
        raise Refused(f"bench {given}: name one of {', '.join(SUBJECTS)}{nearest(given, SUBJECTS)}")
    unknown = [argument for argument in arguments if argument.startswith("-") and argument != "--json"]
    if unknown:
        raise Refused(f"bench knows --json, not {unknown[0]}")
    own = {"threads": 1, "rounds": 0}
    for key in own:
        for argument in arguments:
            if argument.startswith(f"{key}="):
                own[key] = _positive(argument)
    overrides = [word for word in arguments if "=" in word and word.partition("=")[0] not in own]
    subject = importlib.import_module(f"attnlab.cli.bench.{names[0]}")
    config = composed([*subject.OVERRIDES, *overrides])
    import torch

    torch.set_num_threads(own["threads"])
    bench = subject.measure(config, _say, own["rounds"] or subject.ROUNDS)
    print(json.dumps(asdict(bench)) if "--json" in arguments else table(bench))
    return 0


def _positive(argument: str) -> int:
    from attnlab.errors import Refused

    value = argument.partition("=")[2]
    if not value.isdecimal() or int(value) < 1:
        raise Refused(f"{argument}: it must be a whole number of at least 1")
    return int(value)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved config of a run with these overrides."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from attnlab.config import CONF, register_resolvers

    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        found = OmegaConf.to_container(
            compose("config", overrides=list(overrides)), resolve=True, throw_on_missing=True
        )
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def table(bench: Bench) -> str:
    """The rows for a terminal: a table per group, and the conditions."""
    from rich.console import Console
    from rich.table import Table

    text = io.StringIO()
    console = Console(width=130, file=text)
    for group in dict.fromkeys(row.group for row in bench.rows):
        shown = Table(title=group, title_justify="left")
        for heading in ("", "median", "95 % interval", "roofline", "ratio", "95 % interval", "beside"):
            shown.add_column(heading, justify="left" if heading in ("", "beside") else "right")
        for row in (row for row in bench.rows if row.group == group):
            beside = row.note or ", ".join(f"{key} {_short(value)}" for key, value in row.facts.items())
            shown.add_row(
                row.name,
                "-" if row.median is None else f"{_short(row.median)} {row.unit}",
                _range(row.low, row.high),
                "-" if row.roofline is None else _short(row.roofline),
                "-" if row.ratio is None else f"{row.ratio:.3f}",
                _range(row.ratio_low, row.ratio_high),
                beside,
            )
        console.print(shown)
    console.print(f"bench {bench.subject}: {dict(bench.conditions)}")
    return text.getvalue()


def _blocks(values: Sequence[float]) -> list[Sequence[float]]:
    return [values[n : n + 2] for n in range(0, len(values), 2)]


def _short(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 1000
        else (f"{value:,.0f}" if isinstance(value, float) else str(value))
    )


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_short(low)} to {_short(high)}"
