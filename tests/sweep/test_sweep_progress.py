"""Progress of a sweep on a terminal and in a pipe."""

import io
import json
import re
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from attnlab.store.run_schema import Failure, RunResult
from attnlab.sweep import slow_notice
from attnlab.sweep.execute import progress
from attnlab.sweep.execute.progress import Progress, WorkLeft

RUN, OTHER = Path("runs/a"), Path("runs/b")
LABELS = {RUN: "gqa seed=0", OTHER: "mha seed=0"}
RECORD = RunResult(id="a", status="done", seed=0, config={}, metrics={"val/loss": 1.25}, seconds=3.0)
WORK = WorkLeft(
    "interim analysis 1 of 6", 8, 0, 16, n_possible=96, seconds=90.0, max_seconds=300.0, slot_seconds=180.0
)
WORDS = "8/16 runs (interim analysis 1 of 6); up to 96 more"
TIME = "about 1 min left, 5 min with them"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


def write_progress(folder, step, max_steps=100, seconds_per_step=10.0):
    content = {
        "step": step, "max_steps": max_steps, "loss": 2.5, "time": time.time(),
        "timed_steps": step, "timed_seconds": step * seconds_per_step,
    }  # fmt: skip
    (folder / "progress.json").write_text(json.dumps(content))


def refresh(display, running):
    display._last_refresh = 0.0  # the interval has passed
    display.refresh(running)


def test_work_left_in_words():
    assert WORK.describe() == WORDS
    assert WORK.describe_with_time() == f"{WORDS}; {TIME}"
    assert WORK.describe_time(elapsed=80) == "about 10 s left, 3 min with them"
    assert WorkLeft("", 3, 1, 5).describe_with_time() == "3/5 runs, 1 failed; time left unknown"
    assert WorkLeft("comparison", 5, 0, 5).describe_with_time() == "5/5 runs (comparison)"


def test_in_a_pipe_each_ended_run_is_a_line():
    out = io.StringIO()
    with Progress(LABELS, out) as display:
        display.finish_run(RUN, RECORD)
        display.finish_run(
            OTHER,
            RunResult(id="a", status="crashed", seed=0, config={}, failure=Failure(message="KeyError: x")),
        )
    first, second = out.getvalue().splitlines()
    assert first == "[1/2] gqa seed=0  done  val/loss 1.2500  3.0 s  runs/a"
    assert "[2/2] mha seed=0  crashed: KeyError: x" in second


def test_in_a_pipe_runs_count_within_the_whole_command():
    out = io.StringIO()
    with Progress(out=out) as display:
        display.start_stage(lambda launched: WORK, [RUN])
        display.add_runs({RUN: LABELS[RUN]})
        display.finish_run(RUN, RECORD)
    stage, run = out.getvalue().splitlines()
    assert stage == f"{WORDS}; {TIME}"
    assert run.startswith("[9/16] gqa seed=0  done")


@pytest.mark.parametrize(
    ("seconds_per_step", "expected"),
    [
        (1.0, []),
        (10.0, ["[0/1] gqa seed=0  step 25/100 loss 2.5000", "[0/1] gqa seed=0  step 60/100 loss 2.5000"]),
    ],
)
def test_in_a_pipe_a_quarter_is_a_line_only_if_runs_take_minutes(tmp_path, seconds_per_step, expected):
    out = io.StringIO()
    with Progress({tmp_path: "gqa seed=0"}, out) as display:
        for step in (0, 10, 25, 26, 40, 60, 74):
            write_progress(tmp_path, step, seconds_per_step=seconds_per_step)
            refresh(display, [(tmp_path, 0)])
    assert out.getvalue().splitlines() == expected


