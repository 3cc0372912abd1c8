"""A sweep and its own W&B run: it is there, it is waited for, and where it is not wanted it costs nothing."""

from pathlib import Path

import pytest

from attnlab.report.schema import load
from attnlab.sweep import wandb_report, wandb_tables

REFERENCE = Path(__file__).parents[2] / "reports" / "reference" / "gqa_vs_mha" / "report.json"

LOGGER = {
    "mode": "offline", "project": "attnlab",
    "entity": None,
    "report": True, "workspace": False, "patience": 2,
}  # fmt: skip


def test_the_sweep_waits_for_a_while_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wandb_report, "MODULE", "sleeper")
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "report.json").write_text('{"runs": []}')
    wandb_report.publish(tmp_path, tmp_path / "runs", LOGGER | {"patience": 0.05}, None)
    line = "the loggers did not take everything within 0.25 s; the results are on disk\n"
    assert capsys.readouterr().out == line


def test_what_w_and_b_gets_is_text_and_numbers():
    report = load(REFERENCE)
    (*_, columns), rows = wandb_tables.comparison(report)
    looks, made = wandb_tables.paths(report)
    cells = [*wandb_tables.summary(report).values(), *(cell for row in (*rows, *made) for cell in row)]
    assert {type(cell) for cell in cells} == {str, int, float, bool, type(None)}, "no enum: an object to W&B"
    assert (columns, looks[-1]) == ("training", "word")
    assert {row[-1] for row in made} == {"INCONCLUSIVE", "SUPPORTED"}


def test_the_summary_has_one_interval_of_a_claim_at_95_percent_whatever_level_decided():
    report = load(REFERENCE)
    summary = wandb_tables.summary(report)
    claim = report.verdict.claims[0]
    assert claim.decision.level == 0.9
    assert summary["claim/1/effect"] == "−0.001 nats, 95% CI [−0.018, +0.016]"
    assert (summary["claim/1/low"], summary["claim/1/high"]) == (claim.interval.low, claim.interval.high)
    assert summary["claim/1/effect"] in summary["claim/1/sentence"]
    assert summary["effect/gqa/val/loss/effect"] == summary["claim/1/effect"]


def test_without_w_and_b_nothing_of_it_is_imported_or_written(attnlab):
    status, out, _ = attnlab("+experiment=heads", "arms=[two,one]", "claims=[]")
    assert status == 0
    assert "W&B" not in out
    assert not (attnlab.folder / "runs" / "wandb").exists()
    assert not wandb_report.wanted({"mode": "disabled"})


@pytest.mark.rare
def test_a_sweep_ends_with_a_report_run(attnlab):
    line = [f"++logger.{key}={'null' if value is None else value}" for key, value in LOGGER.items()]
    status, out, err = attnlab(
        "+experiment=heads", "arms=[two,one]", "claims=[]", *line, "++logger.patience=30"
    )
    assert status == 0, err
    log = attnlab.folder / "runs" / "wandb" / "report.log"
    written = list(attnlab.folder.glob("runs/wandb/wandb/offline-run-*/*.wandb"))
    assert written, log.read_text()
    assert "W&B: 1 run on disk only; upload with: wandb sync runs/*/wandb/offline-run-*" in out

    log.unlink()
    again = attnlab("+experiment=heads", "arms=[two,one]", "claims=[]", *line, "++logger.patience=30")
    assert again[0] == 0
    assert not log.exists(), "what W&B has as it is was sent again"
    assert list(attnlab.folder.glob("runs/wandb/wandb/offline-run-*/*.wandb")) == written
