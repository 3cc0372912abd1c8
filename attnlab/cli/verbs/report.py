"""`python -m attnlab report`: render reports from their data, or compare two reports."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from attnlab.cli.step_progress import show_steps
from attnlab.errors import InvalidConfig, escape_unprintable, format_error_line
from attnlab.sweep.slow_notice import notify_if_slow


def main(options: argparse.Namespace) -> int:
    """Render a report or a folder of reports with its index, or compare two reports."""
    if options.now is not None:
        from attnlab.cli.hydra_runner import extract_hydra_flags, run_hydra

        if options.folder or options.diff or options.json:
            raise InvalidConfig(
                "report --now takes only the overrides of a command: remove the other arguments"
            )
        return run_hydra([*extract_hydra_flags(options), "++sweep.show=report", *options.now])
    if options.config_dir is not None:
        raise InvalidConfig("report --config-dir needs --now: add it, or remove --config-dir")
    if (options.folder is None) == (options.diff is None):
        raise InvalidConfig(
            "report needs a folder, as in python -m attnlab report reports/NAME, report reports, "
            "or report --diff A B"
        )
    if options.diff:
        from attnlab.report.report_diff import compute_diff, format_diff

        a, b = map(Path, options.diff)
        print(
            _format_json(compute_diff(a, b).plain())
            if options.json
            else escape_unprintable(format_diff(a, b), allowed="\n")
        )
        return 0
    from attnlab.report.ladder_schema import LADDER_FILE
    from attnlab.report.pages.index import find_report_sources
    from attnlab.report.pages.report_files import name_edited_report, render_report

    folder = Path(options.folder)
    if (
        not (folder / "report.json").is_file()
        and not (folder / LADDER_FILE).is_file()
        and find_report_sources(folder)
    ):
        return _render_folder(folder, as_json=options.json)
    from attnlab.report.replications.ladder_page import render_ladder

    is_ladder = (folder / LADDER_FILE).is_file()
    source = folder / LADDER_FILE if is_ladder else folder / "report.json" if folder.is_dir() else folder
    with notify_if_slow("rendering the page"), name_edited_report(source):
        page = (render_ladder if is_ladder else render_report)(folder)
    output = {"report": str(page), **({} if is_ladder else _summarize_verdicts(folder))}
    print(_format_json(output) if options.json else escape_unprintable(str(page)))
    return 0


def _render_folder(folder: Path, *, as_json: bool) -> int:
    """Render all reports of a folder with a progress bar on stderr; return 2 if one could not be rendered."""
    from attnlab.report import reports_folder

    errors = list[str]()
    with show_steps("rendering") as steps:
        for n_done, total, name, error in reports_folder.render_folder(folder):
            if name:
                steps.finish_step(name)
            else:
                steps.skip_steps(n_done, total)
            errors += [error] if error else []
    pages = [*map(str, sorted(folder.glob("*/report.html"))), str(folder / "index.html")]
    for error in errors:
        print(format_error_line(error), file=sys.stderr)
    print(
        _format_json({"pages": pages, "errors": errors})
        if as_json
        else escape_unprintable("\n".join(pages), allowed="\n")
    )
    return 2 if errors else 0


def _summarize_verdicts(path: Path) -> dict[str, Any]:
    """Summarize the verdicts of a report and their decisions."""
    from attnlab.cli.verdict_output import summarize_claims
    from attnlab.report.pages.report_files import find_report
    from attnlab.report.tables.claim_sources import load_reworded_report

    return summarize_claims(load_reworded_report(find_report(path)))


def _format_json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False)
