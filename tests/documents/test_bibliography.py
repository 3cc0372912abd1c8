"""The bibliography lists exactly the sources that experiments cite for their claims."""

import re
from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attnlab.config import CONF
from attnlab.report.tables.source_links import make_anchor

BIBLIOGRAPHY = (Path(__file__).parents[2] / "docs" / "bibliography.md").read_text()
FIRST_CELLS = [line.split("|")[1].strip() for line in BIBLIOGRAPHY.splitlines() if line.startswith("|")]
ENTRIES = [re.fullmatch(r'<a id="([^"]+)"></a>(.+)', cell) for cell in FIRST_CELLS]
LISTED_SOURCES = [entry[2] for entry in ENTRIES if entry]
OWN_SOURCES = {"arithmetic", "roofline", "published shape", "this project"}
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@cache
def find_cited_sources(name: str) -> set[str]:
    claims = OmegaConf.load(CONF / "experiment" / f"{name}.yaml").claims
    fields = (str(claim.get(key, "")) for claim in claims for key in ("source", "other_source"))
    return {source.strip() for field in fields for source in field.split(";")} - {""}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_source_of_an_experiment_is_in_the_bibliography(name):
    assert find_cited_sources(name) - OWN_SOURCES <= set(LISTED_SOURCES)


def test_bibliography_lists_each_cited_source_once():
    assert {cell for cell, entry in zip(FIRST_CELLS, ENTRIES, strict=True) if not entry} == {
        "cited as",
        "---",
    }
    assert sorted(LISTED_SOURCES) == sorted(set.union(*map(find_cited_sources, EXPERIMENTS)) - OWN_SOURCES)


def test_every_entry_has_the_anchor_that_its_links_lead_to():
    anchors = [entry[1] for entry in ENTRIES if entry]
    assert anchors == list(map(make_anchor, LISTED_SOURCES))
    assert len(anchors) == len(set(anchors))


def test_bibliography_names_the_other_sources():
    assert all(f"`{source}`" in BIBLIOGRAPHY for source in OWN_SOURCES)
