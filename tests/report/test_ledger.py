"""The ledger has a row per claim with its source, the reason of its threshold, and its result."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import ledger
import ledger_goals
import ledger_rows
import pytest
from ledger import LedgerPage
from ledger_rows import find_claim_axis, load_ledger
from omegaconf import OmegaConf
from rendering import REFERENCES, make_report
from synthetic import (
    World,
    build_claim_result,
    build_context,
    replace_fields,
    write_runs,
)

from attnlab.config import CONF
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.schema import ClaimResult, Report, load_report
from attnlab.report.section import Table, list_tables
from attnlab.report.tables.claim_sources import Citation, build_citations, find_same_claim
from attnlab.report.tables.wording import format_effect
from attnlab.store.experiment_schema import Claim

SIX = [0, 1, 2, 3, 4, 5]
ROOT = Path(__file__).parents[2]
SHIPPED = sorted((CONF / "experiment").glob("*.yaml"))
pytestmark = pytest.mark.usefixtures("blank_charts")


def write_experiment_report(
    root: Path,
    name: str,
    other: Mapping[str, str] | None = None,
    looks: list[int] | None = None,
    **effects: float,
) -> None:
    """Write a report of an invented experiment; its first claim cites a source and `other`, or nothing."""
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06, **effects}, seeds=SIX)
    declared = [claim.to_dict() for claim in build_context(world, name=name).experiment.claims]
    if other:
        declared[0] |= {"source": "A | B 2001; C", "source_says": "as good", "reason": "what <nobody> sees"}
        declared[0] |= other
    provenance = {"preregistered": {"claims": declared}, "command": f"python -m attnlab +experiment={name}"}
    report = make_report(
        root / "runs" / name, world, is_timed=True, provenance=provenance, name=name, looks=looks
    )
    folder = root / "reference" / name
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(report.to_dict()), "utf-8")


def build_tables(folder: Path) -> dict[str, Table]:
    """The tables of the ledger by name."""
    return list_tables(LedgerPage(load_ledger(folder)).build().sections)


def list_records(table: Table) -> list[dict[str, object]]:
    return list(table.iterate_records())


def test_ledger_row_shows_the_claim_of_the_report(tmp_path):
    write_experiment_report(tmp_path, "mine", other={"other_source": "D 2002", "other_says": "worse by 1"})
    write_experiment_report(tmp_path, "other", gqa=0.2)
    tables = build_tables(tmp_path / "reference")
    hypotheses, identities, reports = (
        list_records(tables[name]) for name in ("hypotheses", "identities", "reports")
    )
    assert (len(hypotheses), len(identities), len(reports)) == (4, 2, 2)
    first = hypotheses[0]
    assert {key: first[key] for key in first if key != "claim"} == {
        "experiment": "mine, size debug",
        "tested": "Δ val/loss, gqa vs mha: margin ±0.03",
        "rationale": "what <nobody> sees",
        "source": "A | B 2001; C",
        "finding of the source": "as good",
        "conflicting source": "D 2002: worse by 1",
        "verdict": "SUPPORTED",
        "effect, 95% CI": "+0.004 nats, 95% CI [−0.004, +0.012]",
        "decided on": "90% CI [−0.003, +0.011]: equivalent",
        "seeds": "6 of 6",
        "axis": "other",
    }, "no column about sizes or corpora, which nothing was tested on"
    third = hypotheses[2]
    assert [third[key] for key in ("rationale", "source", "conflicting source", "verdict")] == [
        *(None, None, None), "REFUTED",
    ]  # fmt: skip
    assert identities[0]["effect, 95% CI"] == "0.5×, exact"
    assert reports[0]["verdicts"] == "both claims SUPPORTED; 1 identity holds"
    assert reports[0]["command"] == "python -m attnlab +experiment=mine"
    for path in ledger.write_ledger(tmp_path / "reference"):
        text = re.sub("</?span[^>]*>", "", path.read_text("utf-8"))
        assert "6 claims of 2 reports, 4 hypotheses and 2 identities: 1 REFUTED, 5 SUPPORTED." in text
        assert "could refute: 1 REFUTED, 3 SUPPORTED." in text
        assert f"mine/report{path.suffix}" in text
        assert not re.search(r'(?:src|href)="https?:', text)


def test_ledger_row_counts_the_seeds_that_decided(tmp_path):
    write_experiment_report(tmp_path, "looked", looks=[4, 6], gqa=0.028)
    inconclusive, decided = list_records(build_tables(tmp_path / "reference")["hypotheses"])
    assert inconclusive["verdict"] == "INCONCLUSIVE"
    assert inconclusive["seeds"].startswith("6 of at most 6;")
    assert decided["seeds"] == "4 of at most 6", (
        "decided at the first interim analysis, though later runs exist"
    )


def test_outdated_report_is_marked(tmp_path, monkeypatch):
    for name in ("old", "new", "grown@sizes.S"):
        write_experiment_report(tmp_path, name)
        monkeypatch.setitem(ledger_goals.GOALS, name, {"goals": ["cache"]})
    folder = tmp_path / "reference"
    rows = [f"| [{name}]({name}/report.md) | `abc` | schedule |\n" for name in ("old", "grown@sizes.S")]
    (folder / "OUTDATED.md").write_text("".join(rows))
    page = LedgerPage(load_ledger(folder)).build()
    tables = list_tables(page.sections)
    for name in ("options", "hypotheses", "reports"):
        cells = [cell for row in tables[name].full_rows for cell in row.typed_cells if cell.href]
        marks = {cell.href: cell.note for cell in cells}
        expected = {
            "old/report.html": "outdated",
            "new/report.html": "",
            "grown%40sizes.S/report.html": "outdated",
        }
        assert marks == expected, name
    assert "[OUTDATED.md](<OUTDATED.md>)" in render_markdown(page)


def make_claim(**change: object) -> ClaimResult:
    fields = {"says": "old words", "arm": "a", "against": "b", "metric": "m", "threshold": 0.1}
    return build_claim_result(-0.01, 0.02, "SUPPORTED", **fields | change)


@pytest.fixture(scope="module")
def one_seed_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report of one seed, for tests that replace its preregistration."""
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0])
    runs = write_runs(tmp_path_factory.mktemp("bare"), world)
    return make_report(runs, world)


