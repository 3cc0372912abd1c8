"""Covering arrays: few combinations of options in which any two, or any three, options meet."""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, product


def build_covering_array(
    axes: Mapping[str, Sequence[str]], strength: int = 3, excluded: Collection[frozenset[str]] = ()
) -> list[dict[str, str]]:
    """Build a covering array greedily: any values of any `strength` axes meet in at least one row.

    No row has all choices (`axis=value`) of a member of `excluded`. Values that can never meet, whatever the
    other axes, are left out.
    """
    names = list(axes)
    missing = {
        frozenset(zip(axis_subset, values, strict=True)): None  # a dict keeps the order
        for axis_subset in combinations(names, strength)
        for values in product(*(axes[name] for name in axis_subset))
    }
    rows = []
    while missing:
        first = next(iter(missing))
        if (row := _complete_row(dict(first), axes, missing, strength, excluded)) is None:
            missing.pop(first)
            continue
        for value_tuple in combinations(row.items(), strength):
            missing.pop(frozenset(value_tuple), None)
        rows.append({name: row[name] for name in names})
    return rows


def _complete_row(
    row: dict[str, str],
    axes: Mapping[str, Sequence[str]],
    missing: Collection[frozenset[tuple[str, str]]],
    strength: int,
    excluded: Collection[frozenset[str]],
) -> dict[str, str] | None:
    """Complete a row with a value for every axis; None if every completion is excluded.

    Values that cover the most missing combinations are tried first.
    """
    if any(forbidden <= {f"{name}={value}" for name, value in row.items()} for forbidden in excluded):
        return None
    name = next((name for name in axes if name not in row), None)
    if name is None:
        return row
    others = [frozenset(subset) for subset in combinations(row.items(), strength - 1)]
    n_covered = {value: sum(subset | {(name, value)} in missing for subset in others) for value in axes[name]}
    ordered_values = sorted(axes[name], key=lambda value: -n_covered[value])
    completed_rows = (
        _complete_row({**row, name: value}, axes, missing, strength, excluded) for value in ordered_values
    )
    return next((completed for completed in completed_rows if completed is not None), None)
