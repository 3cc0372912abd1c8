"""W&B views of an experiment: a saved view of the workspace and a W&B Report, both grouped by arm.

Runs are selected by the experiment's tag, so runs that another experiment trained are included.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.report.schema import Report, load_report
from attnlab.report.tables.headline import build_headline
from attnlab.store.atomic_files import read_json, write_json
from attnlab.training.loggers.logger_notes import DEFAULT_PROJECT, TOKENS_METRIC


def save_workspace(folder: Path, root: Path, settings: Mapping[str, Any]) -> None:
    """Save a workspace view of the experiment's runs and a W&B Report: our Markdown above their curves.

    Both are grouped by arm. A view that was saved before is overwritten.
    """
    import wandb
    import wandb_workspaces.reports.v2 as pages
    import wandb_workspaces.workspaces as views
    from wandb_workspaces.expr import Config, Tags

    report = load_report(folder / "report.json")
    url_file = root / "wandb" / f"{folder.name}.view"
    experiment = report.experiment
    project = str(settings["project"] or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT)
    entity = str(settings["entity"] or wandb.Api().default_entity)  # WANDB_ENTITY, else the account's
    sections: dict[str, list[Any]] = {
        "loss": [pages.LinePlot(x=TOKENS_METRIC, y=[name]) for name in _list_curves(report)],
        "memory": [
            pages.BarPlot(metrics=[f"memory/{name}"]) for name in _list_metric_names(report, "memory")
        ],
        "speed": [pages.BarPlot(metrics=[f"speed/{name}"]) for name in _list_metric_names(report, "speed")],
        "attention": [pages.MediaBrowser(media_keys=_list_attention_maps(report))]
        if _list_attention_maps(report)
        else [],
    }
    saved_url = read_json(url_file)
    view: Any = (
        views.Workspace.from_url(saved_url)
        if isinstance(saved_url, str)
        else views.Workspace(entity=entity, project=project, name=f"attnlab: {folder.name}")
    )
    view.sections = [
        views.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items() if panels
    ]
    view.runset_settings = views.RunsetSettings(
        filters=[Tags().isin([experiment.name])], groupby=[Config("arm")]
    )
    view.save()
    write_json(url_file, view.url)
    print(f"W&B workspace: {view.url}", flush=True)
    runs = pages.Runset(
        entity=entity, project=project, filters=[Tags().isin([experiment.name])], groupby=["config.arm"]
    )
    text = (folder / "report.md").read_text(encoding="utf-8")
    page = pages.Report(
        project=project, entity=entity, title=f"attnlab: {folder.name}",
        description=build_headline(report),
        blocks=[
            pages.MarkdownBlock(text=text),
            pages.PanelGrid(runsets=[runs], panels=[panel for group in sections.values() for panel in group]),
        ],
    )  # fmt: skip
    page.save()
    print(f"W&B report: {page.url}", flush=True)


def _list_curves(report: Report) -> list[str]:
    """List the curves that runs log, the experiment's metric first if it is among them."""
    logged = ["val/loss", "train/loss", "val/accuracy"]
    measured = {name for run in report.runs for name in run.metrics}
    metric = report.experiment.metric
    return sorted([name for name in logged if name in measured], key=lambda name: name != metric)


def _list_metric_names(report: Report, group: str) -> list[str]:
    """List the measured numbers of a group, `memory` or `speed`, in the order of their first appearance."""
    names = [name for run in report.runs for name, value in getattr(run, group).items() if value is not None]
    return list(dict.fromkeys(names))


def _list_attention_maps(report: Report) -> list[str]:
    """List the names under which runs log their attention maps."""
    layers = max((len(table) for run in report.runs for table in run.head_scores.values()), default=0)
    return [f"attention/layer{n}" for n in range(layers)]