def with_preregistration(report: Report, results: Sequence[ClaimResult] = (), **declared: object) -> Report:
    """Replace the claims and the preregistration of a report."""
    return replace_fields(report, verdict__claims=[*results], reproduce__preregistered=declared)


def test_claim_is_matched_by_comparison_then_by_wording():
    reworded, other = make_claim(says="mended"), make_claim(threshold=0.2)
    assert find_same_claim(make_claim(), [other, reworded]) is reworded
    assert find_same_claim(make_claim(), [other]) is other
    assert find_same_claim(make_claim(), [make_claim(says="new", **{"is": "above"})]) is None
    duplicate = make_claim(says="another")
    assert find_same_claim(make_claim(says="mended"), [duplicate, reworded]) is reworded


def test_citation_prefers_the_current_experiment_file(one_seed_report):
    current = OmegaConf.load(CONF / "experiment" / "gqa_vs_mha.yaml").claims[1]
    comparison = {"arm": "mqa", "against": "mha", "metric": "val/loss", "is": "above"}
    row = {"says": "once", "threshold": current.threshold, **comparison}
    preregistered = [
        {**row, "source": "old"},
        {**row, "says": "gone", "arm": "mla", "source": "kept", "reason": "too"},
    ]
    removed = make_claim(says="gone", arm="mla", against="mha", metric="val/loss", threshold=7)
    first, second = build_citations(
        with_preregistration(one_seed_report, [make_claim(**row), removed], claims=preregistered)
    )
    assert (first.source, first.reason) == (current.source, current.reason)
    assert second == Citation(source="kept"), "a reason is one of a threshold, which is another here"


