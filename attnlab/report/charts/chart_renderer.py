"""Render all pictures of a report in a separate process: its failure costs pictures, never the page.

The renderer is a JavaScript engine in a library. It aborts the whole process where it does not get gigabytes
of address space or standard input. The pictures that it finished before that are used.
"""

import base64
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnlab.report.charts import svg
from attnlab.report.section import Chart

TIMEOUT = 300.0  # seconds for all pictures of a report
PICTURE_WIDTH = 720  # pixels of a PNG


@dataclass(frozen=True)
class RenderedCharts:
    """Name of a spec -> its SVG; name of a chart -> its PNG; the reason of each missing picture."""

    svgs: dict[str, str] = field(default_factory=dict)
    pngs: dict[str, bytes] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def error_messages(self) -> list[str]:
        """For each reason, how many pictures are missing."""
        total = len(self.svgs) + len(self.pngs) + len(self.errors)
        return [
            f"{self.errors.count(reason)} of {total} figures could not be rendered ({reason}): the tables "
            "have the same numbers; run `python -m attnlab report` on this folder to render them again."
            for reason in dict.fromkeys(self.errors)
        ]


def render_charts(charts: Sequence[Chart]) -> RenderedCharts:
    """Render charts as inline SVG, and those with a picture as PNG too.

    Raises nothing: a picture that cannot be rendered has its reason in `errors`.
    """
    tasks: list[dict[str, Any]] = [
        {"name": name, "label": chart.label, "spec": spec}
        for chart in charts
        for name, spec in chart.list_specs().items()
    ]
    for chart in charts:
        if chart.has_picture:
            spec = chart.draw() if chart.is_fixed else chart.draw(width=PICTURE_WIDTH)
            tasks.append({"name": chart.name, "label": None, "spec": spec})
    results, reason = _run_renderer(tasks) if tasks else ([], "")
    rendered = RenderedCharts()
    for i, task in enumerate(tasks):
        kind, content = results[i] if i < len(results) else ("error", reason)
        if kind == "svg":
            rendered.svgs[task["name"]] = content
        elif kind == "png":
            rendered.pngs[task["name"]] = base64.b64decode(content)
        else:
            rendered.errors.append(content)
    return rendered


def _run_renderer(tasks: list[dict[str, Any]]) -> tuple[list[tuple[str, Any]], str]:
    """Results of the process for the first tasks, in their order, and the reason why there are no more."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            tasks_file = Path(folder) / "asked.json"
            results_file = Path(folder) / "answered.jsonl"
            tasks_file.write_text(json.dumps(tasks), encoding="utf-8")
            reason = _run_process([sys.executable, "-P", svg.__file__, str(tasks_file), str(results_file)])
            lines = results_file.read_text("utf-8").splitlines() if results_file.exists() else []
    except OSError as error:
        return [], f"the rendering process could not start: {error.strerror}"
    results: list[tuple[str, Any]] = []
    for line in lines:
        try:
            kind, content = json.loads(line)
        except ValueError:  # cut short when the process ended
            break
        results.append((kind, content))
    return results, reason


def _run_process(command: list[str]) -> str:
    """Run the renderer and describe how it ended."""
    silent = subprocess.DEVNULL
    try:
        code = subprocess.run(command, stdin=silent, stdout=silent, stderr=silent, timeout=TIMEOUT).returncode
    except subprocess.TimeoutExpired:
        return f"the rendering process took more than {TIMEOUT:g} s"
    if code < 0:
        return f"the rendering process was killed by {signal.Signals(-code).name}"
    return f"the rendering process exited with status {code}"
