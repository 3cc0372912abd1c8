"""RoPE settings of a config in any of their formats, normalized and written back.

transformers 5 writes a table `rope_parameters`; older versions wrote `rope_scaling` and a separate
`rope_theta`. Of a file with both tables, transformers 5.23 reads only `rope_scaling`; here both must agree.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnlab.model.huggingface.config_values import require_agreement, require_bool, require_number

Config = dict[str, Any]

_ROPE_TABLES = ("rope_scaling", "rope_parameters")
_BASE_KEY = "rope_theta"
_TRAINED_LENGTH_KEY = "original_max_position_embeddings"
_MAX_LENGTH_KEY = "max_position_embeddings"
_FRACTION_KEY = "partial_rotary_factor"
_MAGNITUDE_KEY = "attention_factor"


class ScalingFormat(NamedTuple):
    """Our target, its constant leaves, and our leaves by their key names.

    `required` maps each mandatory key to our leaf, `optional` each other key to our leaf and its default.
    """

    target: str
    required: dict[str, str]
    optional: Mapping[str, tuple[str | None, Any]] = {}
    fixed: Mapping[str, Any] = {}

    def list_leaves(self) -> dict[str, str]:
        """Map each key to our leaf, without keys that have none."""
        return self.required | {name: leaf for name, (leaf, _) in self.optional.items() if leaf}


_SCALINGS = {
    "linear": ScalingFormat("attnlab.attention.rotary_scaling.Interpolation", {"factor": "factor"}),
    "llama3": ScalingFormat(
        "attnlab.attention.rotary_scaling.Llama3",
        {
            "factor": "factor",
            _TRAINED_LENGTH_KEY: "trained",
            "low_freq_factor": "low",
            "high_freq_factor": "high",
        },
    ),
    "yarn": ScalingFormat(
        "attnlab.attention.rotary_scaling.Yarn",
        {"factor": "factor", _TRAINED_LENGTH_KEY: "trained"},
        {
            "beta_fast": ("fast", 32),
            "beta_slow": ("slow", 1),
            "truncate": ("truncate", True),
            _MAGNITUDE_KEY: ("magnitude", None),
            "mscale": (None, None),  # these two define the magnitude if it is absent
            "mscale_all_dim": (None, None),
        },
        {"ramp": "index"},
    ),
}


_NO_SCALING = ScalingFormat("", {})
_TYPE_KEYS = ("rope_type", "type")
_IS_NULL = "is null: remove the key, or add the value that the model was trained with"


def normalize_rotation(
    theirs: Config,
    base: float = 10000.0,
    fraction: float | None = None,
    kinds: Sequence[str] = tuple(_SCALINGS),
    default_table: Mapping[str, Any] | None = None,
) -> Config:
    """Rewrite the RoPE settings of `theirs` as `rope_theta` and a complete `rope_scaling`, or None.

    Args:
        base: Default of `rope_theta`.
        fraction: Default of `partial_rotary_factor`, in families that have this key.
        kinds: Supported types other than "default".
        default_table: Table of a config that has none.

    Raises:
        ValueError: An unsupported type, a key that this type does not read (a table per layer type is one), a
            missing or null value, a value that is no number, or two tables that disagree. The message names
            the keys.
    """
    tables = {
        table_name: theirs[table_name]
        for table_name in _ROPE_TABLES
        if theirs.get(table_name) not in (None, {})
    }
    if not tables:
        is_absent = theirs.get(_ROPE_TABLES[-1]) is None
        tables = {_ROPE_TABLES[-1]: default_table if is_absent and default_table else {}}
    for table_name, table in tables.items():
        if not isinstance(table, Mapping):
            raise ValueError(f"{table_name} must be a mapping, not {table!r}")
    types = {
        f"{table_name}.{key}": kind
        for table_name, table in tables.items()
        for key, kind in _read_types(table).items()
    }
    kind = require_agreement(types, lambda kind: kind)
    supported = ("default", *kinds)
    if not isinstance(kind, str) or kind not in supported:
        raise ValueError(f"{next(iter(types))} = {kind!r} is not supported (only {', '.join(supported)})")
    format = _SCALINGS.get(kind, _NO_SCALING)
    for table_name, table in tables.items():
        _validate_keys(table_name, table, kind, format)
    scaling = None
    if kind in _SCALINGS:
        scaling = {"rope_type": kind} | {
            name: _resolve_value(name, tables, theirs) for name in format.required
        }
        scaling |= {
            name: _resolve_optional(name, tables, default) for name, (_, default) in format.optional.items()
        }
    rotation = {_BASE_KEY: _resolve_value(_BASE_KEY, tables, theirs, base)}
    if rotation[_BASE_KEY] <= 0:
        raise ValueError(f"{_BASE_KEY} must be more than 0, not {rotation[_BASE_KEY]!r}")
    if fraction is not None:
        rotation[_FRACTION_KEY] = _resolve_value(_FRACTION_KEY, tables, theirs, fraction)
        _require_whole_features(rotation[_FRACTION_KEY], theirs)
    return theirs | rotation | {"rope_scaling": scaling, "rope_parameters": None}


def read_scaling(theirs: Config) -> Config:
    """Convert a complete table of theirs to our scaling config."""
    format = _SCALINGS[theirs["rope_type"]]
    leaves = {leaf: theirs[name] for name, leaf in format.list_leaves().items()}
    ours = {"_target_": format.target, **format.fixed, **leaves}
    numerator = theirs.get("mscale")
    denominator = theirs.get("mscale_all_dim")
    if numerator and denominator and ours["magnitude"] is None:
        ours["magnitude"] = compute_magnitude(theirs["factor"], numerator) / compute_magnitude(
            theirs["factor"], denominator
        )
    return ours


def write_scaling(ours: Config) -> Config | None:
    """Convert our scaling config to their table; None if they have no such scaling."""
    for kind, format in _SCALINGS.items():
        if ours["_target_"] == format.target:
            table = {name: ours.get(leaf) for name, leaf in format.list_leaves().items()}
            return {"rope_type": kind} | {name: value for name, value in table.items() if value is not None}
    return None


def compute_magnitude(factor: float, scale: float) -> float:
    """Compute YaRN's factor of queries and keys; `scale` (`mscale`) multiplies the logarithm in it."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _read_types(table: Mapping[str, Any]) -> Config:
    """Read the type under its newer and its older key; without either it is "default"."""
    types = {key: table[key] for key in _TYPE_KEYS if table.get(key) is not None}
    return types or {"rope_type": "default"}


