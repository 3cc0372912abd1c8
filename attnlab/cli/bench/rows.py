"""Samples to rows: medians, intervals, ratios."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.cli.bench import Row
from attnlab.stats import median_interval, ratio_of_medians


def rows(
    group: str,
    samples: Mapping[str, Sequence[float]],
    unit: str,
    rooflines: Mapping[str, float] | None = None,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[Row]:
    """Medians with exact intervals; ratios of medians with a bootstrap over interleaved blocks of two. Names
    in `notes` without samples become rows too; other names without samples do not.
    """
    samples = {name: values for name, values in samples.items() if values}
    measured = []
    first = next(iter(samples.values()), None)
    for name, values in samples.items():
        middle = median_interval(values)
        ratio = ratio_of_medians(_blocks(values), _blocks(first or values))
        measured.append(
            Row(
                group, name, unit, list(values), middle.estimate, middle.low, middle.high,
                ratio.estimate, ratio.low, ratio.high, (rooflines or {}).get(name),
                (facts or {}).get(name, {}), (notes or {}).get(name),
            )
        )  # fmt: skip
    missing = [name for name in notes or {} if name not in samples]
    return measured + [Row(group, name, unit, [], note=(notes or {})[name]) for name in missing]


def exact(group: str, name: str, unit: str, value: float, first: float, **facts: Any) -> Row:
    """A figure that is counted, not measured: it has no interval."""
    return Row(group, name, unit, [value], value, None, None, value / first, facts=facts)


def _blocks(values: Sequence[float]) -> list[Sequence[float]]:
    """Two samples each, as a round of A B B A takes them; of an odd number of samples, one each."""
    size = 1 if len(values) % 2 else 2
    return [values[n : n + size] for n in range(0, len(values), size)]
