"""Reports on the same arms with different results are found, and listed in the ledger."""

import json
from pathlib import Path

import pytest
from conflicts import Conflict, Difference, find_conflicts
from ledger import LedgerPage
from ledger_rows import load_ledger
from rendering import make_report
from synthetic import World

from attnlab.report.schema import load_report
from attnlab.report.section import list_tables

SEEDS = [0, 1, 2, 3, 4, 5]
FAST = {"optim": {"lr": 0.006}}


def write_heads_report(
    root: Path, name: str, effect: float, config: dict[str, object], size: str = "S"
) -> Path:
    """Write a report of two arms: gqa with this effect and these config groups."""
    world = World({"mha": 0.0, "gqa": effect}, seeds=SEEDS, config={"gqa": config})
    report = make_report(root / "runs" / name, world, is_timed=True, size=size)
    folder = root / "reports" / name
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(report.to_dict()), "utf-8")
    return folder


def load_conflicts(folder: Path) -> dict[str, list[Conflict]]:
    return find_conflicts(
        {path.parent.name: load_report(path) for path in sorted(folder.glob("*/report.json"))}
    )


def test_reports_that_differ_are_found_with_the_reason(tmp_path: Path) -> None:
    write_heads_report(tmp_path, "slow", 0.05, {})
    write_heads_report(tmp_path, "fast & loose", -0.01, FAST)
    write_heads_report(tmp_path, "same", 0.05, {"optim": {"lr": 0.003}})
    write_heads_report(tmp_path, "large", -0.05, FAST, size="M")
    write_heads_report(tmp_path, "wide", -0.05, {"model": {"ffn_width": 512}})
    conflicts = load_conflicts(tmp_path / "reports")
    assert {name: [row.folder for row in rows] for name, rows in conflicts.items()} == {
        "slow": ["fast & loose"], "same": ["fast & loose"], "fast & loose": ["same", "slow"],
    }  # fmt: skip
    [conflict] = conflicts["slow"]
    assert conflict.settings == (Difference("optim.lr of gqa", "0.003", "0.006"),)
    effect, claim = conflict.results
    assert effect.label == "gqa vs mha"
    assert effect.here.startswith("+0.050 nats, 95% CI [")
    assert effect.there.startswith("\N{MINUS SIGN}0.010 nats, 95% CI [")
    assert claim == Difference("claim on gqa vs mha", "REFUTED", "SUPPORTED")


@pytest.mark.parametrize(
    ("config", "axis", "ladders", "is_conflict"),
    [
        ({"data": {"_target_": "attnlab.data.module.Data"}}, {}, "", True),  # the class had this name once
        ({"model": {"_target_": "attnlab.model.lstm.Lstm"}}, {}, "", False),
        ({}, {"schedule": "wsd"}, "", False),
        ({}, {}, "ab", True),
        ({}, {}, "aa", False),  # budgets of one ladder
    ],
)
def test_a_conflict_is_of_equal_settings(
    tmp_path: Path, config: dict[str, object], axis: dict[str, str], ladders: str, is_conflict: bool
) -> None:
    write_heads_report(tmp_path, "slow", 0.05, {})
    write_heads_report(tmp_path, "fast", -0.01, config if ladders else {**FAST, **config})
    for name, ladder in zip(("slow", "fast"), ladders or "--", strict=True):
        path = tmp_path / "reports" / name / "report.json"
        document = json.loads(path.read_text())
        if ladders:
            context = {"kind": "rung", "name": name, "combined_report": ladder, "ladder": None, "rates": None}
            document["replication"] = context
        for axes in document["axes"].values() if name == "fast" else ():
            axes |= axis
        path.write_text(json.dumps(document))
    assert bool(load_conflicts(tmp_path / "reports")) == is_conflict


def test_ledger_lists_reports_that_differ(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    write_heads_report(tmp_path, "slow", 0.05, {})
    assert "conflicts" not in list_tables(LedgerPage(load_ledger(folder)).build().sections)
    write_heads_report(tmp_path, "fast", -0.05, FAST)
    table = list_tables(LedgerPage(load_ledger(folder)).build().sections)["conflicts"]
    head, *rows = table.full_rows
    assert [cell.href for cell in head.typed_cells] == ["", "fast/report.html", "slow/report.html"]
    assert ["optim.lr of gqa", "0.006", "0.003"] in [[cell.text for cell in row.typed_cells] for row in rows]
