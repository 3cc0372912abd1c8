"""What an experiment names as the source of a claim is in the bibliography, and nothing else is."""

from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attnlab.config import CONF

BIBLIOGRAPHY = (Path(__file__).parents[2] / "docs" / "bibliography.md").read_text()
LISTED = [line.split("|")[1].strip() for line in BIBLIOGRAPHY.splitlines() if line.startswith("|")]
OWN = {"arithmetic", "roofline", "published shape", "this project"}
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@cache
def cited(name: str) -> set[str]:
    claims = OmegaConf.load(CONF / "experiment" / f"{name}.yaml").claims
    named = (str(claim.get(key, "")) for claim in claims for key in ("source", "other_source"))
    return {source.strip() for names in named for source in names.split(";")} - {""}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_source_of_an_experiment_is_in_the_bibliography(name):
    assert cited(name) - OWN <= set(LISTED)


def test_the_bibliography_lists_what_is_cited_once():
    entries = [entry for entry in LISTED if entry != "cited as" and not entry.startswith("---")]
    assert sorted(entries) == sorted(set.union(*map(cited, EXPERIMENTS)) - OWN)


def test_the_bibliography_names_the_other_sources():
    assert all(f"`{source}`" in BIBLIOGRAPHY for source in OWN)
