"""A sweep's own W&B run, of job type `report`: the comparison as a table, the verdicts, the effects.

Surprising: it is written by a process of its own, after the report is on disk, and that process may take its
time, hang or die: the sweep waits for a while, says one line, and ends as it would have ended.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnlab.config import wandb_mode
from attnlab.errors import printable
from attnlab.store.files import read_json, write_json
from attnlab.store.fingerprint import digest
from attnlab.sweep.execute import slots
from attnlab.sweep.plan.checks import Context

MODULE = "attnlab.sweep.wandb_report"
PREFIX = "W&B "
FILES = ("report.html", "report.md", "report.json")


def wanted(settings: Mapping[str, Any]) -> bool:
    """Whether a command mirrors anything to W&B; imports nothing of it."""
    return wandb_mode(settings.get("mode")) in ("offline", "online")


def publish(folder: Path, root: Path, settings: Mapping[str, Any], context: Context | None) -> None:
    """Mirrors the report of `folder`, for as long as W&B's patience goes; says what went wrong in a line.

    A report that W&B has as it is, byte for byte and with these settings, is not sent again.
    """
    if not wanted(settings):
        return
    mark, sent = root / "wandb" / f"{folder.name}.sent", _content(folder, settings)
    if sent is not None and read_json(mark) == sent:
        return
    bound, log = 5.0 * float(settings.get("patience", 20.0)), root / "wandb" / "report.log"
    task = {"folder": str(folder.absolute()), "root": str(root.absolute()), "logger": dict(settings)}
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        child = slots.start(slots.Slot(0, None, 1), context, MODULE, [json.dumps(task)], log)
        try:
            deadline = time.monotonic() + bound
            while child.code() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            late = child.code() is None
        finally:
            slots.end([child], grace=0.5)
        said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(PREFIX)]
        if late:
            said = [f"{PREFIX}did not take the report within {bound:g} s; it is on disk"]
        elif child.code() and not said:
            said = [f"{PREFIX}has no report run; {log} says why"]
        elif not said and sent is not None:
            write_json(mark, sent)
    except OSError as error:
        said = [f"{PREFIX}has no report run: {error}"]
    for line in said:
        print(printable(line), flush=True)


def _content(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """One word for what W&B is given; None where there is no report."""
    path = folder / "report.json"
    if not path.is_file():
        return None
    return digest([path.read_text("utf-8"), {**settings, "mode": wandb_mode(settings.get("mode"))}], 32)


def tell_unsent(root: Path, ids: Iterable[str]) -> None:
    """One line about the runs of which not all is with the server."""
    missing = [name for name in ids if (root / name / "wandb" / "unsent.txt").exists()]
    if missing:
        why = root / missing[0] / "wandb" / "unsent.txt"
        print(f"{PREFIX}lacks {len(missing)} runs ({why} says why); send them later: "
              f"wandb sync {root}/*/wandb/*run-*", flush=True)  # fmt: skip


def summary(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report's words and figures, under the names that they have in the W&B summary."""
    verdict = report["verdict"]
    figures = {
        "verdict": verdict["headline"],
        **{k: verdict[k] for k in ("finished", "planned", "exploratory")},
    }
    for n, claim in enumerate(verdict["claims"], start=1):
        decided = {key: claim["decision"][key] for key in ("estimate", "low", "high", "p_holm")}
        about = {"says": claim["says"], "verdict": claim["verdict"], "sentence": claim["sentence"], **decided}
        figures |= {f"claim/{n}/{key}": value for key, value in about.items()}
    for row in report["effects"]:
        about = {
            "difference": row["mean"],
            **{key: row[key] for key in ("low", "high", "n", "word", "p_holm")},
        }
        figures |= {f"effect/{row['arm']}/{row['metric']}/{key}": value for key, value in about.items()}
    return {key: value for key, value in figures.items() if value is not None}


def comparison(report: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: every arm on every metric, its mean, and its difference from the baseline."""
    columns = ["arm", "metric", "runs", "mean", "difference", "low", "high", "p_holm", "word"]
    effects = {(row["metric"], row["arm"]): row for row in report["effects"]}
    rows = []
    for metric in dict.fromkeys(row["metric"] for row in report["effects"]):
        for arm in report["experiment"]["arms"]:
            done = [run for run in report["runs"] if run["arm"] == arm and run["status"] == "done"]
            values = [run["metrics"][metric] for run in done if run["metrics"].get(metric) is not None]
            effect = effects.get((metric, arm), {})
            mean = sum(values) / len(values) if values else None
            shown = [effect.get(key) for key in ("mean", "low", "high", "p_holm", "word")]
            rows.append([arm, metric, len(values), mean, *shown])
    return columns, rows


def main(arguments: list[str]) -> int:
    """The process: writes the W&B run of the report it is told of. 0, or 1 after one line."""
    task = json.loads(arguments[0])
    folder, root = Path(task["folder"]), Path(task["root"])
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):  # what an artifact stages stays with the store
        os.environ.setdefault(name, str(root / "wandb"))
    try:
        _write(folder, root, task["logger"])
    except Exception as error:  # the server's, the network's or wandb's own
        _warn(f"gave up on the report ({type(error).__name__}: {error})")
        return 1
    return 0


def _write(folder: Path, root: Path, settings: Mapping[str, Any]) -> None:
    from attnlab.model.build import make

    mirror, report = make(settings), read_json(folder / "report.json")
    assert report is not None
    name = digest([folder.name, sorted(str(run["id"]) for run in report["runs"])])
    for old in root.glob(f"wandb/offline-run-*-{name}"):  # the same sweep's, and about to be written anew
        shutil.rmtree(old)
    experiment = report["experiment"]
    run = mirror.open(
        root, _warn, id=name, group=experiment["name"], job_type="report", name=folder.name,
        tags=[experiment["name"], "report"], config=experiment,
    )  # fmt: skip
    code = 1
    try:
        _fill(run, mirror, folder, report)
        code = 0
    finally:
        run.finish(exit_code=code)


def _fill(run: Any, mirror: Any, folder: Path, report: Mapping[str, Any]) -> None:
    import wandb

    columns, rows = comparison(report)
    run.log({"comparison": wandb.Table(columns=[*columns], data=rows)})
    run.summary.update(summary(report))
    if mirror.report:
        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", f"report-{folder.name}"), type="report")
        for file in FILES:
            artifact.add_file(str(folder / file))
        if (folder / "figures").is_dir():
            artifact.add_dir(str(folder / "figures"), name="figures")
        run.log_artifact(artifact)
    if mirror.workspace and not run.offline:
        _workspace(run, folder, report)


def _workspace(run: Any, folder: Path, report: Mapping[str, Any]) -> None:
    """A W&B Report: the Markdown of ours over the curves of the runs."""
    import wandb_workspaces.reports.v2 as pages

    experiment = report["experiment"]
    runs = pages.Runset(entity=run.entity, project=run.project, filters=f"Group == '{experiment['name']}'")
    curves = pages.LinePlot(x="trainer/global_step", y=[experiment["metric"]])
    text = (folder / "report.md").read_text(encoding="utf-8")
    page = pages.Report(
        project=run.project, entity=run.entity, title=f"attnlab: {folder.name}",
        description=report["verdict"]["headline"],
        blocks=[pages.MarkdownBlock(text=text), pages.PanelGrid(runsets=[runs], panels=[curves])],
    )  # fmt: skip
    page.save()
    print(f"{PREFIX}report: {page.url}", flush=True)


def _warn(trouble: str) -> None:
    print(f"{PREFIX}{' '.join(trouble.split())}; the report is on disk", file=sys.stderr, flush=True)
