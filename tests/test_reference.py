"""The reference reports: what the project says that it found must be what lies in the repository."""

import re
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attnlab.config import CONF
from attnlab.report import ladder, ledger, lines
from attnlab.report.across import page
from attnlab.report.across.ladder import build
from attnlab.report.build import plain
from attnlab.report.pages.files import dumps
from attnlab.report.pages.html import html
from attnlab.report.pages.markdown import markdown
from attnlab.report.schema import Verdict, load
from attnlab.report.tables import maps
from attnlab.report.tables.claimed import cited
from attnlab.stats.null import RULES

FOLDER = Path(__file__).parent.parent / "reports" / "reference"
EVERY = {path.parent.name: path for path in sorted(FOLDER.glob("*/report.json"))}
REPORTS = {name: path for name, path in EVERY.items() if "@" not in name}
LADDERS = sorted(path.parent.name for path in FOLDER.glob("*/ladder.json"))
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
COMPLETE = "gqa_vs_mha"  # with its page and attention maps
NOT_ONE = {"nanogpt_cpu", "makemore_names"}  # they need a text that is not ours


def test_every_experiment_has_a_reference():
    assert set(EXPERIMENTS) - NOT_ONE <= set(REPORTS)


@pytest.mark.parametrize("name", REPORTS)
def test_a_reference_was_made_by_the_shipped_command_and_answers_the_claims_of_today(name):
    report = load(REPORTS[name])
    assert report.reproduce.command == f"python -m attnlab +experiment={name}"
    assert report.experiment.size == "S"
    declared = [claim["says"] for claim in OmegaConf.load(CONF / "experiment" / f"{name}.yaml").claims]
    assert [claim.says for claim in cited(report)] == declared, "known by what is asked"


@pytest.mark.parametrize("name", sorted(EVERY.keys() - REPORTS.keys()))
def test_a_rung_or_a_text_was_made_by_the_shipped_command(name):
    report = load(EVERY[name])
    experiment, _, place = name.partition("@")
    ladder, climbs, _ = place.partition(".")
    asked = f" ladder={ladder}" if climbs else ""
    assert report.reproduce.command == f"python -m attnlab +experiment={experiment}{asked}"
    assert report.place.name == place.rpartition(".")[2]


@pytest.mark.parametrize("name", EVERY)
def test_what_is_open_says_how_many_seeds_would_decide_it(name):
    claims = load(EVERY[name]).verdict.claims
    undecided = [claim for claim in claims if claim.verdict == Verdict.INCONCLUSIVE]
    assert [claim.says for claim in undecided if not claim.deciding] == []


@pytest.mark.parametrize("name", LADDERS)
def test_what_rungs_say_together_is_made_of_what_each_says(name):
    rungs = {title: load(path) for title, path in EVERY.items() if title.startswith(f"{name}.")}
    assert len(rungs) == 4
    same(plain(build(rungs).plain()), ladder.load(FOLDER / name).plain())


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


@pytest.mark.parametrize("name", EVERY)
def test_the_markdown_of_a_reference_is_rendered_from_its_data(name):
    report, text = load(EVERY[name]), EVERY[name].read_text("utf-8")
    assert dumps(report.plain()) == text
    assert (EVERY[name].parent / "report.md").read_text("utf-8") == markdown(report)


@pytest.mark.parametrize("name", LADDERS)
def test_the_markdown_of_a_ladder_is_rendered_from_its_data(name):
    assert (FOLDER / name / "ladder.md").read_text("utf-8") == page.markdown(ladder.load(FOLDER / name))


@pytest.mark.rare
def test_the_page_of_the_complete_reference_is_rendered_from_its_data():
    folder = FOLDER / COMPLETE
    archive = maps.read(folder / maps.ARCHIVE)
    assert html(load(EVERY[COMPLETE]), archive=archive) == (folder / "report.html").read_text("utf-8")
    assert {arm for arm, _ in archive} == {"mha", "gqa", "mqa", "gqa_alone"}


def list_tracked_files() -> list[str]:
    """The files below reports/reference that git holds."""
    if not (FOLDER.parents[1] / ".git").exists():
        pytest.skip("not a checkout of git")
    command = ["git", "ls-files", "-z", "reports/reference"]
    done = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True, check=True)
    return [name.removeprefix("reports/reference/") for name in done.stdout.split("\0") if name]


def test_git_holds_data_and_markdown_of_references_and_one_page():
    tracked = list_tracked_files()
    assert sum((FOLDER / name).stat().st_size for name in tracked) < 25e6
    rendered = sorted(name for name in tracked if Path(name).suffix not in (".json", ".md"))
    files = ("attention.npz", "report.html", "runs.csv", "summary.png")
    assert rendered == [f"{COMPLETE}/{file}" for file in files]


@pytest.mark.rare
def test_the_ledger_is_made_from_the_references():
    ladders = [ladder.load(FOLDER / name) for name in LADDERS]
    told = lines.read(FOLDER, page.sizes(ladders), page.agreement(ladders))
    stored = (FOLDER / "README.md").read_text("utf-8")
    assert lines.totals(told) in ledger.html(told, FOLDER)
    assert stored.replace("reports/reference", "") == ledger.markdown(told, FOLDER).replace(
        FOLDER.as_posix(), ""
    )


def test_no_rule_finds_something_in_nothing_more_often_than_it_may():
    """By the ledger, which the test above makes again."""
    told = (FOLDER / "README.md").read_text("utf-8").partition("## Where nothing differs")[2]
    assert int(re.search(r"The (\d+) different runs", told)[1]) >= 16
    bounds = re.findall(r"^\| (.+) \| [\d.]+% \| ([\d.]+)% \|$", told, re.MULTILINE)
    assert {rule for rule, _ in bounds} == set(RULES)
    assert all(float(bound) <= 5 for _, bound in bounds), bounds
