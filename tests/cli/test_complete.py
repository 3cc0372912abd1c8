"""What a line may go on with, in words and in a real shell."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnlab.cli.commands import VERBS
from attnlab.cli.complete import SCRIPTS, candidates
from attnlab.cli.verbs.list import experiments, groups
from attnlab.config import CONF

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (["pl"], ["plan "]),
        (["plan", "gqa_v"], ["gqa_vs_mha "]),
        (["heads=ml"], ["heads=mla"]),
        (["heads=mha,ml"], ["heads=mha,mla"]),
        (["+experiment=gqa_v"], ["+experiment=gqa_vs_mha"]),
        (["plan", "+experiment=gqa_v"], ["+experiment=gqa_vs_mha"]),
        (["judge", "--me"], ["--metric"]),
        (["inspect", "tex"], ["text="]),
        (["new", "mi"], ["mixer "]),
        (["bench", "st"], ["start "]),
        (["list", "experi"], ["experiments"]),
        (["nowhere=x"], []),
        (["zzz"], []),
    ],
)
def test_a_word_goes_on_with_what_it_may_be(line, found):
    assert candidates(line) == found


def test_a_line_may_begin_with_any_verb_or_group():
    words = candidates([""])
    assert {f"{verb} " for verb in VERBS} | {f"{group}=" for group in groups()} <= {*words}


def test_of_two_experiments_of_a_name_a_users_own_is_meant(tmp_path):
    own = tmp_path / "experiment" / "gqa_vs_mha.yaml"
    own.parent.mkdir()
    own.write_text("")
    assert experiments((tmp_path, CONF))["gqa_vs_mha"] == own
    assert experiments()["gqa_vs_mha"] != own


@pytest.fixture
def environment(tmp_path):
    """Where `attnlab` is a command."""
    command = tmp_path / "attnlab"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m attnlab "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def needs(shell):
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"needs {shell}")


@needs("bash")
@pytest.mark.parametrize(
    ("line", "found"),
    [("attnlab heads=ml", ["mla"]), ("attnlab heads=mha,ml", ["mha,mla"]), ("attnlab stat", ["status "])],
)
def test_bash_completes_what_comes_after_the_sign_at_which_it_breaks_words(environment, line, found):
    script = f"""{SCRIPTS["bash"]}
COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; _attnlab; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.stdout.splitlines(), done.stderr) == (found, "")
    assert "complete -o nospace -F _attnlab attnlab" in SCRIPTS["bash"]


@needs("fish")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("attnlab stat", ["status"]),
        ("attnlab heads=mha,ml", ["heads=mha,mla"]),
        ("attnlab plan gqa_v", ["gqa_vs_mha"]),
    ],
)
def test_fish_offers_the_words_of_a_line(environment, tmp_path, line, found):
    script = f"attnlab complete fish | source; complete -C '{line}'"
    environment |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(["fish", "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.stdout.splitlines(), done.stderr) == (found, "")


def typed(environment, keys):
    """What an interactive zsh shows when these keys are pressed, one after what the other brings."""
    ours, theirs = pty.openpty()
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    shell = subprocess.Popen(["zsh", "-f", "-i"], **streams, env=environment, start_new_session=True)
    shown, until = "", time.monotonic() + 30
    try:
        for pressed, comes in keys:
            os.write(ours, pressed.encode())
            seen = len(shown)
            while comes not in shown[seen:] and time.monotonic() < until:
                if select.select([ours], [], [], 1)[0]:
                    shown += os.read(ours, 4096).decode(errors="replace")
        return shown
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
        os.close(theirs)


@needs("zsh")
@pytest.mark.parametrize(
    ("line", "rest", "whole"),
    [("attnlab stat", "us ", "attnlab status "), ("attnlab heads=mha,ml", "a", "attnlab heads=mha,mla")],
)
def test_zsh_types_the_rest_of_a_word(environment, tmp_path, line, rest, whole):
    ready = "autoload -Uz compinit; compinit -D -u; attnlab complete zsh > c; source ./c; echo re''ady\n"
    environment |= {"HOME": str(tmp_path), "TERM": "dumb", "PS1": "> "}
    keys = [(f"cd {tmp_path}; {ready}", "ready\r\n"), (f"{line}\t", f"{line}{rest}"), ("@", "@")]
    assert f"{whole}@" in typed(environment, keys), "a blank is typed and not quoted"
