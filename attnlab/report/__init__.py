"""From finished runs to a report that can be read in ten seconds, or for an hour. Never imports torch."""

from attnlab.report.build import build, waiting
from attnlab.report.diff import compare
from attnlab.report.pages.files import render, write
from attnlab.report.verdicts.runs import Asked, Run, read_run

__all__ = ["Asked", "Run", "build", "compare", "read_run", "render", "waiting", "write"]
