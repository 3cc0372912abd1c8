import io
import sys
import time

from attnlab.sweep import waiting as module
from attnlab.sweep.waiting import waiting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def told(monkeypatch, stream, seconds):
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    monkeypatch.setattr(sys, "stderr", stream)
    with waiting("adding it up"):
        time.sleep(seconds)
    return stream.getvalue()


def test_who_waits_is_told_for_what(monkeypatch):
    assert told(monkeypatch, Terminal(), 0.5) == "adding it up ...\n"


def test_what_is_quick_says_nothing(monkeypatch):
    stream = Terminal()
    assert told(monkeypatch, stream, 0.0) == ""
    time.sleep(0.1)
    assert stream.getvalue() == "", "nor later"


def test_in_a_pipe_nobody_waits(monkeypatch):
    assert told(monkeypatch, io.StringIO(), 0.2) == ""


def test_a_function_is_told_of_each_time(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    monkeypatch.setattr(sys, "stderr", stream)
    slow = waiting("adding it up")(lambda: time.sleep(0.3))
    slow(), slow()
    assert stream.getvalue() == "adding it up ...\n" * 2
