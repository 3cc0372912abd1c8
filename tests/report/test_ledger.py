"""The ledger has a line per claim, with what its source says, why its threshold, and what was found."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
from omegaconf import OmegaConf
from synthetic import World, claimed, experiment, provenance, timing, write_runs

from attnlab.config import CONF
from attnlab.report import ledger, lines
from attnlab.report.build import build
from attnlab.report.diff import compare
from attnlab.report.lines import read
from attnlab.report.schema import ClaimResult, Report
from attnlab.report.tables.claimed import Citation, axis, cited, same
from attnlab.stats.null import RULES
from attnlab.store.declarations import Claim

SIX = [0, 1, 2, 3, 4, 5]
SHIPPED = sorted((CONF / "experiment").glob("*.yaml"))
pytestmark = pytest.mark.usefixtures("blank")


def put(
    root: Path,
    name: str,
    cited: bool = True,
    other: Mapping[str, str] = MappingProxyType({}),
    looks: list[int] | None = None,
    **effects: float,
) -> None:
    """A report of a made-up experiment, whose first claim cites a source, and `other` that says otherwise."""
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06, **effects}, seeds=SIX)
    asked = experiment(world, name=name, looks=looks)
    declared = [claim.plain() for claim in asked.experiment.claims]
    if cited:
        declared[0] |= {"source": "A | B 2001; C", "source_says": "as good", "reason": "what <nobody> sees"}
        declared[0] |= other
    runs = write_runs(root / "runs" / name, world)
    told = provenance(declared={"claims": declared}, command=f"python -m attnlab +experiment={name}")
    folder = root / "reference" / name
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(build(asked, runs, timing(world), told).plain()), "utf-8")


def rows(page: str) -> list[list[str]]:
    """The cells of all lines about claims and reports."""
    lines = [line.replace("\\|", "/") for line in page.splitlines() if line.startswith("| [")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_a_line_per_claim_says_what_the_report_says(tmp_path):
    put(tmp_path, "mine")
    put(tmp_path, "other", cited=False, gqa=0.2)
    page = ledger.markdown(read(tmp_path / "reference"), tmp_path / "reference")
    hypotheses = rows(page.partition("## Hypotheses")[2].partition("## Identities")[0])
    identities = rows(page.partition("## Identities")[2].partition("## What was run")[0])
    run = rows(page.partition("## What was run")[2])
    assert (len(hypotheses), len(identities), len(run)) == (4, 2, 2)
    first, third = hypotheses[0], hypotheses[2]
    assert first[0] == "[mine, size debug](mine/report.md)"
    assert first[2:7] == [
        "Δ val/loss, gqa vs mha: margin ±0.03", "what <nobody> sees", "A / B 2001; C", "as good",
        "SUPPORTED",
    ]  # fmt: skip
    assert first[7] == "+0.004 nats, 95% CI [−0.004, +0.012]"
    assert first[8] == "90% CI [−0.003, +0.011]: equivalent"
    assert first[9] == "6 of 6"
    assert third[3:7] == ["–", "–", "–", "REFUTED"]
    assert identities[0][6] == "0.5×, exact"
    assert run[0][3] == "`python -m attnlab +experiment=mine`"
    assert "6 claims of 2 reports, 4 hypotheses and 2 identities: 1 REFUTED, 5 SUPPORTED." in page
    assert "otherwise: 1 REFUTED, 3 SUPPORTED." in page


def test_the_seeds_of_a_line_are_those_that_decided_it(tmp_path):
    put(tmp_path, "looked", looks=[4, 6], gqa=0.028)
    page = ledger.markdown(read(tmp_path / "reference"), tmp_path / "reference")
    open_, decided = rows(page.partition("## Hypotheses")[2].partition("## Identities")[0])
    assert (open_[6], decided[6]) == ("INCONCLUSIVE", "SUPPORTED")
    assert open_[9].startswith("6 of 6;")
    assert decided[9] == "4 of 6", "at the first look, though runs of the second are there"


def test_where_sources_disagree_both_stand_beside_what_was_found(tmp_path):
    put(tmp_path, "agreed")
    assert "## Where sources disagree" not in ledger.markdown(
        read(tmp_path / "reference"), tmp_path / "reference"
    )
    put(tmp_path, "disputed", other={"other_source": "D 2002", "other_says": "worse by 1"})
    told = read(tmp_path / "reference")
    page = ledger.markdown(told, tmp_path / "reference")
    [row] = rows(page.partition("## Where sources disagree")[2].partition("## Identities")[0])
    assert row[2:5] == ["A / B 2001; C: as good", "D 2002: worse by 1", "SUPPORTED"]
    assert ledger.html(told, tmp_path / "reference").count("Otherwise D 2002: worse by 1") == 1


def test_the_page_has_the_same_lines_and_what_its_filters_read(tmp_path):
    put(tmp_path, "mine")
    page = ledger.html(read(tmp_path / "reference"), tmp_path / "reference")
    read_by_filters = re.findall(r'data-axis="(\w+)" data-verdict="(\w+)" data-source="([^"]*)">', page)
    assert read_by_filters == [("other", "SUPPORTED", source) for source in ("A | B 2001; C", "–", "–")]
    assert page.count('href="mine/report.html#verdict"') == 3
    assert "what &lt;nobody&gt; sees" in page
    assert re.findall(r"<option>(.*?)</option>", page) == ["other", "SUPPORTED", "A | B 2001", "C", "–"]
    assert '<form id="filters" aria-label="Filter the claims" hidden>' in page, "a script shows it"
    assert not re.search(r'(?:src|href)="https?:', page)


def claim(**change: object) -> ClaimResult:
    asked = {"says": "old words", "arm": "a", "against": "b", "metric": "m", "threshold": 0.1}
    return claimed(-0.01, 0.02, "SUPPORTED", **asked | change)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report of one seed, for tests that replace what it declares."""
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0])
    runs = write_runs(tmp_path_factory.mktemp("bare"), world)
    return build(experiment(world), runs, None, provenance())


