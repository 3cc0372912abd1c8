"""Nine sweeps with known truth: the decisive words and numbers of their pages, kept in golden/*.json.

After a change that is meant: ATTNLAB_GOLDEN=write python -m pytest tests/report/test_golden.py, then read
the diff.
"""

import html as markup
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from synthetic import World, experiment, provenance, write_runs

from attnlab.report.build import build
from attnlab.report.pages.html import html
from attnlab.report.pages.markdown import markdown
from attnlab.report.schema import Report
from attnlab.report.tables.wording import describe_claim, explain_verdict

GOLDEN = Path(__file__).parent / "golden"
SIX, ALL = [0, 1, 2, 3, 4, 5], ("mha", "gqa", "mqa")


def effects(gqa: float, mqa: float = 0.05) -> dict[str, float]:
    return {"mha": 0.0, "gqa": gqa, "mqa": mqa}


WORLDS = {
    "equal": World(effects(0.001, -0.001), seeds=SIX),
    "better": World(effects(-0.06), seeds=SIX),
    "worse": World(effects(0.06), seeds=SIX),
    "underpowered": World(effects(0.02), sd=0.06, seeds=[0, 1, 2]),
    "unfair_budget": World(effects(0.001), parameters={"gqa": 130_000}, seeds=SIX),
    "missing_seeds": World(effects(0.001), status={("gqa", 1): "missing", ("mqa", 4): "missing"}, seeds=SIX),
    "diverged_seed": World(effects(0.001), status={("gqa", 2): "diverged"}, seeds=SIX),
    "one_seed": World(effects(0.004), seeds=[0]),
    "all_failed": World(status={(arm, seed): "crashed" for arm in ALL for seed in SIX}, seeds=SIX),
}


def decisive(report: Report) -> dict[str, Any]:
    """What a reader takes away, and the numbers behind it."""

    def short(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    return {
        "headline": report.verdict.headline,
        "finished": [report.verdict.finished, report.verdict.planned],
        "claims": [
            {
                "sentence": describe_claim(claim),
                "plain": explain_verdict(claim),
                "interval": [short(claim.decision.low), short(claim.decision.high)],
                "p_holm": short(claim.decision.p_holm),
                "because": claim.not_comparable,
                "deciding": claim.deciding and claim.deciding.plain(),
            }
            for claim in report.verdict.claims
        ],
        "effects": [
            {
                "arm": row.arm,
                "pairs": [row.n, row.planned],
                "mean": short(row.mean),
                "interval": [short(row.low), short(row.high)],
                "word": row.word,
            }
            for row in report.effects
        ],
        "crosses": [row.label for row in report.budget.rows if row.held and row.mark == "differs"],
        "failures": [[word, count] for word, count in report.failures.words],
        "warnings": report.warnings,
    }


def text_of(page: str) -> str:
    """What a reader sees, without markup and without the data of scripts."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page[page.index("<body") :], flags=re.S)
    body = re.sub(r'<span class="term"[^>]*>(.*?)</span>', r"\1", body)
    return " ".join(markup.unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize("name", list(WORLDS))
def test_the_page_of_a_known_truth_says_it(tmp_path: Path, name: str) -> None:
    world = WORLDS[name]
    report = build(experiment(world), write_runs(tmp_path, world), None, provenance())
    found, path = decisive(report), GOLDEN / f"{name}.json"
    if os.environ.get("ATTNLAB_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == json.loads(path.read_text("utf-8"))
    page, short = text_of(html(report)), " ".join(markdown(report, {}).replace("\\", "").split())
    for words in (found["headline"], *found["warnings"]):
        assert words in page
        assert words in short
    for claim in found["claims"]:
        assert claim["sentence"] in page
        assert claim["sentence"] in short
        assert claim["plain"] in page
        assert claim["plain"] in short
        assert all(reason in page for reason in claim["because"])
    assert all(row["word"] in page and row["word"] in short for row in found["effects"])


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(WORLDS)
