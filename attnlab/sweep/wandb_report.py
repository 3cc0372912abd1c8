"""The W&B run of a report (job type `report`): the tables of its page.

A separate process logs it after the report is on disk. If that process is slow, hangs or dies, the sweep
waits for a bounded time, prints one line, and keeps its own exit status.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.config import resolve_wandb_mode
from attnlab.report.answer import answer_question
from attnlab.report.schema import Report, load_report
from attnlab.report.section import list_tables
from attnlab.report.sections import build_sections
from attnlab.report.tables.headline import build_headline
from attnlab.store.atomic_files import read_json, write_json
from attnlab.store.fingerprint import compute_digest
from attnlab.sweep import wandb_view
from attnlab.sweep.execute import process_control
from attnlab.sweep.execute.logger_sync import run_logging_process
from attnlab.sweep.plan.fork_server import Context
from attnlab.training.loggers import logger_notes
from attnlab.training.loggers.wandb_logger import WandbSettings, finish_run

MODULE = "attnlab.sweep.wandb_report"
FILES = ("report.html", "report.md", "report.json")


def is_wandb_enabled(settings: Mapping[str, Any]) -> bool:
    """Return whether a command logs to W&B, without importing wandb."""
    return resolve_wandb_mode(settings.get("mode")) != "disabled"


def log_report(folder: Path, root: Path, settings: Mapping[str, Any], context: Context | None) -> None:
    """Log the report in `folder` as a W&B run below `root`; print one line if that fails.

    A report that was logged before, byte for byte and with these settings, is not logged again.
    """
    path = folder / "report.json"
    if not is_wandb_enabled(settings) or not path.is_file():
        return
    digest = compute_digest(
        [path.read_text("utf-8"), {**settings, "mode": resolve_wandb_mode(settings.get("mode"))}], 32
    )
    mark_file = root / "wandb" / f"{folder.name}.sent"
    if read_json(mark_file) == digest:
        return
    task = {"folder": str(folder.absolute()), "root": str(root.absolute()), "logger": dict(settings)}
    timeout = 5.0 * float(settings.get("patience", 20.0))
    if run_logging_process(MODULE, task, root / "wandb" / "report.log", context, timeout):
        write_json(mark_file, digest)


def _compute_run_id(folder: Path, report: Report) -> str:
    """Compute the W&B id of a report's run; the same sweep always gets the same id."""
    return compute_digest([folder.name, sorted(run.id for run in report.runs)])


def main(arguments: list[str]) -> int:
    """Log a report's W&B run and its W&B Report; return 0, or 1 after one line on stderr.

    Args:
        arguments: a JSON object with the keys `folder`, `root` and `logger`.
    """
    task = json.loads(arguments[0])
    folder = Path(task["folder"])
    root = Path(task["root"])
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):  # artifacts are staged below the runs directory
        os.environ.setdefault(name, str(root / "wandb"))
    try:
        _log_report_run(folder, root, task["logger"])
    except Exception as error:  # of the server, the network or wandb
        trouble = " ".join(f"{type(error).__name__}: {error}".split())
        print(
            f"the upload of the report to W&B failed ({trouble}); the report is on disk",
            file=sys.stderr,
            flush=True,
        )
        return 1
    return 0


def _log_report_run(folder: Path, root: Path, settings: Mapping[str, Any]) -> None:
    wandb = WandbSettings.from_group(settings)
    report = load_report(folder / "report.json")
    name = _compute_run_id(folder, report)
    for offline_copy in logger_notes.get_wandb_folder(root / "wandb").glob(f"offline-run-*-{name}"):
        shutil.rmtree(offline_copy)  # this call writes it again
    experiment = report.experiment
    run = wandb.open_run(
        root / "wandb", root, id=name, group=experiment.name, job_type="report", name=folder.name,
        tags=[experiment.name, "report"], config=experiment.to_dict(),
    )  # fmt: skip
    code = 1
    try:
        _log_report_content(run, wandb, folder, report)
        code = 0
    finally:
        finish_run(run, code, root / "wandb")
    if wandb.workspace:
        if reason := logger_notes.read_offline_reason(root):
            raise RuntimeError(f"W&B workspace view not saved: {reason}")
        wandb_view.save_workspace(folder, root, settings)


def _log_report_content(run: Any, settings: Any, folder: Path, report: Report) -> None:
    import wandb

    tables = list_tables(build_sections(report))  # the tables of the page, by name
    records = {name: [*table.iterate_records()] for name, table in tables.items() if not table.is_long}
    run.log(
        {
            name: wandb.Table(
                columns=[*rows[0]],
                data=[[_to_plain(value) for value in row.values()] for row in rows],
                allow_mixed_types=True,  # a resource of the budget is a number or a word
            )
            for name, rows in records.items()
            if rows
        }
    )
    run.summary.update(build_summary(report, records))
    if settings.report:
        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", f"report-{folder.name}"), type="report")
        for file in FILES:
            artifact.add_file(str(folder / file))
        if (folder / "figures").is_dir():
            artifact.add_dir(str(folder / "figures"), name="figures")
        run.log_artifact(artifact)


def build_summary(report: Report, records: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Collect the answer, the verdict and the numbers of claims and effects for a W&B summary."""
    verdict = report.verdict
    summary: dict[str, Any] = {
        "answer": answer_question(report),
        "verdict": build_headline(report),
        "finished": verdict.finished,
        "planned": verdict.planned,
        "exploratory": verdict.exploratory,
    }
    for number, row in enumerate(records.get("claims", ()), 1):
        summary |= {f"claim/{number}/{key}": value for key, value in row.items()}
    for row in records.get("effects", ()):
        summary |= {f"effect/{row['arm']}/{row['metric']}/{key}": value for key, value in row.items()}
    return {key: _to_plain(value) for key, value in summary.items() if value is not None}


def _to_plain(value: Any) -> Any:
    """A value as W&B stores it: an enum would be a Python object there."""
    return value if value is None or isinstance(value, bool | int | float) else str(value)


if __name__ == "__main__":
    sys.exit(process_control.run_guarded(main, sys.argv[1:]))
