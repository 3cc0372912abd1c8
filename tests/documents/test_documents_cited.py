"""What an experiment names as the source of a claim is in the bibliography, and nothing else is."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attnlab.config import CONF

BIBLIOGRAPHY = (Path(__file__).parents[2] / "docs" / "bibliography.md").read_text()
LISTED = [line.split("|")[1].strip() for line in BIBLIOGRAPHY.splitlines() if line.startswith("|")]
OWN = {"arithmetic", "roofline", "published shape", "this project"}
CITED = {
    path.stem: {
        source.strip()
        for claim in OmegaConf.load(path).claims
        for source in str(claim.get("source", "")).split(";")
        if source.strip()
    }
    for path in sorted((CONF / "experiment").glob("*.yaml"))
}


@pytest.mark.parametrize("name", CITED)
def test_every_source_of_an_experiment_is_in_the_bibliography(name):
    assert CITED[name] - OWN <= set(LISTED)


def test_the_bibliography_lists_what_is_cited_once():
    entries = [entry for entry in LISTED if entry != "cited as" and not entry.startswith("---")]
    assert sorted(entries) == sorted(set.union(*CITED.values()) - OWN)


def test_the_bibliography_names_the_other_sources():
    assert all(f"`{source}`" in BIBLIOGRAPHY for source in OWN)
