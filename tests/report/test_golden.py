"""Nine sweeps with known effects: verdicts and numbers of their reports, stored in golden/*.json.

After an intended change: ATTNLAB_GOLDEN=write python -m pytest tests/report/test_golden.py, then read the
diff.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rendering import make_report, render_texts
from synthetic import World

from attnlab.report.schema import Report
from attnlab.report.tables.wording import describe_claim, explain_verdict

GOLDEN = Path(__file__).parent / "golden"
SIX, ALL = [0, 1, 2, 3, 4, 5], ("mha", "gqa", "mqa")


def make_effects(gqa: float, mqa: float = 0.05) -> dict[str, float]:
    return {"mha": 0.0, "gqa": gqa, "mqa": mqa}


WORLDS = {
    "equal": World(make_effects(0.001, -0.001), seeds=SIX),
    "better": World(make_effects(-0.06), seeds=SIX),
    "worse": World(make_effects(0.06), seeds=SIX),
    "underpowered": World(make_effects(0.02), sd=0.06, seeds=[0, 1, 2]),
    "unfair_budget": World(make_effects(0.001), parameters={"gqa": 130_000}, seeds=SIX),
    "missing_seeds": World(
        make_effects(0.001), status={("gqa", 1): "missing", ("mqa", 4): "missing"}, seeds=SIX
    ),
    "diverged_seed": World(make_effects(0.001), status={("gqa", 2): "diverged"}, seeds=SIX),
    "one_seed": World(make_effects(0.004), seeds=[0]),
    "all_failed": World(status={(arm, seed): "crashed" for arm in ALL for seed in SIX}, seeds=SIX),
}


def summarize_report(report: Report) -> dict[str, Any]:
    """Collect verdicts, sentences and numbers of a report."""

    def round_number(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    return {
        "headline": report.verdict.headline,
        "finished": [report.verdict.finished, report.verdict.planned],
        "claims": [
            {
                "sentence": describe_claim(claim),
                "explanation": explain_verdict(claim),
                "interval": [round_number(claim.decision.low), round_number(claim.decision.high)],
                "p_holm": round_number(claim.decision.p_holm),
                "not_comparable": claim.not_comparable,
                "required_seeds": claim.required_seeds and asdict(claim.required_seeds),
            }
            for claim in report.verdict.claims
        ],
        "effects": [
            {
                "arm": row.arm,
                "pairs": [row.n, row.planned],
                "mean": round_number(row.mean),
                "interval": [round_number(row.low), round_number(row.high)],
                "verdict": row.verdict,
            }
            for row in report.effects
        ],
        "budget_violations": [
            row.label for row in report.budget.rows if row.controlled and row.mark == "differs"
        ],
        "failures": [[label, count] for label, count in report.failures.status_counts],
        "warnings": report.warnings,
    }


@pytest.mark.parametrize("name", list(WORLDS))
def test_report_of_known_effects_matches_its_golden_file(tmp_path: Path, name: str) -> None:
    world = WORLDS[name]
    report = make_report(tmp_path, world)
    summary, path = summarize_report(report), GOLDEN / f"{name}.json"
    if os.environ.get("ATTNLAB_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert summary == json.loads(path.read_text("utf-8"))
    for text in render_texts(report):
        text = " ".join(text.split())
        assert all(sentence in text for sentence in (summary["headline"], *summary["warnings"]))
        for claim in summary["claims"]:
            assert claim["sentence"] in text
            assert claim["explanation"] in text
            assert all(reason in text for reason in claim["not_comparable"])
        assert all(row["verdict"] in text for row in summary["effects"])


def test_every_golden_file_has_a_world() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(WORLDS)
