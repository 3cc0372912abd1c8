"""What an experiment says on each of its texts, side by side, in the report of each."""

import math
from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any

from attnlab.report.across.pairs import about, differences
from attnlab.report.answer import primary
from attnlab.report.lines import interval
from attnlab.report.tables.ranking import state
from attnlab.stats.across.texts import Text, texts

LEVEL = 0.95


def tell(reports: Mapping[str, dict[str, Any]]) -> None:
    """Puts into each report, by title, what all of them say; of what is counted nothing, since no text
    changes it.
    """
    names = [report["place"]["name"] for report in reports.values()]
    claims = _claims(reports)
    arms = [_arms(title, report) for title, report in reports.items()]
    for report in reports.values():
        report["texts"] = {"names": names, "claims": claims, "arms": arms}


def _arms(title: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """What each arm reached on a text, and how it stands to the baseline there."""
    words = {arm: state(row["word"]) for arm, row in primary(report).items()}
    known = {row["arm"]: row["reached"]["mean"] for row in report["answer"]["arms"]}
    cells = [
        {"arm": arm, "mean": known[arm], "state": words.get(arm)} for arm in report["experiment"]["arms"]
    ]
    return {"text": report["place"]["name"], "title": title, "cells": cells}


def _claims(reports: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = {}
    together: dict[str, str] = {}
    for title, report in reports.items():
        for claim in report["verdict"]["claims"]:
            if not claim["decision"]["exact"] and not claim["identity"]:
                found.setdefault(claim["says"], []).append(_row(title, report, claim))
    first = next(iter(reports.values()))
    for claim in first["verdict"]["claims"]:
        if claim["says"] in found and about(claim, first):
            together[claim["says"]] = _together(reports, claim)
    return [{"says": says, "rows": rows, "together": together.get(says, "")} for says, rows in found.items()]


def _row(title: str, report: Mapping[str, Any], claim: Mapping[str, Any]) -> dict[str, Any]:
    ends: Mapping[str, float | None] = interval(claim) or {"low": None, "high": None}
    return {
        "text": report["place"]["name"],
        "title": title,
        "verdict": claim["verdict"],
        "effect": claim["decision"]["estimate"],
        "low": ends["low"],
        "high": ends["high"],
        "unit": claim["unit"],
        "digits": claim["digits"],
        "training": claim["training"]["words"] if claim["training"] else None,
    }


def _together(reports: Mapping[str, Mapping[str, Any]], claim: Mapping[str, Any]) -> str:
    """How the effects of the texts differ, in a sentence; empty where a text has no spread to go by."""
    known = []
    for report in reports.values():
        found = differences(report, claim["arm"], claim["against"], claim["metric"])
        spread = stdev(found) if len(found) > 1 else 0.0
        if not spread:
            return ""
        known.append(
            Text(report["place"]["name"], mean(found), spread / math.sqrt(len(found)), len(found) - 1)
        )
    return texts(known, LEVEL).says
