"""Progress of a sweep with and without a terminal."""

import io
import json
from pathlib import Path

from attnlab.store.run_schema import Failure, RunResult
from attnlab.sweep.execute import progress
from attnlab.sweep.execute.progress import Progress

RUN, OTHER = Path("runs/a"), Path("runs/b")
LABELS = {RUN: "gqa seed=0", OTHER: "mha seed=0"}
RECORD = RunResult(id="a", status="done", seed=0, config={}, metrics={"val/loss": 1.25}, seconds=3.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_each_ended_run_is_a_line():
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


def test_without_a_terminal_a_periodic_line_shows_the_running_steps(monkeypatch, tmp_path):
    (tmp_path / "progress.json").write_text('{"step": 3, "max_steps": 12, "loss": 2.5}')
    out = io.StringIO()
    with Progress({tmp_path: "gqa seed=0"}, out) as display:
        display.refresh([(tmp_path, 0)])
        assert out.getvalue() == ""
        monkeypatch.setattr(progress, "_LINE_INTERVAL", 0.0)
        display.refresh([(tmp_path, 0)])
    assert "0/1 runs ended, 1 running" in out.getvalue()
    assert "gqa seed=0 step 3/12 loss 2.5000" in out.getvalue()


def test_time_left_is_unknown_before_the_first_steps_and_then_scales_with_flops(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "_LINE_INTERVAL", 0.0)
    small = [Path(f"runs/{n}") for n in range(10)]
    workloads = {tmp_path: ("large", 1e6), **dict.fromkeys(small, ("small", 1e5))}
    out = io.StringIO()
    with Progress({folder: folder.name for folder in workloads}, out, workloads) as display:
        for step, seconds in ((1, 0.0), (51, 40.0)):
            content = {"step": step, "max_steps": 101, "timed_steps": step - 1, "timed_seconds": seconds}
            (tmp_path / "progress.json").write_text(json.dumps(content))
            display.refresh([(tmp_path, 0)])
        first, second = out.getvalue().splitlines()
        assert first.startswith("0/11 runs ended, 1 running, time left unknown: ")
        assert "about 2 min left" in second, "half of a run of 81 s, and ten of a tenth of its work"
        for folder in small:
            display.finish_run(folder, RECORD)
        display.refresh([(tmp_path, 0)])
    last = out.getvalue().splitlines()[-1]
    assert "10/11 runs ended, 1 running, about 15 s left" in last, (
        "finished runs took 3 s of a tenth of the work"
    )


def test_a_terminal_shows_slots_steps_and_losses(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "_REDRAW_INTERVAL", 0.0)
    (tmp_path / "progress.json").write_text('{"step": 3, "max_steps": 12, "loss": 2.5}')
    out = Terminal()
    with Progress({tmp_path: "gqa seed=0"}, out) as display:
        display.refresh([(tmp_path, 0)])
    assert "3/12" in out.getvalue()
    assert "2.5000" in out.getvalue()
