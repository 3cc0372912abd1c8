"""Epochs of each arm: a budget row, and a warning on the first screen if they are too many."""

from pathlib import Path

import jsonschema
import pytest
from rendering import make_report
from synthetic import World, replace_fields, replace_result, write_runs

from attnlab.cli.verbs.schema import build_schema
from attnlab.report.schema import Report
from attnlab.report.sections import build_sections
from attnlab.store.config_groups import format_repetition_warning


def make_epochs_report(folder: Path, epochs: dict[str, float]) -> Report:
    world = World(effects={"mha": 0.0, "gqa": 0.01}, seeds=[0, 1, 2])
    runs = [
        replace_result(run, estimate=replace_fields(run.result.estimate, epochs=epochs.get(run.arm)))
        for run in write_runs(folder, world)
    ]
    return make_report(runs, world)


def test_too_many_epochs_give_a_warning_above_the_claims(tmp_path: Path) -> None:
    report = make_epochs_report(tmp_path, {"mha": 7.1, "gqa": 7.1})
    warning = (
        "Each arm read its corpus 7.1 times; beyond 4 epochs, repeated tokens are worth less than new ones "
        "(Muennighoff 2023)."
    )
    assert warning in report.verdict.run_warnings
    jsonschema.validate(report.to_dict(), build_schema("report"))
    [first] = [section for section in build_sections(report) if section.id == "verdict"]
    assert any(warning in getattr(block, "plain", "") for block in first.blocks)


def test_budget_has_a_row_for_epochs(tmp_path: Path) -> None:
    report = make_epochs_report(tmp_path / "a", {"mha": 0.979, "gqa": 1.958})
    row = report.budget.find_row("epochs")
    assert (row.mark, [cell.value for cell in row.cells]) == ("differs", [0.979, 1.958])
    assert row.label == "epochs (passes over the training text)"
    assert report.verdict.run_warnings == []
    without = make_epochs_report(tmp_path / "b", {}).budget.rows
    assert "epochs" not in [row.key for row in without], "for sampled tasks and older runs"


@pytest.mark.parametrize(
    ("epochs", "start"),
    [
        ({"a": 4.0, "b": None}, None),
        ({"a": 4.1, "b": 4.1}, "each arm read its corpus 4.1 times; "),
        ({"a": 4.1, "b": 2.0}, "a read its corpus 4.1 times; "),
        ({"a": 4.1, "b": 1800.0, "c": None}, "a, b read their corpus 4.1 to 1,800 times; "),
    ],
)
def test_repetition_warning_lists_only_arms_above_the_limit(epochs: dict, start: str | None) -> None:
    sentence = format_repetition_warning(epochs)
    assert sentence is None if start is None else sentence.startswith(start)
