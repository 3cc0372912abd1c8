"""A command on a pseudo terminal and in a pipe: live region, interrupts, and equal counts in every view."""

import fcntl
import json
import os
import re
import signal
import struct
import sys
import termios
import threading
from pathlib import Path

import pytest
from processes import wait_until

from attnlab.store import run_directories
from attnlab.store.run_schema import RunResult
from attnlab.sweep import reporting
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.plan import checker
from attnlab.sweep.status import display, work_left

TOY = Path(__file__).parents[1] / "toy"
ANALYSES = (
    "+experiment=heads", "arms=[two,one]", "match=none", "controlled=[]", "looks=[2,4,6]", "seeds=null",
    "claims=[{says: one head costs nothing, arm: one, is: below, threshold: -0.038}]",
)  # fmt: skip
ERASE_UP = "\x1b[1A\x1b[2K"


class TerminalCommand:
    """A command on a pseudo terminal, whose output is read by a thread."""

    def __init__(self, attnlab, columns, *arguments):
        self.terminal, child_end = os.openpty()
        fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = attnlab.environment | {"TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = attnlab.start(
            *arguments, env=environment, stdin=child_end, stdout=child_end, stderr=child_end
        )
        os.close(child_end)
        self.output = b""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        try:
            while chunk := os.read(self.terminal, 65536):
                self.output += chunk
        except OSError:  # the last writer has exited
            pass

    def wait(self):
        """Return the exit status and the whole output."""
        status = self.process.wait(240)
        self.reader.join(60)
        os.close(self.terminal)
        return status, self.output.decode()


