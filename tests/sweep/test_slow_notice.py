"""Notices of slow blocks on a terminal."""

import io
import sys
import threading

from processes import wait_until

from attnlab.sweep import slow_notice
from attnlab.sweep.slow_notice import notify_if_slow


class Terminal(io.StringIO):
    def isatty(self):
        return True


def make_terminal(monkeypatch):
    """Replace stderr by a terminal, with notices after 0.05 s."""
    stream = Terminal()
    monkeypatch.setattr(slow_notice, "NOTICE_DELAY", 0.05)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_slow_block_is_announced_while_it_runs(monkeypatch):
    terminal = make_terminal(monkeypatch)
    with notify_if_slow("adding it up"):
        wait_until(terminal.getvalue, 60)
    assert terminal.getvalue() == "adding it up ...\n"


def test_a_quick_block_is_announced_neither_at_once_nor_later(monkeypatch):
    terminal = make_terminal(monkeypatch)
    before = set(threading.enumerate())
    with notify_if_slow("adding it up"):
        [timer] = set(threading.enumerate()) - before
    timer.join(60)
    assert not timer.is_alive()
    assert terminal.getvalue() == ""


def test_nothing_is_announced_in_a_pipe(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    before = set(threading.enumerate())
    with notify_if_slow("adding it up"):
        assert set(threading.enumerate()) == before, "no timer runs"


def test_a_decorated_function_is_announced_at_each_call(monkeypatch):
    terminal = make_terminal(monkeypatch)
    lines = iter((1, 2))

    @notify_if_slow("adding it up")
    def add_up():
        line = next(lines)
        wait_until(lambda: terminal.getvalue().count("\n") == line, 60)

    add_up()
    add_up()
    assert terminal.getvalue() == "adding it up ...\n" * 2
