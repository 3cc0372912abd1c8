"""Conversion of samples to rows with medians, intervals and ratios."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.stats import estimate_median, estimate_ratio_of_medians
from benchmarks import BenchRow


def build_rows(
    group: str,
    samples: Mapping[str, Sequence[float]],
    unit: str,
    rooflines: Mapping[str, float] | None = None,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[BenchRow]:
    """Build rows of medians with exact intervals and of ratios with bootstrap intervals.

    The bootstrap resamples interleaved blocks of two. Names without samples become rows only if they have a
    note.
    """
    samples = {name: values for name, values in samples.items() if values}
    rows = []
    reference = next(iter(samples.values()), None)
    for name, values in samples.items():
        median = estimate_median(values)
        ratio = estimate_ratio_of_medians(
            _group_paired_samples(values), _group_paired_samples(reference or values)
        )
        rows.append(
            BenchRow(
                group, name, unit, list(values), median.estimate, median.low, median.high,
                ratio.estimate, ratio.low, ratio.high, (rooflines or {}).get(name),
                (facts or {}).get(name, {}), (notes or {}).get(name),
            )
        )  # fmt: skip
    names_without_samples = [name for name in notes or {} if name not in samples]
    return rows + [
        BenchRow(group, name, unit, [], note=(notes or {})[name]) for name in names_without_samples
    ]


def build_counted_row(
    group: str, name: str, unit: str, value: float, reference: float, **facts: Any
) -> BenchRow:
    """Build the row of a counted number, which has no interval."""
    return BenchRow(group, name, unit, [value], value, None, None, value / reference, facts=facts)


def _group_paired_samples(values: Sequence[float]) -> list[Sequence[float]]:
    """Group samples in pairs, as a round of A B B A yields them; an odd number of samples one by one."""
    size = 1 if len(values) % 2 else 2
    return [values[n : n + size] for n in range(0, len(values), size)]
