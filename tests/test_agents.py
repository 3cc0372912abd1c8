"""AGENTS.md and CITATION.cff agree with the code: exit statuses, the version."""

import re
from pathlib import Path

import yaml

import attnlab
from attnlab.cli.verdict_output import EXIT_BY_VERDICT

ROOT = Path(__file__).parents[1]
AGENTS = (ROOT / "AGENTS.md").read_text("utf-8")


def test_exit_statuses_equal_those_of_judge():
    table = {
        int(status): word
        for status, word in re.findall(r"^\| (\d) \| ([a-z ]+) \|", AGENTS, re.M)
        if word.strip()
    }
    assert table == {status: word for status, word in EXIT_BY_VERDICT.values()}


def test_citation_has_the_current_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["title"], citation["version"]) == ("attnlab", attnlab.__version__)
