"""The shape of report.json, and a check of it that needs no package: a report that fits can be rendered.

It knows the words of JSON Schema that schema.json uses, and no others.
"""

import json
from pathlib import Path
from typing import Any

SHAPE = json.loads(Path(__file__).with_name("schema.json").read_text("utf-8"))
SCHEMA = SHAPE["properties"]["schema"]["const"]
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "number": (int, float),
    "integer": int,
    "null": type(None),
}


def load(source: Path) -> dict[str, Any]:
    """The report in a file. ValueError where it is none, is cut short, or is of another version."""
    try:
        report = json.loads(source.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{source}: cannot be read as a report: {error}; run its command again") from error
    if not isinstance(report, dict) or "schema" not in report or "verdict" not in report:
        raise ValueError(f"{source}: is JSON, but not a report of attnlab")
    if report["schema"] != SCHEMA:
        raise ValueError(
            f"{source}: has schema {report['schema']}, this version reads {SCHEMA}; run its command again "
            "(finished runs are cached)"
        )
    if wrong := misfit(report, SHAPE):
        raise ValueError(f"{source}: is not a whole report: {wrong}; run its command again")
    return report


def misfit(value: Any, shape: dict[str, Any], at: str = "report") -> str | None:
    """The first place where a value does not fit, in words; None where it fits."""
    if "$ref" in shape:
        return misfit(value, SHAPE["$defs"][shape["$ref"].rpartition("/")[2]], at)
    if "anyOf" in shape:
        misfits = [misfit(value, choice, at) for choice in shape["anyOf"]]
        return None if None in misfits else misfits[0]
    kinds = shape.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    fits = any(isinstance(value, _TYPES[kind]) for kind in kinds)
    if kinds and (not fits or (isinstance(value, bool) and "boolean" not in kinds)):
        return f"{at} should be {' or '.join(kinds)}"
    if value not in shape.get("enum", [value]) or value != shape.get("const", value):
        return f"{at} cannot be {value!r}"
    if isinstance(value, dict):
        if missing := [key for key in shape.get("required", []) if key not in value]:
            return f"{at} has no {missing[0]}"
        inside = [
            (f"{at}.{key}", value[key], sub)
            for key, sub in shape.get("properties", {}).items()
            if key in value
        ]
    else:
        inside = (
            [(f"{at}[{i}]", item, shape["items"]) for i, item in enumerate(value)] if "items" in shape else []
        )
    return next((wrong for where, item, sub in inside if (wrong := misfit(item, sub, where))), None)
