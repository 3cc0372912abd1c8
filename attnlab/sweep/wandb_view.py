"""What W&B shows of an experiment: a saved view of its workspace and a Report, both grouped by arm.

Runs are found by the experiment's tag, so those that another experiment has trained are among them.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.report.schema import Report, load
from attnlab.store.files import read_json, write_json
from attnlab.training.loggers.labels import PROJECT, TOKENS


def save(folder: Path, root: Path, settings: Mapping[str, Any]) -> None:
    """A saved view of the experiment's runs, and a W&B Report: the Markdown of ours over their curves. Both
    are grouped by arm; a view that was saved before is written anew.
    """
    import wandb
    import wandb_workspaces.reports.v2 as pages
    import wandb_workspaces.workspaces as views
    from wandb_workspaces.expr import Config, Tags

    report = load(folder / "report.json")
    kept = root / "wandb" / f"{folder.name}.view"
    experiment = report.experiment
    project = str(settings["project"] or os.environ.get("WANDB_PROJECT") or PROJECT)
    entity = str(settings["entity"] or wandb.Api().default_entity)  # WANDB_ENTITY, else the account's
    sections: dict[str, list[Any]] = {
        "loss": [pages.LinePlot(x=TOKENS, y=[name]) for name in _curves(report)],
        "memory": [pages.BarPlot(metrics=[f"memory/{name}"]) for name in _figures(report, "memory")],
        "speed": [pages.BarPlot(metrics=[f"speed/{name}"]) for name in _figures(report, "speed")],
        "attention": [pages.MediaBrowser(media_keys=_maps(report))] if _maps(report) else [],
    }
    saved = read_json(kept)
    view: Any = (
        views.Workspace.from_url(saved)
        if isinstance(saved, str)
        else views.Workspace(entity=entity, project=project, name=f"attnlab: {folder.name}")
    )
    view.sections = [
        views.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items() if panels
    ]
    view.runset_settings = views.RunsetSettings(
        filters=[Tags().isin([experiment.name])], groupby=[Config("arm")]
    )
    view.save()
    write_json(kept, view.url)
    print(f"W&B workspace: {view.url}", flush=True)
    runs = pages.Runset(
        entity=entity, project=project, filters=[Tags().isin([experiment.name])], groupby=["config.arm"]
    )
    text = (folder / "report.md").read_text(encoding="utf-8")
    page = pages.Report(
        project=project, entity=entity, title=f"attnlab: {folder.name}",
        description=report.verdict.headline,
        blocks=[
            pages.MarkdownBlock(text=text),
            pages.PanelGrid(runsets=[runs], panels=[panel for group in sections.values() for panel in group]),
        ],
    )  # fmt: skip
    page.save()
    print(f"W&B report: {page.url}", flush=True)


def _curves(report: Report) -> list[str]:
    """The curves that runs log, the experiment's metric first where it is one."""
    logged = ["val/loss", "train/loss", "val/accuracy"]
    seen = {name for run in report.runs for name in run.metrics}
    metric = report.experiment.metric
    return sorted([name for name in logged if name in seen], key=lambda name: name != metric)


def _figures(report: Report, group: str) -> list[str]:
    """The names of what runs tell of their memory or speed at their end."""
    seen = {
        name: None for run in report.runs for name, value in getattr(run, group).items() if value is not None
    }
    return list(seen)


def _maps(report: Report) -> list[str]:
    """The names of the pictures that runs log."""
    scores = report.heads.scores if report.heads else ()
    layers = max((len(run.values) for score in scores for run in score.runs), default=0)
    return [f"attention/layer{n}" for n in range(layers)]