@pytest.mark.parametrize(
    ("arm", "against", "axis"),
    [
        ("gate", "plain", "epilogue"), ("differential", "plain", "heads"), ("wide", "plain", "heads"),
        ("lstm", "stated", "model"), ("stated", "twin", "other"), ("plain", "unknown", "heads"),
    ],
)  # fmt: skip
def test_axis_of_a_claim_is_the_first_group_in_which_its_arms_differ(one_seed_report, arm, against, axis):
    overrides = {
        "plain": ["heads=mha", "epilogue=none"], "gate": ["heads=mha", "epilogue=gate"],
        "differential": ["heads=differential", "epilogue=none"],
        "wide": ["heads=mha", "epilogue=none", "model.n_heads=1"],
        "lstm": ["parent=plain", "model=lstm", "position=none"], "stated": ["measurement={a: 1}"],
        "twin": ["replica=1"],
    }  # fmt: skip
    report = with_preregistration(one_seed_report, arm_overrides=overrides)
    assert find_claim_axis(report, make_claim(arm=arm, against=against)) == axis


# Openings and words that refer to something outside the claim.
REFERRING_OPENINGS = (
    "so ", "it ", "its ", "and ", "or ", "but ", "they ", "this ", "that ", "these ", "those ", "also ",
    "then ", "such ", "with less", "with more", "grouped ones", "latent ones", "rolling ones", "of ",
)  # fmt: skip
REFERRING_WORDS = re.compile(
    r"\b(it|they|them|too|the margin|the others?|as much|is enough|the same weights)\b"
)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_claim_is_self_contained_with_source_and_threshold_reason(path):
    experiment = OmegaConf.to_container(OmegaConf.load(path))
    claims = [Claim.model_validate(claim) for claim in experiment["claims"]]
    keys = ("arm", "against", "metric", "compare", "relation", "threshold")
    for claim in claims:
        assert claim.source and claim.source_says and claim.reason, claim.says  # noqa: PT018
        assert bool(claim.other_source) == bool(claim.other_says), claim.says
        assert not claim.says.lower().startswith(REFERRING_OPENINGS), claim.says
        assert not REFERRING_WORDS.search(claim.says), claim.says
        theory = "stated" in (claim.against or experiment["baseline"])
        assert claim.threshold or theory or claim.reason.startswith("Any difference"), claim.reason
    assert len({claim.says for claim in claims}) == len(claims)
    comparisons = {tuple(getattr(claim, key) for key in keys) for claim in claims}
    assert len(comparisons) == len(claims), "two claims ask the same: the words of one could not be mended"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "; about 1,211 for 80% power to refute it (4 h of training)"),
        ({"required_seeds": {"seeds": None}}, "; more than 10,000 for 80% power to refute it"),
        (
            {"interim_analyses": {"design": "looks", "planned": [4], "decided_at": None, "completed": []}},
            "; about 1,211 fresh, in a single analysis, for 80% power to refute it (4 h of training)",
        ),
        ({"required_seeds": None}, ""), ({"verdict": "SUPPORTED"}, ""),
    ],
)  # fmt: skip
def test_inconclusive_claim_shows_the_required_seeds(one_seed_report, changes, says):
    required_seeds = {"seeds": 1211, "low": None, "high": None, "power": 0.8, "ends": "refute"}
    if changes.get("required_seeds"):
        changes = {"required_seeds": required_seeds | changes["required_seeds"]}
    fields = {
        "verdict": "INCONCLUSIVE",
        "required_seeds": required_seeds,
        "arm": "a",
        "against": "b",
    } | changes
    durations = [("a", 8.0), ("b", 3.0), ("b", 5.0), ("c", 99.0)]
    runs = [replace_fields(one_seed_report.runs[0], arm=arm, seconds=seconds) for arm, seconds in durations]
    assert ledger_rows._format_required_seeds(build_claim_result(-0.1, 0.1, **fields), runs) == says


