"""A sweep's own W&B run, of job type `report`: the comparison as a table, the verdicts, the effects.

Surprising: it is written by a process of its own, after the report is on disk, and that process may take its
time, hang or die: the sweep waits for a while, says one line, and ends as it would have ended. Like a run's,
it is a file on disk, and sent from there (`execute.sending`).
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.config import wandb_mode
from attnlab.errors import printable
from attnlab.store.files import read_json, write_json
from attnlab.store.fingerprint import digest
from attnlab.sweep import wandb_view
from attnlab.sweep.execute import process, slots
from attnlab.sweep.plan.checks import Context
from attnlab.training.loggers.unsent import note

MODULE = "attnlab.sweep.wandb_report"
PREFIX = "W&B "
FILES = ("report.html", "report.md", "report.json")


def wanted(settings: Mapping[str, Any]) -> bool:
    """Whether a command mirrors anything to W&B; imports nothing of it."""
    return wandb_mode(settings.get("mode")) in ("offline", "online")


def publish(folder: Path, root: Path, settings: Mapping[str, Any], context: Context | None) -> str | None:
    """Writes the report of `folder` as a W&B run below `root`; says what went wrong in a line.

    Returns the run's id, or None where there is none. A report that is written as it is, byte for byte and
    with these settings, is not written again.
    """
    content = _content(folder, settings) if wanted(settings) else None
    if content is None:
        return None
    mark, name = root / "wandb" / f"{folder.name}.sent", _name(folder)
    if read_json(mark) != content:
        said = _child(folder, root, settings, context, "write", 5.0 * float(settings.get("patience", 20.0)))
        for line in said:
            print(printable(line), flush=True)
        if not said:
            write_json(mark, content)
    return name


def page(
    folder: Path, root: Path, settings: Mapping[str, Any], context: Context | None, seconds: float
) -> None:
    """Writes a W&B Report of a report that W&B has, for as long as is left; says what went wrong."""
    for line in _child(folder, root, settings, context, "page", seconds):
        print(printable(line), flush=True)


def _child(
    folder: Path, root: Path, settings: Mapping[str, Any], context: Context | None, act: str, bound: float
) -> list[str]:
    """What the process says that writes to W&B, waited for within bounds."""
    log = root / "wandb" / "report.log"
    task = {
        "folder": str(folder.absolute()),
        "root": str(root.absolute()),
        "logger": dict(settings),
        "act": act,
    }
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
    except OSError as error:
        said = [f"{PREFIX}has no report run: {error}"]
    return said


def _name(folder: Path) -> str:
    """The W&B id of a report's run: the same sweep's is the same run."""
    report = read_json(folder / "report.json")
    assert report is not None
    return digest([folder.name, sorted(str(run["id"]) for run in report["runs"])])


def _content(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """One word for what W&B is given; None where there is no report."""
    path = folder / "report.json"
    if not path.is_file():
        return None
    return digest([path.read_text("utf-8"), {**settings, "mode": wandb_mode(settings.get("mode"))}], 32)


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
        about["training"] = claim["training"] and claim["training"]["words"]
        figures |= {f"claim/{n}/{key}": value for key, value in about.items()}
    for row in report["effects"]:
        about = {
            "difference": row["mean"],
            "training": row["training"] and row["training"]["words"],
            **{key: row[key] for key in ("low", "high", "n", "word", "p_holm")},
        }
        figures |= {f"effect/{row['arm']}/{row['metric']}/{key}": value for key, value in about.items()}
    if report["exchange"]:
        figures |= {"margin": report["experiment"]["margin_said"], "exchange": report["exchange"]["words"]}
    return {key: value for key, value in figures.items() if value is not None}


def comparison(report: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: every arm on every metric, its mean, and its difference from the baseline."""
    columns = ["arm", "metric", "runs", "mean", "difference", "low", "high", "p_holm", "word"]
    columns += ["training"] if report["exchange"] else []
    effects = {(row["metric"], row["arm"]): row for row in report["effects"]}
    rows = []
    for metric in dict.fromkeys(row["metric"] for row in report["effects"]):
        for arm in report["experiment"]["arms"]:
            done = [run for run in report["runs"] if run["arm"] == arm and run["status"] == "done"]
            values = [run["metrics"][metric] for run in done if run["metrics"].get(metric) is not None]
            effect = effects.get((metric, arm), {})
            mean = sum(values) / len(values) if values else None
            shown = [effect.get(key) for key in ("mean", "low", "high", "p_holm", "word")]
            training = [(effect.get("training") or {}).get("words")] if report["exchange"] else []
            rows.append([arm, metric, len(values), mean, *shown, *training])
    return columns, rows


