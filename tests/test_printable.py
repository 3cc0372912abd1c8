"""Foreign text on a terminal: it is shown, and moves, colours and clears nothing."""

import io

import pytest

from attnlab.errors import printable
from attnlab.report.pages.files import runs_csv
from attnlab.report.schema import Report, RunRow
from attnlab.store.schema import Budget, Failure, RunRecord
from attnlab.sweep.execute.progress import ending


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, naïve, 日本, 👩\u200d🚀, a\u00adb", "plain, naïve, 日本, 👩\u200d🚀, a\u00adb"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00"),
        ("done\rfailed\b", "done\\rfailed\\x08"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202egpj.exe\u2066 \u2028", "\\u202egpj.exe\\u2066 \\u2028"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_control_characters_are_shown_as_escapes(text, shown):
    assert printable(text) == shown
    printable(text).encode()


def test_newlines_and_tabs_stay_where_they_are_wanted():
    assert printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


def test_a_strangers_failure_is_told_in_one_line():
    from attnlab.sweep.execute.progress import Progress

    failure = Failure(message="\x1b[2Jall is well\nreally")
    record = RunRecord(id="a", status="crashed", seed=0, config={}, failure=failure)
    assert "\x1b" in ending(record)
    out = io.StringIO()
    Progress({}, out).say(ending(record))
    assert out.getvalue() == "crashed: \\x1b[2Jall is well\\nreally\n"


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+1+1", "'+1+1"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("-0.5", "-0.5"),
        ("+1e-3", "+1e-3"),
        ("a=b", "a=b"),
    ],
)
def test_no_cell_of_runs_csv_is_a_formula(cell, written):
    run = RunRow(
        arm=cell, seed=0, id="x", axes={}, status="done", seconds=None, started=None,
        metrics={"val/loss": -1.5}, budget=Budget(), memory={}, speed={},
    )  # fmt: skip
    line = runs_csv(Report.model_construct(runs=[run], heads=None)).splitlines()[1]
    assert line == f"{written},0,x,done,,-1.5"
