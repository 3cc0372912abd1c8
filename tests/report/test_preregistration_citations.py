"""A report cites its preregistration from the log, and the changes made after results were known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rendering import render_texts
from synthetic import World, build_context, build_provenance, declare_claim, write_runs

from attnlab.report.report_builder import build_report
from attnlab.report.schema import Report
from attnlab.report.verdicts.results import SweepContext
from attnlab.store import file_names
from attnlab.store.guards import preregistrations

WORLD = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2])


def preregister_context(root: Path, finished: int = 0, **changes: Any) -> SweepContext:
    """Build a context preregistered in the log of `root`, after `finished` of its pairs were finished."""
    context = build_context(WORLD, **changes)
    arms = context.experiment.arms
    ids = {arm: {seed: f"{arm}{seed}" for seed in WORLD.seeds} for arm in arms}
    for arm in arms:
        for seed in WORLD.seeds[:finished]:
            (root / ids[arm][seed]).mkdir(parents=True, exist_ok=True)
            (root / ids[arm][seed] / "run.json").write_text('{"status": "done"}')
    no_digests = dict.fromkeys(arms)
    entry = preregistrations.preregister(
        root, context.experiment.name, context.experiment, no_digests, no_digests, ids, "typed"
    )
    return build_context(WORLD, preregistration=entry, **changes)


@pytest.fixture
def build_from_context(tmp_path: Path) -> Any:
    runs = write_runs(tmp_path / "trained", WORLD)
    return lambda question: build_report(question, runs, None, build_provenance())


def test_report_has_the_log_entry_to_the_last_digit(tmp_path: Path, build_from_context: Any) -> None:
    claim = declare_claim("no worse", "gqa", "below", 1 / 3)
    report = build_from_context(preregister_context(tmp_path, claims=[claim]))
    line = json.loads((tmp_path / file_names.PREREGISTRATION_LOG).read_text().splitlines()[0])
    assert json.loads(json.dumps(report.to_dict()["preregistration"])) == line
    assert line["content"]["claims"][0]["threshold"] == 1 / 3
    assert Report.model_validate(report.to_dict()) == report
    without = build_from_context(build_context(WORLD))
    assert without.preregistration is None
    assert not any("declarations.jsonl" in page for page in render_texts(without))
    with pytest.raises(ValidationError, match="preregistration"):
        Report.model_validate({**report.to_dict(), "preregistration": {"hash": "cut"}})


@pytest.mark.parametrize(("finished", "sentence"), [(0, "none had"), (1, "1 had")])
def test_pages_cite_the_entry_and_the_pairs_finished_before_it(
    tmp_path: Path, build_from_context: Any, finished: int, sentence: str
) -> None:
    report = build_from_context(preregister_context(tmp_path, finished))
    entry = report.preregistration
    for page in render_texts(report):
        assert (
            f"Preregistered on {entry.time} (entry {entry.hash[:16]} of declarations.jsonl, "
            "gqa_vs_mha, size debug). Of at most 3 pairs of runs (the two arms of a comparison at one seed), "
            f"{sentence} finished by then."
        ) in page
    assert not report.verdict.exploratory


@pytest.mark.parametrize("overrides", [["margin=0.04"], []])
def test_change_after_results_makes_all_claims_exploratory(
    tmp_path: Path, build_from_context: Any, overrides: list[str]
) -> None:
    preregister_context(tmp_path, 2)
    report = build_from_context(replace(preregister_context(tmp_path, 2, margin=0.04), overrides=overrides))
    *deviations, last_deviation = report.verdict.deviations
    changed = "the command changed the experiment, when 2 pairs of results were known: margin=0.04"
    assert deviations == ([changed] if overrides else [])
    assert "after 2 pairs of results were known" in last_deviation
    assert last_deviation.endswith("margin: first 0.03, now 0.04")
    assert report.verdict.exploratory
    assert all(claim.exploratory for claim in report.verdict.claims)
    for page in render_texts(report):
        assert "EXPLORATORY" in page
        assert last_deviation in page
        assert "Preregistered on" not in page
        assert f"These changed terms were logged on {report.preregistration.time} (" in page
