"""A sweep's own W&B run: what of the report is in it, and what a bad server does to it."""

import json
from contextlib import suppress

import pytest
from wandb_files import records, server, summary_of

from attnlab.report.tables.wording import describe_claim
from attnlab.sweep import wandb_report, wandb_tables, wandb_view

LOGGER = {
    "mode": "offline", "project": "attnlab",
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
    (file,) = tmp_path.glob(
        "runs/wandb/wandb/offline-run-*/*.wandb"
    )  # the second takes the place of the first
    found = list(records(file))
    (run,) = [one.run for one in found if one.WhichOneof("record_type") == "run"][:1]
    assert (run.job_type, run.run_group, run.project) == ("report", golden.experiment.name, "attnlab")
    told = {key: json.loads(value) for key, value in summary_of(file).items()}
    effect = golden.effects[0]
    about = f"effect/{effect.arm}/{effect.metric}"
    assert told["verdict"] == golden.verdict.headline
    assert told["claim/1/verdict"] == golden.verdict.claims[0].verdict
    assert told[f"{about}/word"] == effect.word
    assert [told[f"{about}/{key}"] for key in ("difference", "low", "high")] == pytest.approx(
        [effect.mean, effect.low, effect.high]
    )
    (table,) = tmp_path.glob("runs/wandb/wandb/offline-run-*/files/media/table/*.json")
    shown = json.loads(table.read_text())
    columns, rows = wandb_tables.comparison(golden)
    assert (shown["columns"], len(shown["data"])) == (columns, len(rows))
    logged = [one.artifact for one in found if one.WhichOneof("record_type") == "artifact"]
    logged += [one.request.log_artifact.artifact for one in found if one.request.HasField("log_artifact")]
    (artifact,) = [one for one in logged if one.type == "report"]  # a table is an artifact too
    assert {"report.html", "report.md", "report.json"} <= {entry.path for entry in artifact.manifest.contents}


def test_a_table_has_a_row_per_arm_and_metric_and_the_baseline_has_no_effect(made):
    golden = made["good"][0]
    columns, rows = wandb_tables.comparison(golden)
    first = [dict(zip(columns, row, strict=True)) for row in rows]
    metrics = {effect.metric for effect in golden.effects}
    assert {(row["arm"], row["metric"]) for row in first} == {
        (arm, metric) for arm in golden.experiment.arms for metric in metrics
    }
    baseline = [row for row in first if row["arm"] == golden.experiment.baseline]
    assert all(row["difference"] is row["effect"] is None and row["mean"] is not None for row in baseline)


def test_without_a_server_the_report_run_is_on_disk(written, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    with server("closed") as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        assert written(mode="online") == 0
    assert "W&B went offline: " in capfd.readouterr().err
    assert list(tmp_path.glob("runs/wandb/wandb/offline-run-*/*.wandb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside wandb-workspaces
def test_a_view_and_a_report_show_the_experiments_runs_by_arm(made, monkeypatch, tmp_path):
    views = pytest.importorskip("wandb_workspaces.workspaces")
    pages = pytest.importorskip("wandb_workspaces.reports.v2")
    report, folder = made["good"]
    saved, asked = [], []
    monkeypatch.setattr(views.Workspace, "url", "https://w.b/me/p?nw=1")
    monkeypatch.setattr(views.Workspace, "save", lambda self: saved.append(self))
    monkeypatch.setattr(
        views.Workspace,
        "from_url",
        lambda url: asked.append(url) or views.Workspace(entity="me", project="p"),
    )
    monkeypatch.setattr(pages.Report, "url", "https://w.b/report")
    monkeypatch.setattr(pages.Report, "save", lambda self: saved.append(self))
    (tmp_path / "wandb").mkdir()
    for _ in range(2):
        wandb_view.save(folder, tmp_path, LOGGER | {"entity": "me"})
    assert asked == ["https://w.b/me/p?nw=1"], "the saved view is not written anew"
    view, page, _, _ = saved
    panels = {section.name: str(section.panels) for section in view.sections}
    assert "val/loss" in panels["loss"]
    assert "tokens" in panels["loss"]
    assert "memory/" in panels["memory"]
    assert "speed/train_tokens_per_s" in panels["speed"]
    assert "attention/layer0" in panels["attention"]
    runset = str(view.runset_settings)
    assert "arm" in runset
    assert report.experiment.name in runset
    assert page.description == report.verdict.headline
    text, grid = page.blocks
    assert describe_claim(report.verdict.claims[0]) in text.text.replace("\\", "")
    assert "val/loss" in str(grid)
    assert report.experiment.name in str(grid.runsets)