def render_screen(output):
    """Return the lines that remain on a terminal, from text, colors, line feeds and erased lines."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", output):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif match := re.fullmatch(r"\x1b\[(\d+)A", token):
            row = max(0, row - int(match[1]))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif not token.startswith(("\x1b", "\r")):
            lines[row] += token
    return [line for line in lines if line]


@pytest.mark.rare
@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_has_one_live_region_and_keeps_only_lines(attnlab, columns):
    status, output = TerminalCommand(attnlab, columns, *ANALYSES).wait()
    assert status == 0, output
    assert "0/4 runs (interim analysis 1 of 3); up to 8 more" in output
    assert "━" in output
    screen = render_screen(output)
    assert not any("━" in line or line.startswith("slot") for line in screen), screen
    assert sum(line.startswith("[") for line in screen) == 12
    assert any("interim analysis 3 of 3: 0 of 1 claims decided" in line for line in screen)
    assert screen[-1].startswith("report: ")
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")


@pytest.mark.rare
def test_a_pipe_has_a_line_per_event_without_control_characters(attnlab):
    status, out, errors = attnlab(*ANALYSES)
    assert status == 0, errors
    assert "\x1b" not in out + errors
    assert "\r" not in out + errors
    stages = [line for line in out.splitlines() if re.match(r"\d+/\d+ runs \(interim analysis", line)]
    assert [line.split(";")[0] for line in stages] == [
        "0/4 runs (interim analysis 1 of 3)", "4/8 runs (interim analysis 2 of 3)",
        "8/12 runs (interim analysis 3 of 3)",
    ]  # fmt: skip
    ended = [line.split("]")[0] for line in out.splitlines() if line.startswith("[")]
    numbers = [f"[{n}/4" for n in range(1, 5)] + [f"[{n}/8" for n in range(5, 9)]
    assert ended == numbers + [f"[{n}/12" for n in range(9, 13)]


@pytest.mark.rare
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_removes_the_live_region(attnlab, number, expected):
    command = TerminalCommand(attnlab, 80, "+experiment=heads", "++model.act=resume", "seed=0,1")
    wait_until(lambda: b"starting" in command.output or b"2/3" in command.output, 120)
    command.process.send_signal(number)
    status, output = command.wait()
    assert status == expected, output
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")
    screen = render_screen(output)
    assert "interrupted: all runs were stopped; repeat the command to resume" in screen
    assert not any("━" in line or line.startswith("slot") for line in screen), screen


@pytest.fixture
def partial_plan(plan_toy, tmp_path):
    """A plan at its first interim analysis, with 3 of its 4 runs in `tmp_path`."""
    [plan] = plan_toy(*ANALYSES)
    first = [run for run in plan.runs if run.seed < 2]
    for run in first[:3]:
        (tmp_path / run.id).mkdir()
        result = RunResult(
            id=run.id, status="done", seed=run.seed, config=run.config, metrics={"val/loss": 1.0},
            estimate=run.estimate, seconds=600.0,
        )  # fmt: skip
        run_directories.write_run_result(tmp_path / run.id, result)
    return plan


def test_every_view_shows_the_same_counts(partial_plan, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, time = "3/4 runs (interim analysis 1 of 3); up to 8 more", "about 10 min left, 45 min with them"
    settings = {"slots": 2}
    for view in ("plan", "status"):
        display.show_plans(view, [partial_plan], tmp_path, settings, list)
        assert f"{words}; {time} on 2 slots\n" in capsys.readouterr().out
        display.show_plans(f"{view}_json", [partial_plan], tmp_path, settings, list)
        [content] = json.loads(capsys.readouterr().out)
        work = content["work"]
        assert (work["n_ended"], work["n_required"], work["n_possible"]) == (3, 4, 8)
        assert work["max_seconds"] == pytest.approx(2700)

    def count_work(launched):
        return work_left.load_work_left([partial_plan], tmp_path, settings, launched)

    Progress().start_stage(count_work, [])
    assert capsys.readouterr().out == f"{words}; {time}\n"
    draft = reporting.assemble_report(partial_plan, tmp_path, None, [], work=count_work([]), now=True)
    sentence = f"Preliminary report, verdicts may change. {words}."
    assert draft.document.verdict.run_warnings[0] == sentence


def test_counts_of_a_plan_with_tuning_add_up(plan_toy, tmp_path, capsys):
    tune = "+tune={lr:[0.1,0.2,0.4],seeds:[7,8,9],extend:1}"
    [plan] = plan_toy(ANALYSES[0], "arms=[two,one,four]", *ANALYSES[2:], tune)
    display.show_plans("plan", [plan], tmp_path, {"slots": 2}, list)
    out = capsys.readouterr().out
    patterns = {
        "all": r"(\d+) runs\n",
        "now": r"(\d+) to train now",
        "later": r"(\d+) later, \d+ not needed",
        "more": r"up to (\d+) more",
        "unneeded": r" later, (\d+) not needed",
        "known tuning": r"tuning: (\d+) runs planned",
        "max tuning": r"planned so far, at most (\d+)",
    }
    numbers = {name: int(re.findall(pattern, out)[0]) for name, pattern in patterns.items()}
    assert numbers["all"] == numbers["now"] + numbers["later"] + numbers["unneeded"] == len(plan.all_runs)
    assert numbers["more"] - numbers["later"] == numbers["max tuning"] - numbers["known tuning"] > 0


def test_corpora_of_a_command_count_together(partial_plan, plan_toy, tmp_path):
    [other] = plan_toy(*ANALYSES, "model.width=9")
    work = work_left.load_work_left([partial_plan, other], tmp_path, {"slots": 2})
    assert (work.n_ended, work.n_required, work.n_possible) == (3, 8, 16)
    shared = work_left.load_work_left([partial_plan, partial_plan], tmp_path, {"slots": 2})
    assert (shared.n_ended, shared.n_required, shared.n_possible) == (3, 4, 8), "a shared run counts once"


def test_a_run_that_is_measured_again_has_not_ended(partial_plan, tmp_path):
    [run, *_] = partial_plan.runs
    assert work_left.load_work_left([partial_plan], tmp_path, {"slots": 2}, [run.id]).n_ended == 2


def test_prints_of_the_checking_process_reach_the_command(toy, capfd, monkeypatch):
    """On their own they would break the live region."""
    from multiprocessing import get_context

    def print_and_check(*request):
        print("tokenizing 130 million characters")
        print("a warning", file=sys.stderr)
        return "found", 1

    monkeypatch.setattr(checker, "_handle_request", print_and_check)
    with checker.Checker(get_context("fork"), "toy_trainer") as client:
        monkeypatch.setattr(sys, "stderr", sys.__stdout__)  # of this process alone
        assert client.find_broken_invariants({}) == 1
    out, errors = capfd.readouterr()
    assert out == "tokenizing 130 million characters\na warning\n"
    assert errors == ""
