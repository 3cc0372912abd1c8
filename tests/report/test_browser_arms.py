"""The table of arms in a browser: arm, value, Δ and verdict are visible at 1280 px without scrolling."""

from pathlib import Path
from typing import Any

import pytest
from rendering import REFERENCES, render_html
from visits import BROWSER_MARKS, Visit

from attnlab.report.schema import load_report

pytestmark = BROWSER_MARKS
FIND_COLUMNS = """() => {
  const table = document.querySelector("table.arms"), edge = table.closest(".scroll").getBoundingClientRect();
  return [...table.tHead.rows[0].cells].filter((cell) => {
    const box = cell.getBoundingClientRect();
    return box.left >= edge.left && box.right <= edge.right + 1;
  }).map((cell) => cell.textContent.replace("↕", "").trim());
}"""
MAX_HEIGHT = (
    "() => Math.max(...[...document.querySelectorAll('table.arms tbody tr')].map((row) => row.offsetHeight))"
)


@pytest.mark.parametrize(
    "name",
    [
        "gqa_vs_mha", "every_variant", "length_extrapolation", "causal_leakage", "lossy_caches",
        "head_pruning", "mup_transfer", "gqa_uptraining", "kv_cache_bytes", "cached_vs_uncached",
    ],
)  # fmt: skip
def test_four_columns_are_visible_without_scrolling(browser: Any, tmp_path: Path, name: str) -> None:
    page = tmp_path / "report.html"
    report = load_report(REFERENCES / name / "report.json")
    page.write_text(render_html(report), encoding="utf-8")
    with Visit(browser, page) as visit:
        columns = visit.page.evaluate(FIND_COLUMNS)
        assert columns[0] == "arm"
        assert columns[2:4] == ["Δ", "verdict"]
        assert name != "gqa_vs_mha" or columns[-1] == "decoding time per token (ms)", (
            "the whole table is visible"
        )
        assert visit.page.evaluate(MAX_HEIGHT) <= 160, "no column is squeezed"
    with Visit(browser, page, viewport={"width": 390, "height": 844}) as visit:
        assert visit.page.evaluate(FIND_COLUMNS)[0] == "arm"
