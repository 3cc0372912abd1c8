"""Exits on Ctrl-C, a closed pipe or a full output device, and output on small terminals."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress

import pytest
from processes import is_alive, list_children, wait_until
from toys import TOY

from attnlab.cli.main import format_main_help

SLEEPS = "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n"


@pytest.fixture
def slow_module(attnlab):
    """`slow_module(name)`: shadow a module by one in the working directory that takes a minute to import."""

    def make(module):
        (attnlab.folder / f"{module}.py").write_text(SLEEPS)
        attnlab.environment["PYTHONPATH"] = f"{attnlab.folder}:{attnlab.environment['PYTHONPATH']}"

    return make


def start_command(attnlab, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "attnlab", *arguments],
        cwd=attnlab.folder, env=attnlab.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def interrupt_during_import(attnlab, process):
    """Interrupt a command while it imports the slow module, and return its output."""
    wait_until((attnlab.folder / "importing").exists)
    children = list_children(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole group
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    wait_until(lambda: not any(is_alive(pid) for pid in children), 5)
    return out + err


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("difflib", "list"),  # among the first imports
        ("hydra", "plan heads=mha"),
        ("torch", "check heads=mha"),
        ("torch", "inspect run=a text=b"),
        ("torch", "generate run=a prompt=b"),
        ("pydantic", "report reports/a"),
    ],
)
def test_ctrl_c_during_imports_exits_silently(attnlab, slow_module, module, line):
    slow_module(module)
    assert interrupt_during_import(attnlab, start_command(attnlab, *line.split())) == ""


def test_ctrl_c_during_planning_ends_the_command_and_its_children_silently(attnlab, slow_module):
    slow_module("slow_trainer")  # imported by the fork server
    process = attnlab.start("+experiment=heads", "sweep.train=slow_trainer")
    assert interrupt_during_import(attnlab, process) == ""


def close_reader(process):
    """Close a command's stdout at once, as `head` does, and return its exit status and stderr."""
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=30)
    return process.returncode, err


@pytest.mark.parametrize("line", ["list", "schema run", "--help", "list --help", "--version"])
def test_closed_pipe_ends_a_command_silently(attnlab, line):
    status, err = close_reader(start_command(attnlab, *line.split()))
    assert (status in (0, 141), err) == (True, "")


@pytest.mark.parametrize("overrides", [["++sweep.show=plan"], pytest.param([], marks=pytest.mark.rare)])
def test_closed_pipe_ends_a_plan_and_a_sweep_silently(attnlab, overrides):
    assert close_reader(attnlab.start("+experiment=heads", *overrides)) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_full_output_device_is_one_line_with_the_documented_status(attnlab):
    line = [sys.executable, "-m", "attnlab", "list"]
    with open("/dev/full", "w") as full_device:
        for error_device in (subprocess.PIPE, full_device):
            result = subprocess.run(
                line, stdout=full_device, stderr=error_device, text=True, env=attnlab.environment
            )
            assert result.returncode == 1
            assert result.stderr in (None, "attnlab: no space left on device: the output\n")
    assert "1 a run failed or the output could not be written" in format_main_help()


def run_on_terminal(attnlab, columns, *arguments):
    """Run a command on a pseudo-terminal of the given width without colors; return exit status and output."""
    parent_end, child_end = os.openpty()
    fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    terminal_variables = {"TERM": "xterm-256color", "NO_COLOR": "1", "COLUMNS": str(columns)}
    line = [sys.executable, "-m", "attnlab", *arguments]
    environment = attnlab.environment | terminal_variables
    process = subprocess.Popen(
        line, cwd=attnlab.folder, env=environment, stdin=child_end, stdout=child_end, stderr=child_end
    )
    os.close(child_end)
    output = b""
    with suppress(OSError):  # the last writer has exited
        while chunk := os.read(parent_end, 65536):
            output += chunk
    os.close(parent_end)
    return process.wait(30), output.decode()


def test_plan_fits_a_narrow_terminal_without_colors(attnlab):
    toy = ("--config-path", str(TOY / "conf"))
    status, output = run_on_terminal(attnlab, 1, *toy, "+experiment=heads", "++sweep.show=plan")
    assert status == 0, output
    assert not re.search(r"\x1b\[[\d;]*[349]\d", output)
    assert "6 to train" in output
    assert all(len(line) <= 80 for line in re.sub(r"\x1b\[[\d;?]*\w", "", output).splitlines()[:8])


def test_piped_output_has_no_escape_codes(attnlab):
    assert "\x1b" not in start_command(attnlab, "list").communicate(timeout=60)[0]
