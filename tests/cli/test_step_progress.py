"""Progress of commands in steps, on a terminal and in a pipe."""

import io
import sys

import pytest

from attnlab.cli.step_progress import show_steps


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run_steps(monkeypatch, stream):
    """Run three steps, one of them done already, and return the output."""
    monkeypatch.setattr(sys, "stderr", stream)
    with show_steps("checking") as steps:
        steps.skip_steps(1, 3)
        for name in ("heads=mha", "mask=\x1b[2J"):
            steps.start_step(name)
            steps.finish_step(name)
    return stream.getvalue()


@pytest.mark.parametrize(("stream", "term"), [(io.StringIO(), "xterm"), (Terminal(), "dumb")])
def test_in_a_pipe_or_on_a_dumb_terminal_each_step_is_a_line(monkeypatch, capsys, stream, term):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = run_steps(monkeypatch, stream)
    assert output == "[2/3] checking heads=mha\n[3/3] checking mask=\\x1b[2J\n"
    assert capsys.readouterr().out == ""


def test_a_terminal_has_a_bar_with_the_time_left(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    output = run_steps(monkeypatch, Terminal())
    assert "3/3" in output
    assert "0:00:0" in output
    assert "\x1b[2J" not in output
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")
    assert capsys.readouterr().out == "", "stdout is for the result"
