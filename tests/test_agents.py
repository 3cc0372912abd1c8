"""AGENTS.md and CITATION.cff say what is so: commands that can be read, exit statuses, the version."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

import attnlab
from attnlab.cli.commands import VERBS, parse
from attnlab.cli.verbs.judge import ENDS

ROOT = Path(__file__).parents[1]
AGENTS = (ROOT / "AGENTS.md").read_text("utf-8")
COMMANDS = [line for line in AGENTS.splitlines() if line.startswith("python -m attnlab ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_can_be_read(line):
    verb, *words = shlex.split(line, comments=True)[3:]
    assert verb in VERBS
    assert parse(verb, words)


def test_the_exit_statuses_are_those_of_judge():
    told = {
        int(status): word
        for status, word in re.findall(r"^\| (\d) \| ([a-z ]+) \|", AGENTS, re.M)
        if word.strip()
    }
    assert told == {status: word for status, word in ENDS.values()}


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (cited["title"], cited["version"]) == ("attnlab", attnlab.__version__)
