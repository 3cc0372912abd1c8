"""Page, Markdown, terminal, W&B, index and ledger print an effect identically."""

import re
from pathlib import Path

import ledger
import pytest
from rendering import extract_text, make_report, read_table
from synthetic import World, declare_claim, write_runs

from attnlab.report.pages import terminal
from attnlab.report.pages.report_files import write_report
from attnlab.report.schema import Report
from attnlab.report.tables.wording import format_effect
from attnlab.sweep import wandb_report

EFFECT = re.compile(r"[−+]\d[\d,.]* nats, \d[\d.]*% CI \[[^\]]+\]")
CLAIMS = [
    declare_claim("gqa is non-inferior", "gqa", "below", 0.03),
    declare_claim("mqa is worse", "mqa", "above", 0.0),
    declare_claim("mqa is equivalent", "mqa", "within", 0.03),
    declare_claim("gqa is faster", "gqa", "below", 1.0, metric="decode_ms_per_token", compare="ratio"),
    declare_claim("gqa halves the cache", "gqa", "within", 0.5, metric="kv_bytes_per_token", compare="ratio"),
]  # fmt: skip


@pytest.fixture(scope="module")
def report_and_texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, dict[str, str]]:
    """Build a report and the text of each place that prints its effects."""
    folder = tmp_path_factory.mktemp("wording")
    world = World(seeds=[0, 1, 2, 3, 4, 5])
    runs = write_runs(folder / "runs", world)
    report = make_report(runs, world, is_timed=True, claims=CLAIMS)
    page = write_report(folder / "reports" / "gqa_vs_mha", report, runs)
    records = {name: read_table(report, name) for name in ("claims", "effects")}
    readme, _ = ledger.write_ledger(folder / "reports")
    return report, {
        "page": extract_text(page.read_text("utf-8")),
        "markdown": page.with_name("report.md").read_text("utf-8").replace("\\", ""),
        "terminal": " ".join(" ".join(terminal.format_terminal_lines(report)).split()),
        "W&B": "\n".join(map(str, wandb_report.build_summary(report, records).values())),
        "index": extract_text(page.parent.with_name("index.html").read_text("utf-8")),
        "ledger": readme.read_text("utf-8").replace("\\", ""),
    }


def test_every_place_prints_the_effect_of_every_claim_in_one_format(
    report_and_texts: tuple[Report, dict[str, str]],
) -> None:
    report, places = report_and_texts
    claims = report.verdict.claims
    assert len({format_effect(claim) for claim in claims}) == 4, "three of val/loss, two of them of one arm"
    expected = {format_effect(source) for source in (*claims, *report.effects)}
    for place, text in places.items():
        assert all(format_effect(claim) in text for claim in claims), place
        assert {*EFFECT.findall(text)} <= expected, place


def test_effect_is_the_arm_minus_the_baseline_for_every_direction(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.06})
    runs = write_runs(tmp_path, world)
    claims = [declare_claim("gqa is worse", "gqa", "above", 0.0)]
    for direction in ("lower", "higher"):
        report = make_report(runs, world, claims=claims, direction=direction)
        [claim], [effect] = report.verdict.claims, [row for row in report.effects if row.primary]
        assert format_effect(claim) == format_effect(effect)
        assert format_effect(effect).startswith("+0.060 nats, 95% CI [+0.05")
