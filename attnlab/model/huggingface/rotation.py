"""The rotation of a Llama config, whichever way it is written, and back.

transformers 5 writes a table `rope_parameters`; before, it was `rope_scaling`, with `rope_theta` beside it.
Of a file with both tables transformers 5.23 reads `rope_scaling` alone; here both must say the same.
"""

from collections.abc import Mapping
from typing import Any

from attnlab.model.huggingface.values import agreed, number

Config = dict[str, Any]

_PLACES = ("rope_scaling", "rope_parameters")
_BASE, _TRAINED, _LENGTH = "rope_theta", "original_max_position_embeddings", "max_position_embeddings"
_SCALINGS = {  # their type: our target, and our leaves by their names
    "linear": ("attnlab.attention.scaling.Interpolation", {"factor": "factor"}),
    "llama3": (
        "attnlab.attention.scaling.Llama3",
        {"factor": "factor", _TRAINED: "trained", "low_freq_factor": "low", "high_freq_factor": "high"},
    ),
}


def settled(theirs: Config) -> Config:
    """`theirs` with its rotation in two places: `rope_theta` and a complete `rope_scaling`, or None.

    ValueError, naming the keys, for a type that we cannot compute, for what is missing or no number, and for
    two places that disagree.
    """
    tables = {place: theirs[place] for place in _PLACES if theirs.get(place) not in (None, {})}
    tables = tables or {_PLACES[-1]: {}}
    for place, table in tables.items():
        if not isinstance(table, Mapping):
            raise ValueError(f"{place} must be a mapping, not {table!r}")
    types = {f"{place}.{key}": kind for place, table in tables.items() for key, kind in _types(table).items()}
    kind, known = agreed(types, lambda kind: kind), ("default", *_SCALINGS)
    if kind not in known:
        raise ValueError(f"{next(iter(types))} = {kind!r} is not supported (only {', '.join(known)})")
    scaling = None
    if kind in _SCALINGS:
        _, names = _SCALINGS[kind]
        scaling = {"rope_type": kind} | {name: _value(name, tables, theirs) for name in names}
    base = _value(_BASE, tables, theirs)
    return theirs | {_BASE: base, "rope_scaling": scaling, "rope_parameters": None}


def read_scaling(theirs: Config) -> Config:
    """Our scaling, from a complete table of theirs."""
    target, names = _SCALINGS[theirs["rope_type"]]
    return {"_target_": target} | {ours: theirs[name] for name, ours in names.items()}


def write_scaling(ours: Config) -> Config | None:
    """Their table; None for a scaling that they do not have."""
    for kind, (target, names) in _SCALINGS.items():
        if ours["_target_"] == target:
            return {"rope_type": kind} | {name: ours[leaf] for name, leaf in names.items()}
    return None


def _types(table: Config) -> Config:
    """The type under its newer and its older name; a table that names none has the default."""
    named = {key: table[key] for key in ("rope_type", "type") if table.get(key) is not None}
    return named or {"rope_type": "default"}


def _value(name: str, tables: Mapping[str, Config], theirs: Config) -> Any:
    """The number in which all tables agree, each read as if alone: from it, from beside it, or by default."""
    values = {}
    for place, table in tables.items():
        beside = {name: theirs.get(name)} if name in (_BASE, _TRAINED) else {}
        value = agreed({f"{place}.{name}": table.get(name)} | beside, number)
        if value is None and name == _TRAINED:
            value = agreed({_LENGTH: theirs.get(_LENGTH)}, number)
        elif value is None and name == _BASE:
            value = 10000.0
        if value is None:
            raise ValueError(f"{place}.{name} is missing: add the number that the model was trained with")
        values[f"{place}.{name}" + (" (left out)" if table.get(name) is None else "")] = value
    return agreed(values, number)
