"""The reference reports: what the project says that it found must be what lies in the repository."""

import json
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attnlab.config import CONF
from attnlab.report import ledger, lines
from attnlab.report.across import page
from attnlab.report.across.ladder import build
from attnlab.report.build import plain
from attnlab.report.pages.html import html
from attnlab.report.schema import SCHEMA, load
from attnlab.report.tables.claimed import cited
from attnlab.stats.null import RULES

FOLDER = Path(__file__).parent.parent / "reports" / "reference"
EVERY = {path.parent.name: path for path in sorted(FOLDER.glob("*/report.json"))}
REPORTS = {name: path for name, path in EVERY.items() if "@" not in name}
LADDERS = sorted(path.parent.name for path in FOLDER.glob("*/ladder.json"))
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
NOT_ONE = {"nanogpt_cpu", "makemore_names"}  # they need a text that is not ours


def test_every_experiment_has_a_reference():
    assert set(EXPERIMENTS) - NOT_ONE <= set(REPORTS)


@pytest.mark.parametrize("name", REPORTS)
def test_a_reference_was_made_by_the_shipped_command_and_answers_the_claims_of_today(name):
    report = json.loads(REPORTS[name].read_text("utf-8"))
    assert report["reproduce"]["command"] == f"python -m attnlab +experiment={name}"
    assert report["experiment"]["size"] == "S"
    declared = [claim["says"] for claim in OmegaConf.load(CONF / "experiment" / f"{name}.yaml").claims]
    assert [claim["says"] for claim in cited(load(REPORTS[name]))] == declared, "known by what is asked"
    assert {path.name for path in REPORTS[name].parent.iterdir()} >= {"report.html", "report.md", "figures"}


@pytest.mark.parametrize("name", sorted(EVERY.keys() - REPORTS.keys()))
def test_a_rung_or_a_text_was_made_by_the_shipped_command(name):
    report = json.loads(EVERY[name].read_text("utf-8"))
    experiment, _, place = name.partition("@")
    ladder, climbs, _ = place.partition(".")
    asked = f" ladder={ladder}" if climbs else ""
    assert report["reproduce"]["command"] == f"python -m attnlab +experiment={experiment}{asked}"
    assert report["place"]["name"] == place.rpartition(".")[2]
    assert {path.name for path in EVERY[name].parent.iterdir()} >= {"report.html", "report.md"}


@pytest.mark.parametrize("name", EVERY)
def test_what_is_open_says_how_many_seeds_would_decide_it(name):
    claims = load(EVERY[name])["verdict"]["claims"]
    assert [one["says"] for one in claims if one["verdict"] == "INCONCLUSIVE" and not one["deciding"]] == []


@pytest.mark.parametrize("name", LADDERS)
def test_what_rungs_say_together_is_made_of_what_each_says(name):
    rungs = {title: load(path) for title, path in EVERY.items() if title.startswith(f"{name}.")}
    assert len(rungs) == 4
    same(plain(build(rungs)), page.load(FOLDER / name))


def same(made, kept):
    """Another machine adds up in another order: a number may differ in its last digits."""
    if isinstance(made, dict):
        assert sorted(made) == sorted(kept)
        for key in made:
            same(made[key], kept[key])
    elif isinstance(made, list):
        assert len(made) == len(kept)
        for one, other in zip(made, kept, strict=True):
            same(one, other)
    elif isinstance(made, float):
        assert made == pytest.approx(kept, rel=1e-9)
    else:
        assert made == kept


@pytest.mark.parametrize("name", REPORTS)
def test_a_reference_of_an_older_version_is_upgraded_as_it_is_read(name):
    assert json.loads(REPORTS[name].read_text("utf-8"))["schema"] <= SCHEMA
    assert load(REPORTS[name])["schema"] == SCHEMA


@pytest.mark.parametrize(
    "name",
    [
        "smoke",  # has times
        "window_and_sinks",  # has lengths and a race
        pytest.param("length_extrapolation", marks=pytest.mark.rare),
    ],
)
def test_a_reference_is_rendered_as_it_lies_there(name):
    page = (REPORTS[name].parent / "report.html").read_text("utf-8")
    assert html(load(REPORTS[name])) == page


def test_the_ledger_is_made_from_the_references():
    ladders = [page.load(FOLDER / name) for name in LADDERS]
    told = lines.read(FOLDER, page.sizes(ladders), page.agreement(ladders))
    for name, make in (("README.md", ledger.markdown), ("ledger.html", ledger.html)):
        made = make(told, FOLDER)
        stored = (FOLDER / name).read_text("utf-8")
        assert stored.replace("reports/reference", "") == made.replace(FOLDER.as_posix(), ""), name


def test_no_rule_finds_something_in_nothing_more_often_than_it_may():
    """By the ledger, which the test above makes again."""
    told = (FOLDER / "README.md").read_text("utf-8").partition("## Where nothing differs")[2]
    assert int(re.search(r"The (\d+) different runs", told)[1]) >= 16
    bounds = re.findall(r"^\| (.+) \| [\d.]+% \| ([\d.]+)% \|$", told, re.MULTILINE)
    assert {rule for rule, _ in bounds} == set(RULES)
    assert all(float(bound) <= 5 for _, bound in bounds), bounds
