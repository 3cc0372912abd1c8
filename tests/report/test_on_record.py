"""A report cites what was declared, as the log of the store has it, and what was changed after results."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from synthetic import World, experiment, provenance, write_runs

from attnlab.report.build import build
from attnlab.report.charts.drawing import Drawn
from attnlab.report.pages.html import html
from attnlab.report.pages.markdown import markdown
from attnlab.report.schema import Report
from attnlab.report.verdicts.runs import Asked
from attnlab.store.guards import declared, marks

WORLD = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2])


def asked(root: Path, finished: int = 0, **changes: Any) -> Asked:
    """On record in the store of `root`, after so many of its pairs of runs were finished."""
    found = experiment(WORLD, **changes)
    arms = found.experiment.arms
    ids = {arm: {seed: f"{arm}{seed}" for seed in WORLD.seeds} for arm in arms}
    for arm in arms:
        for seed in WORLD.seeds[:finished]:
            (root / ids[arm][seed]).mkdir(parents=True, exist_ok=True)
            (root / ids[arm][seed] / "run.json").write_text('{"status": "done"}')
    none = dict.fromkeys(arms)
    entry = declared.declare(root, found.experiment.name, found.experiment, none, none, ids, "typed")
    return experiment(WORLD, on_record=entry, **changes)


@pytest.fixture
def built(tmp_path: Path) -> Any:
    runs = write_runs(tmp_path / "trained", WORLD)
    return lambda question: build(question, runs, None, provenance())


def test_the_entry_in_a_report_is_that_of_the_log_to_the_last_digit(tmp_path: Path, built: Any) -> None:
    claim = {"says": "no worse", "arm": "gqa", "is": "below", "threshold": 1 / 3}
    report = built(asked(tmp_path, claims=[claim]))
    line = json.loads((tmp_path / marks.LOG).read_text().splitlines()[0])
    assert json.loads(json.dumps(report.plain()["declared"])) == line
    assert line["content"]["claims"][0]["threshold"] == 1 / 3
    assert Report.model_validate(report.plain()) == report
    with pytest.raises(ValidationError, match="declared"):
        Report.model_validate({**report.plain(), "declared": {"hash": "cut"}})


@pytest.mark.parametrize(
    ("finished", "said"), [(0, "None of 3 pairs of runs were"), (1, "1 of 3 pairs of runs was")]
)
def test_the_pages_cite_the_entry_and_what_was_finished_before_it(
    tmp_path: Path, built: Any, finished: int, said: str
) -> None:
    report = built(asked(tmp_path, finished))
    entry = report.declared
    for page in (html(report, Drawn()), markdown(report)):
        plain = page.replace("\\", "").replace("&#39;", "'")
        assert (
            f"Declared on {entry.time}: entry {entry.hash[:16]} of the store's declarations.jsonl, "
            f"gqa_vs_mha, size debug. {said} finished before that."
        ) in plain
    assert not report.verdict.exploratory


@pytest.mark.parametrize("file", [{"margin": 0.05}, None])
def test_what_was_changed_after_results_makes_all_claims_exploratory_and_is_told_last(
    tmp_path: Path, built: Any, file: dict[str, Any] | None
) -> None:
    asked(tmp_path, 2)
    report = built(asked(tmp_path, 2, margin=0.04, declared=file))
    *left, late = report.verdict.departures
    assert left == (["margin: declared 0.05, used 0.04"] if file else [])
    assert "after 2 pairs of results were known" in late
    assert late.endswith("margin: first 0.03, now 0.04")
    assert report.verdict.exploratory
    assert all(claim.exploratory for claim in report.verdict.claims)
    for page in (html(report, Drawn()), markdown(report)):
        assert "EXPLORATORY" in page
        assert late in page.replace("\\", "")


def test_a_report_of_an_experiment_without_an_entry_cites_none(built: Any) -> None:
    report = built(experiment(WORLD))
    assert report.declared is None
    assert Report.model_validate(report.plain()) == report
    assert "Declared on" not in html(report, Drawn())
    assert "Declared on" not in markdown(report)
