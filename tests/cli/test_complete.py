"""What a line may go on with, in words and in a real shell."""

import os
import shutil
import subprocess
import sys
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


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "found"),
    [("attnlab heads=ml", ["mla"]), ("attnlab heads=mha,ml", ["mha,mla"]), ("attnlab stat", ["status "])],
)
def test_bash_completes_what_comes_after_the_sign_at_which_it_breaks_words(tmp_path, line, found):
    command = tmp_path / "attnlab"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m attnlab "$@"\n')
    command.chmod(0o755)
    script = f"""{SCRIPTS["bash"]}
COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; _attnlab; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.stdout.splitlines(), done.stderr) == (found, "")
    assert "complete -o nospace -F _attnlab attnlab" in SCRIPTS["bash"]