def declaring(report: Report, results: Sequence[ClaimResult] = (), **declared: object) -> Report:
    """The same report with these results, and of runs that were declared so."""
    return report.model_copy(
        update={
            "verdict": report.verdict.model_copy(update={"claims": [*results]}),
            "reproduce": report.reproduce.model_copy(update={"declared": declared}),
        }
    )


def test_a_claim_is_known_by_what_it_asks_then_by_its_words():
    mended, other = claim(says="mended"), claim(threshold=0.2)
    assert same(claim(), [other, mended]) is mended
    assert same(claim(), [other]) is other
    assert same(claim(), [claim(says="new", **{"is": "above"})]) is None
    twice = claim(says="another")
    assert same(claim(says="mended"), [twice, mended]) is mended


def test_what_is_declared_with_a_claim_comes_from_the_file_of_today_before_the_report(bare):
    written = OmegaConf.load(CONF / "experiment" / "gqa_vs_mha.yaml").claims[1]
    asks = {"arm": "mqa", "against": "mha", "metric": "val/loss", "is": "above"}
    row = {"says": "once", "threshold": written.threshold, **asks}
    old = [{**row, "source": "old"}, {**row, "says": "gone", "arm": "mla", "source": "kept", "reason": "too"}]
    gone = claim(says="gone", arm="mla", against="mha", metric="val/loss", threshold=7)
    first, second = cited(declaring(bare, [claim(**row), gone], claims=old))
    assert (first.says, first.source, first.reason) == (written.says, written.source, written.reason)
    assert second == Citation(says="gone", source="kept"), (
        "a reason is one of a threshold, which is another here"
    )


def test_two_reports_are_compared_claim_by_claim_where_words_were_mended(tmp_path):
    put(tmp_path, "mine")
    folder = tmp_path / "reference" / "mine"
    text = (folder / "report.json").read_text("utf-8")
    (tmp_path / "old").mkdir()
    old = text.replace("mqa is worse than mha", "so is mqa")
    assert old != text
    (tmp_path / "old" / "report.json").write_text(old, "utf-8")
    assert "no verdict, effect, budget or run differs" in compare(tmp_path / "old", folder)


