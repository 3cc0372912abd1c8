"""A sweep's own W&B run, of job type `report`: the comparison as a table, the verdicts, the effects.

A process of its own writes it, after the report is on disk. That process may take its time, hang or die: the
sweep waits for a while, prints one line, and ends as it would have ended.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.config import wandb_mode
from attnlab.report.schema import Report, load
from attnlab.store.files import read_json, write_json
from attnlab.store.fingerprint import digest
from attnlab.sweep import wandb_view
from attnlab.sweep.execute import process
from attnlab.sweep.execute.stored_runs import run_child
from attnlab.sweep.plan.fork_server import Context
from attnlab.training.loggers import notes

MODULE = "attnlab.sweep.wandb_report"
FILES = ("report.html", "report.md", "report.json")


def wanted(settings: Mapping[str, Any]) -> bool:
    """Whether a command logs to W&B; imports nothing of it."""
    return wandb_mode(settings.get("mode")) != "disabled"


def publish(folder: Path, root: Path, settings: Mapping[str, Any], context: Context | None) -> None:
    """Logs the report of `folder` as a W&B run below `root`; prints one line where that failed.

    A report that was logged as it is, byte for byte and with these settings, is not logged again.
    """
    path = folder / "report.json"
    if not wanted(settings) or not path.is_file():
        return
    content = digest([path.read_text("utf-8"), {**settings, "mode": wandb_mode(settings.get("mode"))}], 32)
    mark = root / "wandb" / f"{folder.name}.sent"
    if read_json(mark) == content:
        return
    task = {"folder": str(folder.absolute()), "root": str(root.absolute()), "logger": dict(settings)}
    bound = 5.0 * float(settings.get("patience", 20.0))
    if run_child(MODULE, task, root / "wandb" / "report.log", context, bound):
        write_json(mark, content)


def _name(folder: Path, report: Report) -> str:
    """The W&B id of a report's run: the same sweep's is the same run."""
    return digest([folder.name, sorted(run.id for run in report.runs)])


def main(arguments: list[str]) -> int:
    """The process: logs the W&B run of a report, and the W&B Report of it. 0, or 1 after one line."""
    task = json.loads(arguments[0])
    folder = Path(task["folder"])
    root = Path(task["root"])
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):  # what an artifact stages stays with the store
        os.environ.setdefault(name, str(root / "wandb"))
    try:
        _write(folder, root, task["logger"])
    except Exception as error:  # the server's, the network's or wandb's own
        trouble = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"W&B gave up on the report ({trouble}); the report is on disk", file=sys.stderr, flush=True)
        return 1
    return 0


def _write(folder: Path, root: Path, settings: Mapping[str, Any]) -> None:
    from attnlab.training.loggers.wandb import Wandb, finish  # late: with it comes torch

    wandb = Wandb.of(settings)
    report = load(folder / "report.json")
    name = _name(folder, report)
    for old in notes.wandb_folder(root / "wandb").glob(f"offline-run-*-{name}"):  # about to be written anew
        shutil.rmtree(old)
    experiment = report.experiment
    run = wandb.open(
        root / "wandb", root, id=name, group=experiment.name, job_type="report", name=folder.name,
        tags=[experiment.name, "report"], config=experiment.plain(),
    )  # fmt: skip
    code = 1
    try:
        _fill(run, wandb, folder, report)
        code = 0
    finally:
        finish(run, code, root / "wandb")
    if wandb.workspace:
        if why := notes.offline_reason(root):
            raise RuntimeError(f"no workspace view is saved: {why}")
        wandb_view.save(folder, root, settings)


def _fill(run: Any, settings: Any, folder: Path, report: Report) -> None:
    import wandb

    from attnlab.sweep.wandb_tables import comparison, paths, summary  # late: scipy

    columns, rows = comparison(report)
    tables = {"comparison": wandb.Table(columns=[*columns], data=rows)}
    columns, rows = paths(report)
    if rows:
        tables["looks"] = wandb.Table(columns=[*columns], data=rows)
    run.log(tables)
    run.summary.update(summary(report))
    if settings.report:
        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", f"report-{folder.name}"), type="report")
        for file in FILES:
            artifact.add_file(str(folder / file))
        if (folder / "figures").is_dir():
            artifact.add_dir(str(folder / "figures"), name="figures")
        run.log_artifact(artifact)


if __name__ == "__main__":
    sys.exit(process.guarded(main, sys.argv[1:]))