def test_options_of_a_goal_show_effect_cache_and_verdict(tmp_path, monkeypatch):
    monkeypatch.setitem(ledger_goals.GOALS, "mine", {"goals": ["cache"]})
    write_experiment_report(tmp_path, "mine")
    write_experiment_report(tmp_path, "without")
    folder = tmp_path / "reference"
    [table] = load_ledger(folder).goals
    report = load_report(folder / "mine" / "report.json")
    primary = {effect.arm: effect for effect in report.effects if effect.primary}
    row = report.budget.find_row("kv_bytes_per_token")
    assert table.goal == "cache"
    assert [
        (option.experiment, option.arm, option.effect, option.verdict, option.cache)
        for option in table.options
    ] == [
        ("mine", arm, f"Δ val/loss {format_effect(primary[arm])}", primary[arm].verdict,
         f"{row.get_cell(arm).ratio:.3g}×")
        for arm in ("mqa", "gqa")
    ], "the smallest cache first"  # fmt: skip
    records = list_records(build_tables(folder)["options"])
    assert [record["option"] for record in records] == ["mqa vs mha", "gqa vs mha"]
    assert records[0]["effect, 95% CI"] == table.options[0].effect


def test_goal_shows_its_own_metric_and_only_its_arms(tmp_path, monkeypatch):
    report = load_report(REFERENCES / "forgetting_attention" / "report.json")
    metric = "length/excess/4"
    for name, settings in {
        "length": {"goals": {"context": metric, "loss": "val/loss"}, "arms": ["forget", "none"]},
        "unmeasured": {"goals": {"context": "length/excess/9"}},
    }.items():
        monkeypatch.setitem(ledger_goals.GOALS, name, settings)
        renamed = replace_fields(report, experiment__name=name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(renamed.to_dict()), "utf-8")
    context, loss = load_ledger(tmp_path).goals
    effects = {(row.arm, row.metric): f"Δ {row.metric} {format_effect(row)}" for row in report.effects}
    assert {(option.experiment, option.arm): option.effect for option in context.options} == {
        **{("length", arm): effects[arm, metric] for arm in ("forget", "none")},
        **{("unmeasured", arm): effects[arm, "val/loss"] for arm in ("forget", "none", "alibi")},
    }
    by_arm = {option.arm: option for option in loss.options}
    assert {arm: option.effect for arm, option in by_arm.items()} == {
        arm: effects[arm, "val/loss"] for arm in ("forget", "none")
    }
    assert by_arm["forget"].tested == "size S; at 0.5× the learning rate of rope"
    assert by_arm["forget"].cache == "1.03× + 32 B state"


def test_options_show_other_corpora_accuracy_stored_bytes_and_claims_in_other_metrics(tmp_path):
    """gqa_vs_mha was replicated on code: its options show both results."""
    names = ("gqa_vs_mha", "gqa_vs_mha@code", "nope_length_gen", "lossy_caches", "needle_window")
    for name in names:
        (tmp_path / name).mkdir()
        shutil.copy(REFERENCES / name / "report.json", tmp_path / name)
    options = [option for goal in load_ledger(tmp_path).goals for option in goal.options]
    by_arm = {option.arm: option for option in options}
    assert by_arm["alibi"].accuracy == "0.81 against 0.31", "at 12 digits, as the loss beside it"
    assert by_arm["int4"].cache == "0.188×"
    assert by_arm["half"].verdict == "claim SUPPORTED"
    assert by_arm["full"].verdict == "EXPLORATORY"
    code = load_report(tmp_path / "gqa_vs_mha@code" / "report.json")
    [effect] = [row for row in code.effects if row.primary and row.arm == "gqa"]
    tested = f"size S on pydocs; on code {format_effect(effect)}: {effect.verdict}"
    assert tested in [option.tested for option in options]


@pytest.mark.parametrize("name", ledger_goals.GOALS)
def test_goals_name_arms_and_metrics_of_the_experiment(name):
    settings = ledger_goals.GOALS[name]
    experiment = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{name}.yaml"))
    assert {*settings["goals"]} <= {*ledger_goals.GOAL_TITLES}
    assert {*settings.get("arms", [])} <= {*experiment["arms"]}
    metrics = {experiment["metric"], *experiment.get("metrics", [])}
    metrics |= {claim.get("metric", experiment["metric"]) for claim in experiment["claims"]}
    assert {*settings["goals"].values()} <= metrics if isinstance(settings["goals"], dict) else True
