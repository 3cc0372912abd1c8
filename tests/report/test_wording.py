"""Page, Markdown, terminal, W&B, index and ledger print an effect identically."""

import re
from html import unescape
from pathlib import Path

import ledger
import pytest
from rendering import read_table
from synthetic import World, build_context, build_provenance, build_timing, write_runs

from attnlab.report.pages import terminal
from attnlab.report.pages.report_files import write_report
from attnlab.report.report_builder import build_report
from attnlab.report.schema import Report
from attnlab.report.tables.wording import format_effect
from attnlab.sweep import wandb_report

EFFECT = re.compile(r"[−+]\d[\d,.]* nats, \d[\d.]*% CI \[[^\]]+\]")
CLAIMS = [
    {"says": "gqa is non-inferior", "arm": "gqa", "is": "below", "threshold": 0.03},
    {"says": "mqa is worse", "arm": "mqa", "is": "above", "threshold": 0.0},
    {"says": "mqa is equivalent", "arm": "mqa", "is": "within", "threshold": 0.03},
    {"says": "gqa is faster", "arm": "gqa", "metric": "decode_ms_per_token", "compare": "ratio",
     "is": "below", "threshold": 1.0},
    {"says": "gqa halves the cache", "arm": "gqa", "metric": "kv_bytes_per_token", "compare": "ratio",
     "is": "within", "threshold": 0.5},
]  # fmt: skip


@pytest.fixture(scope="module")
def report_and_texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, dict[str, str]]:
    """Build a report and the text of each place that prints its effects."""
    folder = tmp_path_factory.mktemp("wording")
    world = World(seeds=[0, 1, 2, 3, 4, 5])
    runs = write_runs(folder / "runs", world)
    report = build_report(build_context(world, claims=CLAIMS), runs, build_timing(world), build_provenance())
    page = write_report(folder / "reports" / "gqa_vs_mha", report, runs)
    records = {name: read_table(report, name) for name in ("claims", "effects")}
    readme, _ = ledger.write_ledger(folder / "reports")
    return report, {
        "page": unescape(re.sub(r"<[^>]+>", "", page.read_text("utf-8"))).replace("\N{NO-BREAK SPACE}", " "),
        "markdown": page.with_name("report.md").read_text("utf-8").replace("\\", ""),
        "terminal": "\n".join(terminal.format_terminal_lines(report)),
        "W&B": "\n".join(map(str, wandb_report.build_summary(report, records).values())),
        "index": page.parent.with_name("index.html").read_text("utf-8").replace("\N{NO-BREAK SPACE}", " "),
        "ledger": readme.read_text("utf-8").replace("\\", ""),
    }


@pytest.mark.parametrize("place", ["page", "markdown", "terminal", "W&B", "index", "ledger"])
def test_every_place_prints_the_effect_of_every_claim(
    report_and_texts: tuple[Report, dict[str, str]], place: str
) -> None:
    report, places = report_and_texts
    effects = [format_effect(claim) for claim in report.verdict.claims]
    assert len(set(effects)) == 4, "three claims about val/loss, two of them about one arm"
    for effect in effects:
        assert effect in places[place]


def test_no_place_prints_another_format_of_an_effect(
    report_and_texts: tuple[Report, dict[str, str]],
) -> None:
    report, places = report_and_texts
    expected = {format_effect(source) for source in (*report.verdict.claims, *report.effects)}
    for place, text in places.items():
        printed = set(EFFECT.findall(text))
        assert printed, place
        assert printed <= expected, place


def test_effect_is_the_arm_minus_the_baseline_for_every_direction(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.06})
    runs = write_runs(tmp_path, world)
    claims = [{"says": "gqa is worse", "arm": "gqa", "is": "above", "threshold": 0.0}]
    for direction in ("lower", "higher"):
        changes = {"claims": claims, "direction": direction}
        report = build_report(build_context(world, **changes), runs, None, build_provenance())
        [claim], [effect] = report.verdict.claims, [row for row in report.effects if row.primary]
        assert format_effect(claim) == format_effect(effect)
        assert format_effect(effect).startswith("+0.060 nats, 95% CI [+0.05")
