"""A sweep's own W&B run: what of the report is in it, and what a bad server does to it."""

import json
from contextlib import suppress

import pytest
from wandb_files import records, summary_of
from wandb_server import Server

from attnlab.sweep import wandb_report, wandb_view

LOGGER = {
    "_target_": "attnlab.training.loggers.wandb.Wandb", "mode": "offline", "project": "attnlab",
    "entity": None,
    "report": True, "workspace": False, "patience": 2,
}  # fmt: skip


@pytest.fixture
def written(made, tmp_path, monkeypatch):
    """`written(**settings)`: what the process does, done here."""
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "runs" / "wandb"))

    def call(**settings):
        told = {"folder": str(made["good"][1]), "root": str(tmp_path / "runs"), "logger": LOGGER | settings}
        return wandb_report.main([json.dumps(told)])

    yield call
    import wandb

    with suppress(ConnectionError):  # its process may have died of the server's answers
        wandb.teardown()


def test_the_report_run_holds_words_effects_table_and_the_report_itself(written, made, tmp_path):
    golden = made["good"][0]
    assert written() == written() == 0
    (file,) = tmp_path.glob("runs/wandb/offline-run-*/*.wandb")  # the second takes the place of the first
    found = list(records(file))
    (run,) = [one.run for one in found if one.WhichOneof("record_type") == "run"][:1]
    assert (run.job_type, run.run_group, run.project) == ("report", golden["experiment"]["name"], "attnlab")
    told = {key: json.loads(value) for key, value in summary_of(file).items()}
    effect = golden["effects"][0]
    about = f"effect/{effect['arm']}/{effect['metric']}"
    assert told["verdict"] == golden["verdict"]["headline"]
    assert told["claim/1/verdict"] == golden["verdict"]["claims"][0]["verdict"]
    assert told[f"{about}/word"] == effect["word"]
    assert [told[f"{about}/{key}"] for key in ("difference", "low", "high")] == pytest.approx(
        [effect["mean"], effect["low"], effect["high"]]
    )
    (table,) = tmp_path.glob("runs/wandb/offline-run-*/files/media/table/*.json")
    shown = json.loads(table.read_text())
    columns, rows = wandb_report.comparison(golden)
    assert (shown["columns"], len(shown["data"])) == (columns, len(rows))
    logged = [one.artifact for one in found if one.WhichOneof("record_type") == "artifact"]
    logged += [one.request.log_artifact.artifact for one in found if one.request.HasField("log_artifact")]
    (artifact,) = [one for one in logged if one.type == "report"]  # a table is an artifact too
    assert {"report.html", "report.md", "report.json"} <= {entry.path for entry in artifact.manifest.contents}


def test_a_table_has_a_row_per_arm_and_metric_and_the_baseline_has_no_effect(made):
    golden = made["good"][0]
    columns, rows = wandb_report.comparison(golden)
    first = [dict(zip(columns, row, strict=True)) for row in rows]
    metrics = {effect["metric"] for effect in golden["effects"]}
    assert {(row["arm"], row["metric"]) for row in first} == {
        (arm, metric) for arm in golden["experiment"]["arms"] for metric in metrics
    }
    baseline = [row for row in first if row["arm"] == golden["experiment"]["baseline"]]
    assert all(row["difference"] is None and row["mean"] is not None for row in baseline)


def test_the_report_run_asks_no_server_and_is_noted_as_not_sent(written, monkeypatch, tmp_path):
    with Server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
        assert written(mode="online") == 0
    assert (server.operations, server.rows) == ([], {})
    assert "wandb sync " in (tmp_path / "runs" / "wandb" / "unsent.txt").read_text()
    assert list(tmp_path.glob("runs/wandb/offline-run-*/*.wandb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside wandb-workspaces
def test_a_view_and_a_report_show_the_experiments_runs_by_arm(made, monkeypatch, tmp_path):
    pytest.importorskip("wandb_workspaces")
    report, folder = made["good"]
    with Server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
        (tmp_path / "wandb").mkdir()
        for _ in range(2):
            wandb_view.save(folder, tmp_path, LOGGER | {"entity": "me"})
    first, page, again, _ = server.views
    assert (first.get("id"), again["id"]) == (None, "dmlldw==")  # the server's: the view is written anew
    shown = json.loads(first["spec"])["section"]
    (runs,) = shown["runSets"]
    assert json.dumps(runs["grouping"]).count('"arm') == 1
    assert "tags" in json.dumps(runs["filters"])
    assert f'"{report["experiment"]["name"]}"' in json.dumps(runs["filters"])
    panels = {group["name"]: json.dumps(group["panels"]) for group in shown["panelBankConfig"]["sections"]}
    assert "val/loss" in panels["loss"]
    assert '"tokens"' in panels["loss"]
    assert "memory/" in panels["memory"]
    assert "speed/train_tokens_per_s" in panels["speed"]
    assert "attention/layer0" in panels["attention"]
    assert page["description"] == report["verdict"]["headline"]
    blocks = {block["type"]: block for block in json.loads(page["spec"])["blocks"]}
    assert report["verdict"]["claims"][0]["sentence"] in blocks["markdown-block"]["content"]
    assert "val/loss" in json.dumps(blocks["panel-grid"])
    grid = json.dumps(blocks["panel-grid"])
    assert '"arm' in grid
    assert f'"{report["experiment"]["name"]}"' in grid
