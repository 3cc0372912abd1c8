"""The shape of report.json, and a check of it that needs no package: a report that fits can be rendered.

It knows the words of JSON Schema that schema.json uses, and no others.
"""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from attnlab.report.answer import answer

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
    """The report in a file, upgraded where it is of a version that can be. ValueError where it is none, is
    cut short, or is of another version.
    """
    try:
        report = json.loads(source.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{source}: cannot be read as a report: {error}; run its command again") from error
    if not isinstance(report, dict) or "schema" not in report or "verdict" not in report:
        raise ValueError(f"{source}: is JSON, but not a report of attnlab")
    for version, upgrade in UPGRADES.items():
        if report["schema"] == version:
            try:
                upgrade(report)
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{source}: is not a whole report; run its command again") from error
    if report["schema"] != SCHEMA:
        raise ValueError(
            f"{source}: has schema {report['schema']}, this version reads {SCHEMA}; run its command again "
            "(what is trained is not trained again)"
        )
    if wrong := misfit(report, SHAPE):
        raise ValueError(f"{source}: is not a whole report: {wrong}; run its command again")
    return report


def _from_2(report: dict[str, Any]) -> None:
    """What version 2 did not keep: the versions of the runs (null, nobody knows), the unit of the loss by
    position, and what the axes of its two tables of conditions showed.
    """
    report["schema"] = 3
    report["verdict"]["unlike"] = []
    report["reproduce"]["versions"] = None
    if report["positions"]:
        report["positions"]["unit"] = "nats"
    for table in report["length"]:
        table["axis"] = "multiple of the trained length" if table["key"] == "length" else "distance"


def _from_3(report: dict[str, Any]) -> None:
    """What version 3 did not keep: looks (it had one, after all seeds), what stands beside a claim now, and
    differences as training.
    """
    report["schema"] = 4
    empty = ("looks", "interval", "deciding", "flipped", "reason")
    new = {"identity": False, "threshold_said": None, **dict.fromkeys(empty)}
    report["exchange"] = report["experiment"]["margin_said"] = None
    for row in [*report["verdict"]["claims"], *report["effects"]]:
        row["outliers"], row["training"] = [], None
        for old in ("power", "worst_case"):
            row.pop(old, None)
    for claim in report["verdict"]["claims"]:
        claim.update(new)


def _from_4(report: dict[str, Any]) -> None:
    """What version 4 had of the learning rates: every one with all seeds, and the one with the best mean."""
    report["schema"] = 5
    if (found := report["budget"]["tuning"]) is None:
        return
    spent = {entry["arm"]: entry["value"] for entry in found.pop("tokens")}
    rows: dict[str, list[dict[str, Any]]] = {arm: [] for arm in spent}
    for row in found.pop("rows"):
        for cell in row["cells"]:
            whole = None not in cell["values"]
            fate = "picked, by the mean" if cell["picked"] else "" if whole else "not finished"
            middle = median(cell["values"]) if whole else None
            kept = {"lr": row["lr"], "values": cell["values"], "picked": cell["picked"]}
            rows[cell["arm"]].append({**kept, "median": middle, "fate": fate})
    found["arms"] = [
        {"arm": arm, "tokens": spent[arm], "of_comparison": None, "rows": rows[arm]} for arm in spent
    ]


def _from_5(report: dict[str, Any]) -> None:
    """Version 5 asked each experiment at one place."""
    report["schema"] = 6
    report["place"] = report["texts"] = None


def _from_6(report: dict[str, Any]) -> None:
    """Version 6 had no first screen; what it shows is in the rest."""
    report["schema"] = 7
    report["answer"] = answer(report)


# from a version to the next, in order
UPGRADES: dict[int, Callable[[dict[str, Any]], None]] = {
    2: _from_2,
    3: _from_3,
    4: _from_4,
    5: _from_5,
    6: _from_6,
}


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
