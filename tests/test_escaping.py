"""Untrusted text is escaped on terminals and in runs.csv."""

import io

import pytest

from attnlab.errors import escape_unprintable
from attnlab.report.pages.report_files import format_runs_csv
from attnlab.report.schema import Report, RunRow
from attnlab.store.run_schema import Budget, Failure, RunResult
from attnlab.sweep.execute.progress import describe_ending


@pytest.mark.parametrize(
    ("text", "escaped"),
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
def test_control_characters_are_escaped(text, escaped):
    assert escape_unprintable(text) == escaped
    escape_unprintable(text).encode()


def test_allowed_newlines_and_tabs_are_kept():
    assert escape_unprintable("a\n\tb\x1b", allowed="\n\t") == "a\n\tb\\x1b"


def test_untrusted_failure_message_is_one_line():
    from attnlab.sweep.execute.progress import Progress

    failure = Failure(message="\x1b[2Jall is well\nreally")
    record = RunResult(id="a", status="crashed", seed=0, config={}, failure=failure)
    assert "\x1b" in describe_ending(record)
    out = io.StringIO()
    Progress({}, out).print_line(describe_ending(record))
    assert out.getvalue() == "crashed: \\x1b[2Jall is well\\nreally\n"


@pytest.mark.parametrize(
    ("cell", "expected_cell"),
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
def test_no_cell_of_runs_csv_is_a_formula(cell, expected_cell):
    run = RunRow(
        arm=cell, seed=0, id="x", status="done", seconds=None, started=None,
        metrics={"val/loss": -1.5}, budget=Budget(), memory={}, speed={}, head_scores={},
    )  # fmt: skip
    line = format_runs_csv(Report.model_construct(runs=[run], heads=None, axes={cell: {}})).splitlines()[1]
    assert line == f"{expected_cell},0,x,done,,-1.5"
