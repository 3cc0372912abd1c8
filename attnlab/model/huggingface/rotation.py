"""The rotation of a config, whichever way it is written, and back.

transformers 5 writes a table `rope_parameters`; before, it was `rope_scaling`, with `rope_theta` beside it.
Of a file with both tables transformers 5.23 reads `rope_scaling` alone; here both must say the same.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnlab.model.huggingface.values import agreed, number, truth

Config = dict[str, Any]

_PLACES = ("rope_scaling", "rope_parameters")
_BASE = "rope_theta"
_TRAINED = "original_max_position_embeddings"
_LENGTH = "max_position_embeddings"
_FRACTION = "partial_rotary_factor"
_MAGNITUDE = "attention_factor"


class Scaling(NamedTuple):
    """Our target, what never varies, and our leaves by their names: of keys that must be there, and of those
    that need not be, with their defaults.
    """

    target: str
    needs: dict[str, str]
    may: Mapping[str, tuple[str | None, Any]] = {}
    fixed: Mapping[str, Any] = {}


_SCALINGS = {
    "linear": Scaling("attnlab.attention.scaling.Interpolation", {"factor": "factor"}),
    "llama3": Scaling(
        "attnlab.attention.scaling.Llama3",
        {"factor": "factor", _TRAINED: "trained", "low_freq_factor": "low", "high_freq_factor": "high"},
    ),
    "yarn": Scaling(
        "attnlab.attention.scaling.Yarn",
        {"factor": "factor", _TRAINED: "trained"},
        {
            "beta_fast": ("fast", 32),
            "beta_slow": ("slow", 1),
            "truncate": ("truncate", True),
            _MAGNITUDE: ("magnitude", None),
            "mscale": (None, None),  # these two are a magnitude where there is none
            "mscale_all_dim": (None, None),
        },
        {"ramp": "index"},
    ),
}


def settled(
    theirs: Config,
    base: float = 10000.0,
    fraction: float | None = None,
    kinds: Sequence[str] = tuple(_SCALINGS),
    otherwise: Mapping[str, Any] | None = None,
) -> Config:
    """`theirs` with its rotation in two places: `rope_theta` and a complete `rope_scaling`, or None; and
    where a family has one (`fraction`, the default) `partial_rotary_factor`. `otherwise` is the table of a
    config that has none.

    ValueError, naming the keys, for a type that we cannot compute, for what is missing or no number, and for
    two places that disagree.
    """
    tables = {place: theirs[place] for place in _PLACES if theirs.get(place) not in (None, {})}
    tables = tables or {_PLACES[-1]: otherwise or {}}
    for place, table in tables.items():
        if not isinstance(table, Mapping):
            raise ValueError(f"{place} must be a mapping, not {table!r}")
    types = {f"{place}.{key}": kind for place, table in tables.items() for key, kind in _types(table).items()}
    kind = agreed(types, lambda kind: kind)
    known = ("default", *kinds)
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(f"{next(iter(types))} = {kind!r} is not supported (only {', '.join(known)})")
    scaling = None
    if kind in _SCALINGS:
        scaling = {"rope_type": kind} | {name: _value(name, tables, theirs) for name in _SCALINGS[kind].needs}
        scaling |= {
            name: _optional(name, tables, default) for name, (_, default) in _SCALINGS[kind].may.items()
        }
    found = {_BASE: _value(_BASE, tables, theirs, base)}
    if fraction is not None:
        found[_FRACTION] = _value(_FRACTION, tables, theirs, fraction)
        _check_whole(found[_FRACTION], theirs)
    return theirs | found | {"rope_scaling": scaling, "rope_parameters": None}


def read_scaling(theirs: Config) -> Config:
    """Our scaling, from a complete table of theirs."""
    target, needs, may, fixed = _SCALINGS[theirs["rope_type"]]
    leaves = needs | {name: leaf for name, (leaf, _) in may.items() if leaf}
    ours = {"_target_": target, **fixed} | {leaf: theirs[name] for name, leaf in leaves.items()}
    over = theirs.get("mscale")
    under = theirs.get("mscale_all_dim")
    if over and under and ours["magnitude"] is None:
        ours["magnitude"] = magnitude(theirs["factor"], over) / magnitude(theirs["factor"], under)
    return ours


def write_scaling(ours: Config) -> Config | None:
    """Their table; None for a scaling that they do not have."""
    for kind, (target, needs, may, _) in _SCALINGS.items():
        if ours["_target_"] == target:
            leaves = needs | {name: leaf for name, (leaf, _) in may.items() if leaf}
            table = {name: ours.get(leaf) for name, leaf in leaves.items()}
            return {"rope_type": kind} | {name: value for name, value in table.items() if value is not None}
    return None


def magnitude(factor: float, scale: float) -> float:
    """What YaRN makes queries and keys larger by, of a scale of its logarithm (`mscale`)."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _types(table: Mapping[str, Any]) -> Config:
    """The type under its newer and its older name; a table that names none has the default."""
    named = {key: table[key] for key in ("rope_type", "type") if table.get(key) is not None}
    return named or {"rope_type": "default"}


def _value(name: str, tables: Mapping[str, Any], theirs: Config, default: float | None = None) -> Any:
    """The number in which all tables agree, each read as if alone: from it, from beside it, or by default."""
    values = {}
    for place, table in tables.items():
        beside = {name: theirs.get(name)} if name in (_BASE, _TRAINED, _FRACTION) else {}
        value = agreed({f"{place}.{name}": table.get(name)} | beside, number)
        if value is None and name == _TRAINED:
            value = agreed({_LENGTH: theirs.get(_LENGTH)}, number)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"{place}.{name} is missing: add the number that the model was trained with")
        values[f"{place}.{name}" + (" (left out)" if table.get(name) is None else "")] = value
    return agreed(values, number)


def _optional(name: str, tables: Mapping[str, Any], default: Any) -> Any:
    """What all tables say, or mean by leaving it out."""
    read = truth if isinstance(default, bool) else number
    values = {f"{place}.{name}": table.get(name) for place, table in tables.items()}
    value = agreed(values, read)
    if value is not None and None in values.values() and value != default:
        missing = next(key for key, held in values.items() if held is None)
        raise ValueError(f"{missing} (left out) and another table's {value!r} disagree: keep one of the two")
    return default if value is None else value


def _check_whole(fraction: float, theirs: Config) -> None:
    """ValueError where a share of a head's features is none that both of us round alike."""
    width = theirs.get("hidden_size")
    heads = theirs.get("num_attention_heads")
    if isinstance(width, int) and isinstance(heads, int) and heads > 0:
        head = theirs.get("head_dim") or width // heads
        turning = head * fraction
        if int(turning) != round(turning):
            raise ValueError(f"{_FRACTION} = {fraction} of {head} features a head is no whole number of them")
