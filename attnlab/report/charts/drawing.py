"""All pictures of a report, drawn by a process of their own: what ends it costs pictures, never the page.

The renderer is a JavaScript engine in a library. It aborts where it does not get its gigabytes of address
space or its standard input, and whoever called it with it. What it had drawn before that is kept.
"""

import base64
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnlab.report.charts import svg
from attnlab.report.charts.figures import Figure

PATIENCE = 300.0  # seconds for all pictures of a report; they take some


@dataclass(frozen=True)
class Drawn:
    """Figure name -> its SVG; name -> its PNG; name -> why it is in neither."""

    svgs: dict[str, str] = field(default_factory=dict)
    pngs: dict[str, bytes] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        """How many pictures are not there, for each reason."""
        reasons = list(self.lost.values())
        total = len(self.svgs) + len(self.pngs) + len(self.lost)
        return [
            f"{reasons.count(why)} of {total} pictures could not be drawn ({why}): the tables have what they "
            "show, and `python -m attnlab report` with this folder draws them again."
            for why in dict.fromkeys(reasons)
        ]


def draw(
    inline: Sequence[Figure], beside: Sequence[Figure] = (), sheets: Mapping[str, str] | None = None
) -> Drawn:
    """Draws the figures of a page as SVG, others beside it and sheets (name -> SVG) as PNG. Raises nothing: a
    figure that could not be drawn is `lost`.
    """
    tasks: list[dict[str, Any]] = [{"name": f.name, "label": f.label, "spec": f.spec} for f in inline]
    tasks += [{"name": f.name, "label": None, "spec": f.spec} for f in beside]
    tasks += [{"name": name, "label": None, "sheet": sheet} for name, sheet in (sheets or {}).items()]
    answers, why = _answers(tasks) if tasks else ([], "")
    drawn = Drawn()
    for i, task in enumerate(tasks):
        kind, content = answers[i] if i < len(answers) else ("lost", why)
        if kind == "svg":
            drawn.svgs[task["name"]] = content
        elif kind == "png":
            drawn.pngs[task["name"]] = base64.b64decode(content)
        else:
            drawn.lost[task["name"]] = content
    return drawn


def _answers(tasks: list[dict[str, Any]]) -> tuple[list[tuple[str, Any]], str]:
    """What the process gave for the first tasks, in their order, and why it gave no more."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            asked = Path(folder) / "asked.json"
            answered = Path(folder) / "answered.jsonl"
            asked.write_text(json.dumps(tasks), encoding="utf-8")
            why = _run([sys.executable, "-P", svg.__file__, str(asked), str(answered)])
            lines = answered.read_text("utf-8").splitlines() if answered.exists() else []
    except OSError as error:
        return [], f"no process could be started to draw: {error.strerror}"
    answers: list[tuple[str, Any]] = []
    for line in lines:
        try:
            kind, content = json.loads(line)
        except ValueError:  # its last words
            break
        answers.append((kind, content))
    return answers, why


def _run(command: list[str]) -> str:
    """How the process ended, in words."""
    silent = subprocess.DEVNULL
    try:
        code = subprocess.run(
            command, stdin=silent, stdout=silent, stderr=silent, timeout=PATIENCE
        ).returncode
    except subprocess.TimeoutExpired:
        return f"the process that draws took more than {PATIENCE:g} s"
    if code < 0:
        return f"the process that draws was ended by {signal.Signals(-code).name}"
    return f"the process that draws ended with status {code}"