def paths(report: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: every look that was made of a claim, where there are looks."""
    seen = ["seeds", "n", "estimate", "low", "high", "level"]
    rows = []
    for number, claim in enumerate(report["verdict"]["claims"], start=1):
        looks = claim["looks"] or {"design": "fixed"}
        for look, made in enumerate(looks["made"] if looks["design"] != "fixed" else (), start=1):
            word = claim["verdict"] if look == looks["decided"] else "open"
            rows.append([number, claim["says"], look, *(made[key] for key in seen), word])
    return ["claim", "says", "look", *seen, "word"], rows


def main(arguments: list[str]) -> int:
    """The process: writes the W&B run of a report, or the W&B Report of it. 0, or 1 after one line."""
    task = json.loads(arguments[0])
    folder, root = Path(task["folder"]), Path(task["root"])
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):  # what an artifact stages stays with the store
        os.environ.setdefault(name, str(root / "wandb"))
    try:
        act = wandb_view.save if task.get("act") == "page" else _write
        act(folder, root, task["logger"])
    except Exception as error:  # the server's, the network's or wandb's own
        _warn(f"gave up on the report ({type(error).__name__}: {error})")
        return 1
    return 0


def _write(folder: Path, root: Path, settings: Mapping[str, Any]) -> None:
    from attnlab.training.loggers.wandb import Wandb  # late: with it comes torch

    mirror, report, name = Wandb.of(settings), read_json(folder / "report.json"), _name(folder)
    assert report is not None
    for old in root.glob(f"wandb/*run-*-{name}"):  # the same sweep's, and about to be written anew
        shutil.rmtree(old)
    if mirror.mode == "online":
        note(root / "wandb", "has not been sent the report yet")
    experiment = report["experiment"]
    run = mirror.open(
        root, id=name, group=experiment["name"], job_type="report", name=folder.name,
        tags=[experiment["name"], "report"], config=experiment,
    )  # fmt: skip
    code = 1
    try:
        _fill(run, mirror, folder, report)
        code = 0
    finally:
        run.finish(exit_code=code)
    _tag(root, report, mirror.mode == "online")


def _tag(root: Path, report: Mapping[str, Any], online: bool) -> None:
    """The runs that were stored before, for another experiment, carry the tag of this one too."""
    from attnlab.training.loggers import tags

    for run in report["runs"]:
        if tags.add(root / str(run["id"]), report["experiment"]["name"]) and online:
            note(root / str(run["id"]) / "wandb", "has not been sent its new tag yet")


def _fill(run: Any, mirror: Any, folder: Path, report: Mapping[str, Any]) -> None:
    import wandb

    columns, rows = comparison(report)
    tables = {"comparison": wandb.Table(columns=[*columns], data=rows)}
    columns, rows = paths(report)
    if rows:
        tables["looks"] = wandb.Table(columns=[*columns], data=rows)
    run.log(tables)
    run.summary.update(summary(report))
    if mirror.report:
        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", f"report-{folder.name}"), type="report")
        for file in FILES:
            artifact.add_file(str(folder / file))
        if (folder / "figures").is_dir():
            artifact.add_dir(str(folder / "figures"), name="figures")
        run.log_artifact(artifact)


def _warn(trouble: str) -> None:
    print(f"{PREFIX}{' '.join(trouble.split())}; the report is on disk", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(process.guarded(main, sys.argv[1:]))
