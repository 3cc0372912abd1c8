"""Shell completion: candidates, and scripts in real shells."""

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
from attnlab.cli.shell_completion import SHELL_SCRIPTS, list_completions
from attnlab.cli.verbs.list import list_experiments, list_groups
from attnlab.config import CONF

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("pl", ["plan "]),
        ("plan gqa_v", ["gqa_vs_mha "]),
        ("heads=ml", ["heads=mla"]),
        ("heads=mha,ml", ["heads=mha,mla"]),
        ("+experiment=gqa_v", ["+experiment=gqa_vs_mha"]),
        ("plan +experiment=gqa_v", ["+experiment=gqa_vs_mha"]),
        ("judge --me", ["--metric"]),
        ("inspect tex", ["text="]),
        ("new mi", ["mixer "]),
        ("bench st", ["start "]),
        ("list experi", ["experiments"]),
        ("nowhere=x", []),
        ("zzz", []),
    ],
)
def test_word_is_completed_by_its_position(line, completions):
    assert list_completions(line.split()) == completions


def test_line_may_start_with_any_verb_or_group():
    words = list_completions([""])
    assert {f"{verb} " for verb in VERBS} | {f"{group}=" for group in list_groups()} <= {*words}


def test_users_experiment_shadows_a_shipped_one(tmp_path):
    user_file = tmp_path / "experiment" / "gqa_vs_mha.yaml"
    user_file.parent.mkdir()
    user_file.write_text("")
    assert list_experiments((tmp_path, CONF))["gqa_vs_mha"] == user_file
    assert list_experiments()["gqa_vs_mha"] != user_file


@pytest.fixture
def environment(tmp_path):
    """An environment in which `attnlab` is a command."""
    command = tmp_path / "attnlab"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m attnlab "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def requires_shell(shell):
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"needs {shell}")


@requires_shell("bash")
@pytest.mark.parametrize(
    ("line", "completions"),
    [("attnlab heads=ml", ["mla"]), ("attnlab heads=mha,ml", ["mha,mla"]), ("attnlab stat", ["status "])],
)
def test_bash_completes_values_after_an_equals_sign(environment, line, completions):
    script = f"""{SHELL_SCRIPTS["bash"]}
COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; _attnlab; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.stdout.splitlines(), done.stderr) == (completions, "")
    assert "complete -o nospace -F _attnlab attnlab" in SHELL_SCRIPTS["bash"]


@requires_shell("fish")
@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("attnlab stat", ["status"]),
        ("attnlab heads=mha,ml", ["heads=mha,mla"]),
        ("attnlab plan gqa_v", ["gqa_vs_mha"]),
    ],
)
def test_fish_completes_words(environment, tmp_path, line, completions):
    script = f"attnlab complete fish | source; complete -C '{line}'"
    environment |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(["fish", "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.stdout.splitlines(), done.stderr) == (completions, "")


def type_into_zsh(environment, keys):
    """Type keys into an interactive zsh, each after the output of the previous one, and return its screen."""
    parent_end, child_end = pty.openpty()
    streams = {"stdin": child_end, "stdout": child_end, "stderr": child_end}
    shell = subprocess.Popen(["zsh", "-f", "-i"], **streams, env=environment, start_new_session=True)
    screen, deadline = "", time.monotonic() + 30
    try:
        for key, expected in keys:
            os.write(parent_end, key.encode())
            n_seen = len(screen)
            while expected not in screen[n_seen:] and time.monotonic() < deadline:
                if select.select([parent_end], [], [], 1)[0]:
                    screen += os.read(parent_end, 4096).decode(errors="replace")
        return screen
    finally:
        shell.kill()
        shell.wait()
        os.close(parent_end)
        os.close(child_end)


@requires_shell("zsh")
@pytest.mark.parametrize(
    ("line", "completion", "completed_line"),
    [("attnlab stat", "us ", "attnlab status "), ("attnlab heads=mha,ml", "a", "attnlab heads=mha,mla")],
)
def test_zsh_inserts_the_rest_of_a_word(environment, tmp_path, line, completion, completed_line):
    setup_command = (
        "autoload -Uz compinit; compinit -D -u; attnlab complete zsh > c; source ./c; echo re''ady\n"
    )
    environment |= {"HOME": str(tmp_path), "TERM": "dumb", "PS1": "> "}
    keys = [
        (f"cd {tmp_path}; {setup_command}", "ready\r\n"),
        (f"{line}\t", f"{line}{completion}"),
        ("@", "@"),
    ]
    assert f"{completed_line}@" in type_into_zsh(environment, keys), "a blank is typed and not quoted"
