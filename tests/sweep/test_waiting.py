import io
import sys
import threading

from processes import wait_until

from attnlab.sweep import waiting as module
from attnlab.sweep.waiting import waiting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def open_terminal(monkeypatch):
    """A terminal as stderr, where a wait is announced after 0.05 s."""
    stream = Terminal()
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_slow_block_is_announced_while_it_runs(monkeypatch):
    terminal = open_terminal(monkeypatch)
    with waiting("adding it up"):
        wait_until(terminal.getvalue, 60)
    assert terminal.getvalue() == "adding it up ...\n"


def test_a_quick_block_is_announced_neither_at_once_nor_later(monkeypatch):
    terminal = open_terminal(monkeypatch)
    before = set(threading.enumerate())
    with waiting("adding it up"):
        [timer] = set(threading.enumerate()) - before
    timer.join(60)
    assert not timer.is_alive()
    assert terminal.getvalue() == ""


def test_nothing_is_announced_in_a_pipe(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    before = set(threading.enumerate())
    with waiting("adding it up"):
        assert set(threading.enumerate()) == before, "no timer runs"


def test_a_decorated_function_is_announced_at_each_call(monkeypatch):
    terminal = open_terminal(monkeypatch)
    lines = iter((1, 2))

    @waiting("adding it up")
    def add_up():
        line = next(lines)
        wait_until(lambda: terminal.getvalue().count("\n") == line, 60)

    add_up()
    add_up()
    assert terminal.getvalue() == "adding it up ...\n" * 2
