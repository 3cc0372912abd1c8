"""The ledger has a line per claim, with what its source says and what was found."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from synthetic import World, experiment, provenance, timing, write_runs

from attnlab.cli import main as entry
from attnlab.config import CONF
from attnlab.report import build, ledger, write
from attnlab.stats.null import RULES, FalsePositives

SIX = [0, 1, 2, 3, 4, 5]
pytestmark = pytest.mark.usefixtures("blank")


def put(root: Path, name: str, cited: bool = True, **effects: float) -> None:
    """A report of a made-up experiment, whose first claim cites a source."""
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06, **effects}, seeds=SIX)
    found = experiment(world, name=name)
    declared = [claim.plain() for claim in found.experiment.claims]
    if cited:
        declared[0] |= {"source": "A | B 2001", "source_says": "as good"}
    runs = write_runs(root / "runs" / name, world)
    told = provenance(declared={"claims": declared}, command=f"python -m attnlab +experiment={name}")
    write(root / "reference" / name, build(found, runs, timing(world), told), runs)


def rows(page: str) -> list[list[str]]:
    lines = [line.replace("\\|", "/") for line in page.splitlines() if line.startswith("| [")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_a_line_per_claim_says_what_the_report_says(tmp_path):
    put(tmp_path, "mine")
    put(tmp_path, "other", cited=False, gqa=0.2)
    page = ledger.ledger(tmp_path / "reference")
    found = rows(page)
    assert len(found) == 6
    assert all(len(row) == len(ledger.COLUMNS) for row in found)
    first, fourth = found[0], found[3]
    assert first[0] == "[mine](mine/report.md), size debug"
    assert first[2:5] == ["A / B 2001", "as good", "SUPPORTED"]
    assert first[5].startswith("+0.004 nats [")
    assert (first[6], first[8]) == ("6 of 6", "`python -m attnlab +experiment=mine`")
    assert fourth[2:5] == ["–", "–", "REFUTED"]
    assert found[2][5].startswith("0.5 × exact")
    assert "6 claims of 2 reports: 1 REFUTED, 5 SUPPORTED." in page


def test_a_citation_that_was_mended_in_the_file_comes_before_that_of_the_report():
    claims = OmegaConf.load(CONF / "experiment" / "gqa_vs_mha.yaml").claims
    old = [{"says": claims[0].says, "source": "old"}, {"says": "gone", "source": "kept"}]
    told = {"experiment": {"name": "gqa_vs_mha"}, "reproduce": {"declared": {"claims": old}}}
    found = ledger.citations(told)
    assert found[claims[0].says]["source"] == claims[0].source
    assert found["gone"]["source"] == "kept"


def test_the_runs_of_the_comparison_of_nothing_say_how_often_the_rules_err(tmp_path, monkeypatch):
    rates = {rule: FalsePositives(0.04, 0.01, rounds=1000, passed=True) for rule in RULES}
    monkeypatch.setattr(ledger, "false_positives", lambda values, margin: rates)
    put(tmp_path, "mine")
    assert "Where nothing differs" not in ledger.ledger(tmp_path / "reference")
    put(tmp_path, "aa_null")
    page = ledger.ledger(tmp_path / "reference")
    told = page.partition("## Where nothing differs")[2]
    assert "The 18 different runs" in told
    assert len([line for line in told.splitlines() if line.count("%") == 2]) == len(RULES)


def test_the_verb_writes_the_page_and_refuses_a_folder_without_reports(tmp_path, capsys):
    put(tmp_path, "mine")
    assert entry.main(["report", "--ledger", str(tmp_path / "reference")]) == 0
    page = (tmp_path / "reference" / "README.md").read_text("utf-8")
    assert page == ledger.ledger(tmp_path / "reference")
    assert entry.main(["report", "--ledger", str(tmp_path)]) == 2
    assert "no */report.json here" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_claim_names_its_source_and_has_words_of_its_own(path):
    claims = OmegaConf.load(path).claims
    assert all(claim.source and claim.source_says for claim in claims)
    assert len({claim.says for claim in claims}) == len(claims)
