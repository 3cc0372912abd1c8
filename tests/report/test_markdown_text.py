"""Text from files in Markdown: whatever it holds, it is shown as it is and is no markup."""

import json
import re
from typing import Any

import pytest
from ledger import LedgerPage
from ledger_rows import load_ledger

from attnlab.config import CONF
from attnlab.report.charts.chart_renderer import RenderedCharts
from attnlab.report.markdown_text import Markdown, format_code, format_table, join_lines
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.pages.report_page import build_report_page
from attnlab.report.schema import Report

REPORT = CONF.parent / "reports" / "reference" / "gqa_vs_mha" / "report.json"
HARM = "<script>`|[a](javascript:b)&lt;\n---\r# x\x1b"
COVERED = {
    "question", "says", "reason", "label", "unit", "message", "command", "commit", "date", "device",
    "caveats", "run_warnings", "lr_tuning", "summary", "cost", "metric",
}  # fmt: skip


def find_markup(page: str) -> list[str]:
    """Return the lines in which harmful text is markup; code is shown as it is."""
    page = re.sub(r"^(```+).*?^\1$", "", page, flags=re.M | re.S)
    lines = [re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", line) for line in page.splitlines()]
    plain = [re.sub(r"\\[^\w\s]", "", line) for line in lines]
    found = [line for line in plain if re.search(r"<script|\]\(javascript|&lt;|\x1b", line)]
    return found + [line for line in plain if line in ("---", "# x")]


def add_harm(node: Any, key: str) -> tuple[Any, bool]:
    """Return a JSON value with harmful text in all strings below a key, and whether there are any."""
    if isinstance(node, list):
        items = [add_harm(item, key) for item in node]
        return [item for item, _ in items], any(changed for _, changed in items)
    if not isinstance(node, dict):
        return node, False
    changed, values = False, {}
    for name, value in node.items():
        if name == key and isinstance(value, str) and value:
            values[name], changed = value + HARM, True
        elif name == key and isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            values[name], changed = [each + HARM for each in value], True
        else:
            values[name], is_changed = add_harm(value, key)
            changed |= is_changed
    return values, changed


def list_keys(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(list_keys, node))
    return (
        {*node, *(key for value in node.values() for key in list_keys(value))}
        if isinstance(node, dict)
        else set()
    )


def test_no_text_of_a_report_is_markup_on_its_page() -> None:
    document = json.loads(REPORT.read_text("utf-8"))
    document["verdict"]["run_warnings"] = ["a warning"]
    failure = {"arm": "gqa", "seed": 0, "id": "a", "status": "crashed", "status_label": "crashed", "step": 1}
    document["failures"]["runs"] = [{**failure, "message": "it failed", "tail": []}]
    rendered = set()
    for key in sorted(list_keys(document)):
        changed, has_text = add_harm(document, key)
        if not has_text:
            continue
        try:
            page = render_markdown(
                build_report_page(Report.model_validate(changed)), RenderedCharts(errors=[HARM])
            )
        except (ValueError, KeyError):  # not any text: a verdict, or a name that refers to another key
            continue
        rendered.add(key)
        assert find_markup(page) == [], key
    assert rendered >= COVERED, COVERED - rendered


def test_no_text_of_a_report_is_markup_in_the_ledger(tmp_path) -> None:
    text = REPORT.read_text("utf-8")
    for old in ('"gqa"', '"pydocs"', '"S"'):
        text = text.replace(old, json.dumps(json.loads(old) + HARM))
    document = json.loads(text)
    document["experiment"] |= {"name": "mine", "question": HARM}
    document["reproduce"] |= {"command": HARM, "commit": HARM}
    document["replication"] = None  # of a corpus
    for claim in document["verdict"]["claims"]:
        claim["says"] += HARM
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(document))
    page = render_markdown(LedgerPage(load_ledger(tmp_path)).build())
    assert page.count("script") > 3
    assert find_markup(page) == []


def test_text_stays_in_its_cell_and_begins_no_block() -> None:
    for line in format_table(["a", HARM], [[HARM, Markdown("**b**")]])[:3]:
        assert len(re.findall(r"(?<!\\)\|", line)) == 3
        assert "\n" not in line
    for text in ("- a", "+ a", "1. a", "23) a", "---", "===", "~~~ sh", "  - a"):
        assert re.match(r"\s*\d*\\", join_lines([text])), text
    assert join_lines(["-0.5", Markdown("- a"), "1.5 nats"]) == "-0.5\n- a\n1.5 nats"
    assert Markdown("{}").format(Markdown("*a*")) == "*a*"


@pytest.mark.parametrize(
    ("text", "code"),
    [("a=1", "`a=1`"), ("a`b", "`` a`b ``"), ("``", "``` `` ```"), ("a|b\nc\x1b", "`a\\|b c\\x1b`")],
)
def test_code_of_any_text_is_one_span(text: str, code: str) -> None:
    assert format_code(text) == code
