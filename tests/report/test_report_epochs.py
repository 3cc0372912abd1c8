"""How often arms read their text: a row of the budget, and on the first screen what is too often."""

from pathlib import Path

import jsonschema
import pytest
from synthetic import World, but, experiment, provenance, write_runs

from attnlab.cli.verbs.schema import schema
from attnlab.report.build import build
from attnlab.report.pages.html import html
from attnlab.report.pages.markdown import markdown
from attnlab.report.schema import Report
from attnlab.report.verdicts.runs import Run
from attnlab.store.values import worn


def report(folder: Path, epochs: dict[str, float]) -> Report:
    world = World(effects={"mha": 0.0, "gqa": 0.01}, seeds=[0, 1, 2])

    def reading(run: Run) -> Run:
        assert run.record
        return but(run, estimate=run.record.estimate.model_copy(update={"epochs": epochs.get(run.arm)}))

    return build(experiment(world), [reading(run) for run in write_runs(folder, world)], None, provenance())


def test_worn_text_is_told_of_before_all_else(tmp_path: Path, blank: None) -> None:
    found = report(tmp_path, {"mha": 7.1, "gqa": 7.1})
    said = "Each arm read its text 7.1 times; beyond 4 repetitions are worth less (Muennighoff 2023)."
    assert said in found.verdict.unlike
    jsonschema.validate(found.plain(), schema("report"))
    page = html(found)
    assert page.index(said) < page.index('<section id="budget">')
    assert said in markdown(found, {}).partition("## Fair fight?")[0]


def test_the_budget_has_a_row_that_marks_who_read_more(tmp_path: Path) -> None:
    found = report(tmp_path, {"mha": 0.979, "gqa": 1.958})
    [row] = [row for row in found.budget.rows if row.key == "epochs"]
    assert (row.mark, [cell.value for cell in row.cells]) == ("differs", [0.979, 1.958])
    assert row.label == "epochs: times that the text is read"
    assert found.verdict.unlike == []


def test_drawn_examples_and_older_records_have_no_such_row(tmp_path: Path) -> None:
    assert "epochs" not in [row.key for row in report(tmp_path, {}).budget.rows]


@pytest.mark.parametrize(
    ("epochs", "told"),
    [
        ({"a": 4.0, "b": None}, None),
        ({"a": 4.1, "b": 4.1}, "each arm read its text 4.1 times; "),
        ({"a": 4.1, "b": 2.0}, "a read its text 4.1 times; "),
        ({"a": 4.1, "b": 1800.0, "c": None}, "a, b read their text 4.1 to 1,800 times; "),
    ],
)
def test_only_what_is_read_too_often_is_told_of(epochs: dict, told: str | None) -> None:
    sentence = worn(epochs)
    assert sentence is None if told is None else sentence.startswith(told)
