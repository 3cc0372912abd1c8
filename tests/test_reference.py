"""Reference reports: stored data, rendered Markdown, ledger and claims agree."""

import re
import subprocess
from pathlib import Path

import ledger
import pytest
from conflicts import find_conflicts
from false_positives import DECISION_RULES
from ledger_rows import load_ledger
from omegaconf import OmegaConf

from attnlab.config import CONF
from attnlab.report import ladder_schema
from attnlab.report.pages.html import render_page
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.pages.report_files import format_json
from attnlab.report.pages.report_page import build_report_page
from attnlab.report.replications import ladder_page
from attnlab.report.replications.ladder_analysis import build_ladder_report
from attnlab.report.report_builder import to_plain_json
from attnlab.report.schema import Verdict, load_report
from attnlab.report.sections import PageContext
from attnlab.report.tables import map_archive
from attnlab.report.tables.claim_sources import (
    load_ladder_citations,
    load_reworded_ladder,
    load_reworded_report,
)
from attnlab.report.tables.source_links import find_bibliography
from attnlab.store.experiment_schema import expand_claims

FOLDER = Path(__file__).parent.parent / "reports" / "reference"
ALL_REPORTS = {path.parent.name: path for path in sorted(FOLDER.glob("*/report.json"))}
REPORTS = {name: path for name, path in ALL_REPORTS.items() if "@" not in name}
LADDERS = sorted(path.parent.name for path in FOLDER.glob("*/ladder.json"))
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
COMPLETE = "gqa_vs_mha"  # stored with its page and attention maps
WITHOUT_REFERENCE = {
    *("nanogpt_cpu", "makemore_names"),  # they need a text that does not ship
}


def test_every_experiment_has_a_reference():
    assert set(EXPERIMENTS) - WITHOUT_REFERENCE <= set(REPORTS)


@pytest.mark.parametrize("name", REPORTS)
def test_reference_has_the_shipped_command_and_the_current_claims(name):
    report = load_reworded_report(REPORTS[name])
    assert report.reproduce.command == f"python -m attnlab +experiment={name}"
    assert report.experiment.size == "S"
    file = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{name}.yaml"))
    current = expand_claims(file["claims"], file["arms"], file["arm_overrides"], file["baseline"]).claims
    says = [claim["says"] for claim in current]
    assert [claim.says for claim in report.verdict.claims] == says, "known by what is asked"


@pytest.mark.parametrize("name", sorted(ALL_REPORTS.keys() - REPORTS.keys()))
def test_replication_has_the_shipped_command(name):
    report = load_report(ALL_REPORTS[name])
    experiment, _, replication_name = name.partition("@")
    ladder, is_ladder, _ = replication_name.partition(".")
    ladder_option = f" ladder={ladder}" if is_ladder else ""
    assert report.reproduce.command == f"python -m attnlab +experiment={experiment}{ladder_option}"
    assert report.replication.name == replication_name.rpartition(".")[2]


@pytest.mark.parametrize("name", ALL_REPORTS)
def test_inconclusive_claims_have_required_seeds(name):
    claims = load_report(ALL_REPORTS[name]).verdict.claims
    inconclusive = [claim for claim in claims if claim.verdict == Verdict.INCONCLUSIVE]
    assert [claim.says for claim in inconclusive if not claim.required_seeds] == []


@pytest.mark.parametrize("name", LADDERS)
def test_ladder_report_is_computed_from_its_sizes(name):
    rungs = {title: load_report(path) for title, path in ALL_REPORTS.items() if title.startswith(f"{name}.")}
    assert len(rungs) == 4
    assert_nearly_equal(
        to_plain_json(build_ladder_report(rungs).to_dict()),
        ladder_schema.load_ladder(FOLDER / name).to_dict(),
    )


