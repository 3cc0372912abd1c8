"""`python -m attnlab bench NAME`: speed and memory side by side in one run, as ratios, with the raw samples.

Each subject is one file with `OVERRIDES` (its default config) and `measure(config) -> Bench`. Times are
never tested: machines are noisy.
"""

import importlib
import io
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SUBJECTS = ("train",)


@dataclass(frozen=True)
class Row:
    """One thing measured: its samples in `unit`, median and interval, and the ratio to the first row with
    its interval.
    """

    name: str
    unit: str
    samples: list[float]
    median: float
    low: float | None
    high: float | None
    ratio: float
    ratio_low: float | None
    ratio_high: float | None


@dataclass(frozen=True)
class Bench:
    """What was measured, under which conditions, and the rows; the first row is what the others are
    compared with.
    """

    subject: str
    conditions: Mapping[str, Any]
    rows: Sequence[Row]


def rows(samples: Mapping[str, Sequence[float]], unit: str) -> list[Row]:
    """Medians with exact intervals; ratios of medians with a bootstrap over interleaved blocks of two."""
    from attnlab.stats import median_interval, ratio_of_medians

    first = next(iter(samples.values()))
    made = []
    for name, values in samples.items():
        middle = median_interval(values)
        blocks = [values[n : n + 2] for n in range(0, len(values), 2)]
        ratio = ratio_of_medians(blocks, [first[n : n + 2] for n in range(0, len(first), 2)])
        made.append(
            Row(
                name,
                unit,
                list(values),
                middle.estimate,
                middle.low,
                middle.high,
                ratio.estimate,
                ratio.low,
                ratio.high,
            )
        )
    return made


def conditions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Where and with what it was measured."""
    import torch

    return {
        "device": "cpu" if not torch.cuda.is_available() else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "model": {key: config["model"][key] for key in ("dim", "n_layers", "n_heads", "ffn_width")},
        "length": config["data"]["length"],
        "batch": config["data"]["batch_size"],
    }


def main(arguments: Sequence[str]) -> int:
    """bench NAME [threads=N] [overrides] [--json]."""
    from attnlab.errors import Refused, nearest

    names = [argument for argument in arguments if "=" not in argument and not argument.startswith("-")]
    if len(names) != 1 or names[0] not in SUBJECTS:
        given = names[0] if names else "nothing"
        raise Refused(f"bench {given}: name one of {', '.join(SUBJECTS)}{nearest(given, SUBJECTS)}")
    unknown = [argument for argument in arguments if argument.startswith("-") and argument != "--json"]
    if unknown:
        raise Refused(f"bench knows --json, not {unknown[0]}")
    threads = [argument for argument in arguments if argument.startswith("threads=")]
    overrides = [argument for argument in arguments if "=" in argument and argument not in threads]
    subject = importlib.import_module(f"attnlab.bench.{names[0]}")
    config = _compose([*subject.OVERRIDES, *overrides])
    import torch

    torch.set_num_threads(int(threads[-1].removeprefix("threads=")) if threads else 1)
    bench = subject.measure(config, lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(asdict(bench)) if "--json" in arguments else table(bench))
    return 0


def _compose(overrides: Sequence[str]) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from attnlab.config import CONF, register_resolvers

    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        found = OmegaConf.to_container(
            compose("config", overrides=list(overrides)), resolve=True, throw_on_missing=True
        )
    assert isinstance(found, dict)
    return found


def table(bench: Bench) -> str:
    """The rows for a terminal: a sentence, then a table."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(
        title=f"bench {bench.subject}",
        title_justify="left",
        caption=str(dict(bench.conditions)),
        caption_justify="left",
    )
    for heading in ("", "median", "95 % interval", "ratio to the first row", "95 % interval"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for row in bench.rows:
        shown.add_row(
            row.name,
            f"{row.median:.3g} {row.unit}",
            _range(row.low, row.high),
            f"{row.ratio:.3f}",
            _range(row.ratio_low, row.ratio_high),
        )
    text = io.StringIO()
    Console(width=120, file=text).print(shown)
    return text.getvalue()


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.3g} to {high:.3g}"
