"""How a command ends that cannot go on: Ctrl-C, a reader that is gone, a full output; and small terminals."""

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
from processes import alive, children, wait_until
from toys import TOY

SLEEPS = "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n"


@pytest.fixture
def shadowed(attnlab):
    """`shadowed(module)`: commands find it in their folder, where its import takes a minute."""

    def make(module):
        (attnlab.folder / f"{module}.py").write_text(SLEEPS)
        attnlab.environment["PYTHONPATH"] = f"{attnlab.folder}:{attnlab.environment['PYTHONPATH']}"

    return make


def start(attnlab, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "attnlab", *arguments],
        cwd=attnlab.folder, env=attnlab.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def interrupted(attnlab, process):
    """What an interrupted command says, once a module that it imports is being imported."""
    wait_until((attnlab.folder / "importing").exists)
    below = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the whole group
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    wait_until(lambda: not any(alive(pid) for pid in below), 5)
    return out + err


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("difflib", ["list"]),  # among the first that are imported
        ("hydra", ["plan", "heads=mha"]),
        ("torch", ["check", "heads=mha"]),
        ("torch", ["inspect", "run=a", "text=b"]),
        ("torch", ["generate", "run=a", "prompt=b"]),
        ("pydantic", ["report", "reports/a"]),
    ],
)
def test_ctrl_c_while_modules_are_imported_ends_a_command_without_a_word(attnlab, shadowed, module, line):
    shadowed(module)
    assert interrupted(attnlab, start(attnlab, *line)) == ""


def test_ctrl_c_in_planning_ends_the_command_and_all_that_it_started_without_a_word(attnlab, shadowed):
    shadowed("slow_trainer")  # which the server of warm processes imports
    process = attnlab.start("+experiment=heads", "sweep.train=slow_trainer")
    assert interrupted(attnlab, process) == ""


def unread(process):
    """Exit status and errors of a command whose reader goes at once, as `head` does once it has its lines."""
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=30)
    return process.returncode, err


@pytest.mark.parametrize("line", [["list"], ["schema", "run"], ["--help"], ["list", "--help"], ["--version"]])
def test_a_reader_that_has_gone_ends_a_command_without_a_word(attnlab, line):
    status, err = unread(start(attnlab, *line))
    assert err == ""
    assert status in (0, 141)


@pytest.mark.parametrize("more", [["++sweep.show=plan"], pytest.param([], marks=pytest.mark.rare)])
def test_a_reader_that_has_gone_ends_a_plan_and_a_sweep_without_a_word(attnlab, more):
    assert unread(attnlab.start("+experiment=heads", *more)) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_an_output_that_is_full_is_said_in_a_line(attnlab):
    line = [sys.executable, "-m", "attnlab", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            line, stdout=full, stderr=subprocess.PIPE, text=True, env=attnlab.environment, check=False
        )
    assert (done.returncode, done.stderr) == (1, "attnlab: no space left on device: the output\n")


def on_terminal(attnlab, columns, *arguments):
    """Exit status and output of a command on a terminal so many columns wide that has asked for no colour."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    wants = {"TERM": "xterm-256color", "NO_COLOR": "1", "COLUMNS": str(columns)}
    line = [sys.executable, "-m", "attnlab", *arguments]
    environment = attnlab.environment | wants
    process = subprocess.Popen(
        line, cwd=attnlab.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    with suppress(OSError):  # a terminal whose last writer is gone
        while part := os.read(ours, 65536):
            said += part
    os.close(ours)
    return process.wait(30), said.decode()


def test_a_narrow_terminal_without_colours_gets_its_plan(attnlab):
    toy = ("--config-path", str(TOY / "conf"))
    status, said = on_terminal(attnlab, 1, *toy, "+experiment=heads", "++sweep.show=plan")
    assert status == 0, said
    assert not re.search(r"\x1b\[[\d;]*[349]\d", said)
    assert "6 to train" in said
    assert all(len(line) <= 80 for line in re.sub(r"\x1b\[[\d;?]*\w", "", said).splitlines()[:8])


def test_what_goes_into_a_pipe_has_no_escape_codes(attnlab):
    assert "\x1b" not in start(attnlab, "list").communicate(timeout=60)[0]