def _validate_keys(table_name: str, table: Mapping[str, Any], kind: str, format: ScalingFormat) -> None:
    """Raise ValueError for a key that `kind` does not read, and for a null that is not its default.

    transformers ignores unknown keys with a warning and fails at most of these nulls.
    """
    mandatory = (*_TYPE_KEYS, _BASE_KEY, _FRACTION_KEY, *format.required)
    for name, value in table.items():
        is_switch = isinstance(format.optional.get(name, (None, None))[1], bool)
        if value is None and (name in mandatory or is_switch):
            raise ValueError(f"{table_name}.{name} {_IS_NULL}")
        if value is not None and name not in (*mandatory, *format.optional):
            supported = ", ".join((*mandatory, *format.optional))
            raise ValueError(
                f"{table_name}.{name} = {value!r} is not supported where rope_type is {kind!r} (only "
                f"{supported})"
            )


def _resolve_value(name: str, tables: Mapping[str, Any], theirs: Config, default: float | None = None) -> Any:
    """Return the number on which all tables agree, each with its outer keys and defaults."""
    values = {}
    has_outer_key = name in (_BASE_KEY, _TRAINED_LENGTH_KEY, _FRACTION_KEY) and name in theirs
    if has_outer_key and theirs[name] is None:
        raise ValueError(f"{name} {_IS_NULL}")
    for table_name, table in tables.items():
        outer_value = {name: theirs[name]} if has_outer_key else {}
        value = require_agreement({f"{table_name}.{name}": table.get(name)} | outer_value, require_number)
        if value is None and name == _TRAINED_LENGTH_KEY:
            value = require_agreement({_MAX_LENGTH_KEY: theirs.get(_MAX_LENGTH_KEY)}, require_number)
        value = default if value is None else value
        if value is None:
            raise ValueError(
                f"{table_name}.{name} is missing: add the number that the model was trained with"
            )
        values[f"{table_name}.{name}" + (" (left out)" if table.get(name) is None else "")] = value
    return require_agreement(values, require_number)


def _resolve_optional(name: str, tables: Mapping[str, Any], default: Any) -> Any:
    """Return the value on which all tables agree; an absent key means the default."""
    read = require_bool if isinstance(default, bool) else require_number
    values = {f"{table_name}.{name}": table.get(name) for table_name, table in tables.items()}
    value = require_agreement(values, read)
    if value is not None and None in values.values() and value != default:
        missing = next(key for key, table_value in values.items() if table_value is None)
        raise ValueError(f"{missing} (left out) and another table's {value!r} disagree: keep one of the two")
    return default if value is None else value


def _require_whole_features(fraction: float, theirs: Config) -> None:
    """Raise ValueError for a fraction whose feature count transformers and attnlab round differently.

    So is a fraction outside (0, 1], for which neither has a rotation.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"{_FRACTION_KEY} must be more than 0 and at most 1, not {fraction!r}")
    width = theirs.get("hidden_size")
    heads = theirs.get("num_attention_heads")
    if isinstance(width, int) and isinstance(heads, int) and heads > 0:
        head_dim = require_agreement({"head_dim": theirs.get("head_dim")}, require_number) or width // heads
        n_rotary = head_dim * fraction
        if int(n_rotary) != round(n_rotary):
            raise ValueError(
                f"{_FRACTION_KEY} = {fraction} of {head_dim} features per head is not a whole number of "
                "features"
            )
