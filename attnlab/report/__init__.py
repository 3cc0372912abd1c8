"""From finished runs to a report that can be read in ten seconds, or for an hour. Never imports torch."""

from attnlab.report.build import build
from attnlab.report.compare import compare
from attnlab.report.files import render, write
from attnlab.report.runs import Run, read_run

__all__ = ["Run", "build", "compare", "read_run", "render", "write"]