@pytest.mark.parametrize(
    ("arm", "against", "found"),
    [
        ("gate", "plain", "epilogue"), ("differential", "plain", "heads"), ("wide", "plain", "heads"),
        ("lstm", "stated", "model"), ("stated", "twin", "other"), ("plain", "unknown", "heads"),
    ],
)  # fmt: skip
def test_the_axis_of_a_claim_is_the_first_group_that_its_arms_choose_differently(bare, arm, against, found):
    chosen = {
        "plain": ["heads=mha", "epilogue=none"], "gate": ["heads=mha", "epilogue=gate"],
        "differential": ["heads=differential", "epilogue=none"],
        "wide": ["heads=mha", "epilogue=none", "model.n_heads=1"],
        "lstm": ["parent=plain", "model=lstm", "position=none"], "stated": ["measurement={a: 1}"],
        "twin": ["replica=1"],
    }  # fmt: skip
    report = declaring(bare, arm_overrides=chosen)
    assert axis(report, claim(arm=arm, against=against)) == found


@pytest.mark.rare
def test_the_runs_of_the_comparison_of_nothing_say_how_often_the_rules_err(tmp_path, monkeypatch):
    monkeypatch.setattr("attnlab.stats.null.POOLS", 4)
    put(tmp_path, "mine")
    folder = tmp_path / "reference"
    assert "Where nothing differs" not in ledger.markdown(read(folder), folder)
    put(tmp_path, "aa_null")
    found = read(folder)
    told = ledger.markdown(found, folder).partition("## Where nothing differs")[2]
    assert "The 18 different runs" in told
    assert len([line for line in told.splitlines() if line.count("%") == 2]) == len(RULES)
    assert "The 18 different runs" in ledger.html(found, folder)


# How a claim begins that needs the one before it, and words that point at what it does not say.
OPENINGS = (
    "so ", "it ", "its ", "and ", "or ", "but ", "they ", "this ", "that ", "these ", "those ", "also ",
    "then ", "such ", "with less", "with more", "grouped ones", "latent ones", "rolling ones", "of ",
)  # fmt: skip
POINTING = re.compile(r"\b(it|they|them|too|the margin|the others?|as much|is enough|the same weights)\b")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_claim_reads_by_itself_and_names_its_source_and_the_reason_of_its_threshold(path):
    written = OmegaConf.to_container(OmegaConf.load(path))
    claims = [Claim.model_validate(claim) for claim in written["claims"]]
    for claim in claims:
        assert claim.source, claim.says
        assert claim.source_says, claim.says
        assert bool(claim.other_source) == bool(claim.other_says), claim.says
        assert not claim.says.lower().startswith(OPENINGS), claim.says
        assert not POINTING.search(claim.says), claim.says
        assert len(claim.says.split()) >= 5, claim.says
        assert claim.reason, f"{claim.says}: why {claim.threshold}?"
        theory = "stated" in (claim.against or written["baseline"])
        assert claim.threshold or theory or claim.reason.startswith("Any difference"), claim.reason
    assert len({claim.says for claim in claims}) == len(claims)
    asks = ("arm", "against", "metric", "compare", "relation", "threshold")
    asked = {tuple(getattr(claim, key) for key in asks) for claim in claims}
    assert len(asked) == len(claims), "two claims ask the same: the words of one could not be mended"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "; about 1,211 would refute it (4 h of training)"),
        ({"deciding": {"seeds": None, "ends": "refute"}}, "; no number would decide it"),
        ({"deciding": None}, ""), ({"verdict": "SUPPORTED"}, ""),
    ],
)  # fmt: skip
def test_what_is_open_says_how_many_seeds_would_decide_it(bare, changes, says):
    deciding = {"seeds": 1211, "low": None, "high": None, "power": 0.8, "ends": "refute"}
    if changes.get("deciding"):
        changes = {"deciding": deciding | changes["deciding"]}
    told = {"verdict": "INCONCLUSIVE", "deciding": deciding, "arm": "a", "against": "b"} | changes
    took = [("a", 8.0), ("b", 3.0), ("b", 5.0), ("c", 99.0)]
    runs = [bare.runs[0].model_copy(update={"arm": arm, "seconds": seconds}) for arm, seconds in took]
    assert lines._deciding(claimed(-0.1, 0.1, **told), runs) == says
