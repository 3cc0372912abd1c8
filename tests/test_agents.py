"""AGENTS.md and CITATION.cff agree with the code: exit statuses, the version."""

import re
from pathlib import Path

import yaml

import attnlab
from attnlab.cli.verbs.judge import ENDS

ROOT = Path(__file__).parents[1]
AGENTS = (ROOT / "AGENTS.md").read_text("utf-8")


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
