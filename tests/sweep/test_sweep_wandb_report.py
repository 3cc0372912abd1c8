"""The W&B run of a report: its tables, its bounded logging time, and its absence if W&B is disabled."""

import json
from pathlib import Path

import pytest

from attnlab.report.answer import answer_question
from attnlab.report.schema import load_report
from attnlab.report.section import list_tables
from attnlab.report.sections import build_sections
from attnlab.sweep import wandb_report

REFERENCE = Path(__file__).parents[2] / "reports" / "reference" / "gqa_vs_mha" / "report.json"

LOGGER = {
    "mode": "offline", "project": "attnlab",
    "entity": None,
    "report": True, "workspace": False, "patience": 2,
}  # fmt: skip


def test_logging_timeout_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wandb_report, "MODULE", "sleeper")
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "report.json").write_text('{"runs": []}')
    wandb_report.log_report(tmp_path, tmp_path / "runs", LOGGER | {"patience": 0.05}, None)
    line = "uploads of the loggers still pending after 0.25 s; the results are on disk\n"
    assert capsys.readouterr().out == line


def test_summary_has_the_answer_and_the_numbers_of_claims_and_effects_as_text_and_numbers():
    report = load_report(REFERENCE)
    tables = list_tables(build_sections(report))
    summary = wandb_report.build_summary(
        report, {name: [*tables[name].iterate_records()] for name in ("claims", "effects")}
    )
    assert {type(value) for value in summary.values()} == {str, int, float, bool}, (
        "W&B stores an enum as an object"
    )
    claim = report.verdict.claims[2]
    assert claim.decision.level > claim.interval.level == 0.95
    assert "+0.022 nats, 95% CI [+0.005, +0.040]" in summary["claim/3/outcome"]
    assert [summary[f"claim/3/{key}"] for key in ("low", "high", "level")] == [
        claim.decision.low, claim.decision.high, claim.decision.level,
    ]  # fmt: skip
    assert summary["effect/gqa/val/loss/mean"] == summary["claim/1/estimate"]
    assert summary["answer"] == answer_question(report)


def test_disabled_wandb_writes_nothing(attnlab):
    status, out, _ = attnlab("+experiment=heads", "arms=[two,one]", "claims=[]")
    assert status == 0
    assert "W&B" not in out
    assert not (attnlab.folder / "runs" / "wandb").exists()
    assert not wandb_report.is_wandb_enabled({"mode": "disabled"})


@pytest.mark.rare
def test_sweep_logs_a_report_run_once(attnlab):
    line = [f"++logger.{key}={'null' if value is None else value}" for key, value in LOGGER.items()]
    status, out, err = attnlab(
        "+experiment=heads", "arms=[two,one]", "claims=[]", *line, "++logger.patience=30"
    )
    assert status == 0, err
    log = attnlab.folder / "runs" / "wandb" / "report.log"
    wandb_files = list(attnlab.folder.glob("runs/wandb/wandb/offline-run-*/*.wandb"))
    assert wandb_files, log.read_text()
    (table,) = attnlab.folder.glob("runs/wandb/wandb/offline-run-*/files/media/table/arms_*.json")
    content = json.loads(table.read_text())
    assert {row[0] for row in content["data"]} == {"two", "one"}
    assert "verdict" in content["columns"]
    assert "W&B: 1 run on disk only; upload with: wandb sync runs/*/wandb/offline-run-*" in out

    log.unlink()
    second = attnlab("+experiment=heads", "arms=[two,one]", "claims=[]", *line, "++logger.patience=30")
    assert second[0] == 0
    assert not log.exists(), "what W&B has as it is was sent again"
    assert list(attnlab.folder.glob("runs/wandb/wandb/offline-run-*/*.wandb")) == wandb_files
