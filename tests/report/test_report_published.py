"""The W&B run of a sweep: its content of the report, and a faulty server."""

import json
from contextlib import suppress

import pytest
from wandb_files import read_records, read_summary, start_faulty_server

from attnlab.report.section import list_tables
from attnlab.report.sections import build_sections
from attnlab.report.tables.wording import describe_claim
from attnlab.sweep import wandb_report, wandb_view

LOGGER = {
    "mode": "offline", "project": "attnlab",
    "entity": None,
    "report": True, "workspace": False, "patience": 2,
}  # fmt: skip


@pytest.fixture
def run_wandb_report(synthetic_reports, tmp_path, monkeypatch):
    """`run_wandb_report(**settings)`: the reporting process, run in this one."""
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "runs" / "wandb"))

    def call(**settings):
        request = {
            "folder": str(synthetic_reports["good"][1]),
            "root": str(tmp_path / "runs"),
            "logger": LOGGER | settings,
        }
        return wandb_report.main([json.dumps(request)])

    yield call
    import wandb

    with suppress(ConnectionError):  # its process may have died of the server's answers
        wandb.teardown()


def test_report_run_has_verdicts_effects_table_and_report(run_wandb_report, synthetic_reports, tmp_path):
    golden = synthetic_reports["good"][0]
    assert run_wandb_report() == run_wandb_report() == 0
    (file,) = tmp_path.glob(
        "runs/wandb/wandb/offline-run-*/*.wandb"
    )  # the second takes the place of the first
    records = list(read_records(file))
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"][:1]
    assert (run.job_type, run.run_group, run.project) == ("report", golden.experiment.name, "attnlab")
    summary = {key: json.loads(value) for key, value in read_summary(file).items()}
    effect = golden.effects[0]
    prefix = f"effect/{effect.arm}/{effect.metric}"
    assert summary["verdict"] == golden.verdict.headline
    assert summary["claim/1/verdict"] == golden.verdict.claims[0].verdict
    assert summary[f"{prefix}/verdict"] == effect.verdict
    assert [summary[f"{prefix}/{key}"] for key in ("mean", "low", "high")] == pytest.approx(
        [effect.mean, effect.low, effect.high]
    )
    logged_tables = {
        path.name.rpartition("_0_")[0]: json.loads(path.read_text())
        for path in tmp_path.glob("runs/wandb/wandb/offline-run-*/files/media/table/*.json")
    }
    tables = list_tables(build_sections(golden))
    assert {name for name, table in tables.items() if table.rows and not table.is_long} == {*logged_tables}
    for name, content in logged_tables.items():
        columns, rows = content["columns"], [*tables[name].iterate_records()]
        assert (columns, len(content["data"])) == ([*rows[0]], len(rows))
    index = logged_tables["claims"]["columns"].index("verdict")
    assert [row[index] for row in logged_tables["claims"]["data"]] == [
        claim.verdict for claim in golden.verdict.claims
    ]
    logged = [record.artifact for record in records if record.WhichOneof("record_type") == "artifact"]
    logged += [
        record.request.log_artifact.artifact for record in records if record.request.HasField("log_artifact")
    ]
    (artifact,) = [record for record in logged if record.type == "report"]  # a table is an artifact too
    assert {"report.html", "report.md", "report.json"} <= {entry.path for entry in artifact.manifest.contents}


def test_report_run_is_on_disk_without_a_server(run_wandb_report, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    with start_faulty_server("closed") as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        assert run_wandb_report(mode="online") == 0
    assert "W&B went offline: " in capfd.readouterr().err
    assert list(tmp_path.glob("runs/wandb/wandb/offline-run-*/*.wandb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside wandb-workspaces
def test_workspace_and_wandb_report_show_runs_by_arm(synthetic_reports, monkeypatch, tmp_path):
    views = pytest.importorskip("wandb_workspaces.workspaces")
    pages = pytest.importorskip("wandb_workspaces.reports.v2")
    report, folder = synthetic_reports["good"]
    saved, loaded = [], []
    monkeypatch.setattr(views.Workspace, "url", "https://w.b/me/p?nw=1")
    monkeypatch.setattr(views.Workspace, "save", lambda self: saved.append(self))
    monkeypatch.setattr(
        views.Workspace,
        "from_url",
        lambda url: loaded.append(url) or views.Workspace(entity="me", project="p"),
    )
    monkeypatch.setattr(pages.Report, "url", "https://w.b/report")
    monkeypatch.setattr(pages.Report, "save", lambda self: saved.append(self))
    (tmp_path / "wandb").mkdir()
    for _ in range(2):
        wandb_view.save_workspace(folder, tmp_path, LOGGER | {"entity": "me"})
    assert loaded == ["https://w.b/me/p?nw=1"], "the saved view is not written anew"
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
