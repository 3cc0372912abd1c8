"""The bibliography lists exactly the sources that experiments cite for their claims."""

from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attnlab.config import CONF

BIBLIOGRAPHY = (Path(__file__).parents[2] / "docs" / "bibliography.md").read_text()
LISTED_SOURCES = [line.split("|")[1].strip() for line in BIBLIOGRAPHY.splitlines() if line.startswith("|")]
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
    entries = [entry for entry in LISTED_SOURCES if entry != "cited as" and not entry.startswith("---")]
    assert sorted(entries) == sorted(set.union(*map(find_cited_sources, EXPERIMENTS)) - OWN_SOURCES)


def test_bibliography_names_the_other_sources():
    assert all(f"`{source}`" in BIBLIOGRAPHY for source in OWN_SOURCES)