def assert_nearly_equal(computed, stored):
    """Compare recursively with tolerance, since another machine sums in another order."""
    if isinstance(computed, dict):
        assert sorted(computed) == sorted(stored)
        for key in computed:
            assert_nearly_equal(computed[key], stored[key])
    elif isinstance(computed, list):
        assert len(computed) == len(stored)
        for computed_item, stored_item in zip(computed, stored, strict=True):
            assert_nearly_equal(computed_item, stored_item)
    elif isinstance(computed, float):
        assert computed == pytest.approx(stored, rel=1e-9)
    else:
        assert computed == stored


@pytest.mark.parametrize("name", ALL_REPORTS)
def test_markdown_of_a_reference_is_rendered_from_its_data(name):
    source = ALL_REPORTS[name]
    assert format_json(load_report(source).to_dict()) == source.read_text("utf-8")
    page = build_report_page(load_reworded_report(source), PageContext(find_bibliography(source.parent)))
    assert (source.parent / "report.md").read_text("utf-8") == render_markdown(page)


def test_references_that_differ_are_found():
    conflicts_of_references = find_conflicts({name: load_report(path) for name, path in ALL_REPORTS.items()})
    assert set(conflicts_of_references) == {"gqa_vs_mha@code", "gqa_vs_mha@two_cores.S"}
    [conflict] = conflicts_of_references["gqa_vs_mha@code"]
    effect = conflict.results[0]
    assert (effect.here.partition(" (")[2], effect.there.partition(" (")[2]) == ("WORSE)", "BETTER)")
    first = conflict.settings[0]
    assert (first.label, first.here, first.there) == ("optim.lr of gqa", "0.003", "0.006")


@pytest.mark.parametrize("name", LADDERS)
def test_markdown_of_a_ladder_is_rendered_from_its_data(name):
    folder = FOLDER / name
    ladder = load_reworded_ladder(folder)
    page = ladder_page.build_ladder_page(
        ladder, load_ladder_citations(folder, ladder), find_bibliography(folder)
    )
    assert (folder / "ladder.md").read_text("utf-8") == render_markdown(page)


@pytest.mark.rare
def test_page_of_the_complete_reference_is_rendered_from_its_data():
    folder = FOLDER / COMPLETE
    archive = map_archive.read_archive(folder / map_archive.ARCHIVE_NAME)
    context = PageContext(find_bibliography(folder), archive)
    page = render_page(build_report_page(load_reworded_report(ALL_REPORTS[COMPLETE]), context))
    assert page == (folder / "report.html").read_text("utf-8")
    assert {arm for arm, _ in archive} == {"mha", "gqa", "mqa", "gqa_alone"}


def list_tracked_files() -> list[str]:
    """List the files below reports/reference that git tracks."""
    if not (FOLDER.parents[1] / ".git").exists():
        pytest.skip("not a checkout of git")
    command = ["git", "ls-files", "-z", "reports/reference"]
    result = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True, check=True)
    return [name.removeprefix("reports/reference/") for name in result.stdout.split("\0") if name]


def test_git_tracks_data_and_markdown_of_references_and_one_page():
    tracked = list_tracked_files()
    assert sum((FOLDER / name).stat().st_size for name in tracked) < 30e6
    rendered = sorted(name for name in tracked if Path(name).suffix not in (".json", ".md"))
    files = ("attention.npz", "report.html", "runs.csv")
    assert rendered == [f"{COMPLETE}/{file}" for file in files]


@pytest.mark.rare
def test_ledger_is_computed_from_the_references():
    page = ledger.LedgerPage(load_ledger(FOLDER), find_bibliography(FOLDER), "report.md").build()
    assert (FOLDER / "README.md").read_text("utf-8") == render_markdown(page)


def test_no_decision_rule_exceeds_5_percent_false_positives():
    """Reads the ledger, which the test above recomputes."""
    ledger_data = (FOLDER / "README.md").read_text("utf-8").partition("## False positives")[2]
    assert int(re.search(r"The (\d+) different runs", ledger_data)[1]) >= 16
    bounds = re.findall(r"^\| (.+) \| [\d.]+% \| ([\d.]+)% \|$", ledger_data, re.MULTILINE)
    assert {rule_name for rule_name, _ in bounds} == set(DECISION_RULES)
    assert all(float(bound) <= 5 for _, bound in bounds), bounds
