"""A sweep and its own W&B run: it is there, it is waited for, and where it is not wanted it costs nothing."""

import pytest

from attnlab.sweep import wandb_report

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