def test_in_a_pipe_a_line_ends_a_long_silence(monkeypatch, tmp_path):
    out = io.StringIO()
    write_progress(tmp_path, 3)
    with Progress({tmp_path: "gqa seed=0"}, out) as display:
        refresh(display, [(tmp_path, 0)])
        assert out.getvalue() == ""
        monkeypatch.setattr(progress, "_MAX_SILENCE", 0.0)
        display.count_work = lambda launched: WORK
        refresh(display, [(tmp_path, 0)])
    assert out.getvalue() == f"{WORDS}; {TIME}; running: gqa seed=0 step 3/100 loss 2.5000\n"


def test_steps_of_an_earlier_attempt_do_not_count(tmp_path):
    """A command that was killed leaves progress.json behind."""
    (tmp_path / "progress.json").write_text('{"step": 90, "max_steps": 100, "time": 1.0}')
    out = Terminal()
    with Progress({tmp_path: "gqa seed=0"}, out) as display:
        refresh(display, [(tmp_path, 0)])
        assert display.running == [(0, "gqa seed=0", {})]
        write_progress(tmp_path, 10)
        refresh(display, [(tmp_path, 0)])
        assert display.running[0][2]["step"] == 10


def test_a_terminal_shows_counts_time_slots_steps_and_losses_within_80_columns(tmp_path):
    write_progress(tmp_path, 25)
    out = Terminal()
    with Progress(out=out) as display:
        display.start_stage(lambda launched: WORK, [tmp_path])
        display.add_runs(
            {tmp_path: "arm with a name that is far too long for a terminal of eighty columns " * 2}
        )
        refresh(display, [(tmp_path, 0)])
        time.sleep(0.5)  # two redraws
        drawn = re.sub(r"\x1b\[[\d;?]*\w", "", out.getvalue())
    assert WORDS in drawn
    assert "25/100" in drawn
    assert "2.5000" in drawn
    assert "about 1 min left" in drawn
    assert all(len(line) <= 80 for line in drawn.replace("\r", "\n").splitlines())


def test_prints_of_the_process_go_above_the_live_region(monkeypatch):
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    with Progress(out=out) as display:
        display.start_stage(lambda launched: WORK, [RUN])
        print("x" * 100)
    assert "x" * 100 + "\n" in out.getvalue(), "in one piece, which a terminal wraps itself"


def test_the_live_region_follows_redirected_stdout(monkeypatch, capsys):
    """As in `judge`, whose stdout is for the verdict."""
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    with redirect_stdout(sys.stderr), Progress() as display:
        display.start_stage(lambda launched: WORK, [RUN])
        print("above the region")
        time.sleep(0.5)
    assert WORDS in out.getvalue()
    assert "above the region" in out.getvalue()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_a_dumb_terminal_gets_lines(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    with Progress(LABELS, out) as display:
        display.finish_run(RUN, RECORD)
    assert out.getvalue().startswith("[1/2] gqa seed=0")
    assert "\x1b" not in out.getvalue()


def test_forced_colors_put_no_live_region_into_a_pipe(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    with Progress(LABELS, out) as display:
        display.finish_run(RUN, RECORD)
    assert "\x1b" not in out.getvalue()


def test_no_color_leaves_the_live_region_without_colors(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    with Progress(out=out) as display:
        display.start_stage(lambda launched: WORK, [RUN])
        time.sleep(0.5)
    assert WORDS in out.getvalue()
    assert not re.search(r"\x1b\[[\d;]*[349]\d", out.getvalue())


def test_a_slow_step_is_shown_in_the_live_region():
    out = Terminal()
    with Progress(out=out).serve_command(), slow_notice.notify_if_slow("timing the arms"):
        time.sleep(0.5)
    assert "timing the arms" in out.getvalue()


def test_the_cursor_is_never_left_hidden():
    """A command that is killed cannot show the cursor again, so it is visible throughout."""
    out = Terminal()
    with Progress(out=out) as display:
        display.start_stage(lambda launched: WORK, [RUN])
        assert out.getvalue().rfind("\x1b[?25h") > out.getvalue().rfind("\x1b[?25l")
