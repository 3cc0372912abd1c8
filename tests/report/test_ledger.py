"""The ledger has a row per claim with its source, the reason of its threshold, and its result."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import ledger
import ledger_goals
import ledger_rows
import pytest
from false_positives import DECISION_RULES
from ledger import LedgerPage
from ledger_rows import find_claim_axis, load_ledger
from omegaconf import OmegaConf
from rendering import make_report
from synthetic import (
    World,
    build_claim_result,
    build_context,
    build_provenance,
    build_timing,
    replace_fields,
    write_runs,
)

from attnlab.config import CONF
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.report_builder import build_report
from attnlab.report.report_diff import format_diff
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
    cited: bool = True,
    other: Mapping[str, str] = MappingProxyType({}),
    looks: list[int] | None = None,
    **effects: float,
) -> None:
    """Write a report of an invented experiment; its first claim cites a source, and `other` a conflicting
    one.
    """
    world = World({"mha": 0.0, "gqa": 0.004, "mqa": 0.06, **effects}, seeds=SIX)
    context = build_context(world, name=name, looks=looks)
    declared = [claim.to_dict() for claim in context.experiment.claims]
    if cited:
        declared[0] |= {"source": "A | B 2001; C", "source_says": "as good", "reason": "what <nobody> sees"}
        declared[0] |= other
    runs = write_runs(root / "runs" / name, world)
    provenance = build_provenance(
        preregistered={"claims": declared},
        command=f"python -m attnlab +experiment={name}",
    )
    folder = root / "reference" / name
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(
        json.dumps(build_report(context, runs, build_timing(world), provenance).to_dict()), "utf-8"
    )


def build_tables(folder: Path) -> dict[str, Table]:
    """The tables of the ledger by name."""
    return list_tables(LedgerPage(load_ledger(folder)).build().sections)


def list_records(table: Table) -> list[dict[str, object]]:
    return list(table.iterate_records())


def test_ledger_row_shows_the_claim_of_the_report(tmp_path):
    write_experiment_report(tmp_path, "mine", other={"other_source": "D 2002", "other_says": "worse by 1"})
    write_experiment_report(tmp_path, "other", cited=False, gqa=0.2)
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
    assert (inconclusive["verdict"], decided["verdict"]) == ("INCONCLUSIVE", "SUPPORTED")
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
        cells = [cell for row in tables[name].full_rows for cell in row.typed if cell.href]
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


def test_report_diff_matches_claims_after_rewording(tmp_path):
    write_experiment_report(tmp_path, "mine")
    folder = tmp_path / "reference" / "mine"
    text = (folder / "report.json").read_text("utf-8")
    (tmp_path / "old").mkdir()
    old = text.replace("mqa is worse than mha", "so is mqa")
    assert old != text
    (tmp_path / "old" / "report.json").write_text(old, "utf-8")
    assert "no verdict, effect, budget or run differs" in format_diff(tmp_path / "old", folder)


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


@pytest.mark.rare
def test_runs_of_the_null_experiment_give_false_positive_rates(tmp_path, monkeypatch):
    monkeypatch.setattr("false_positives.POOLS", 4)
    write_experiment_report(tmp_path, "mine")
    folder = tmp_path / "reference"
    assert "false_positives" not in build_tables(folder)
    write_experiment_report(tmp_path, "aa_null")
    table = build_tables(folder)["false_positives"]
    assert table.caption.startswith("The 18 different runs")
    assert len([row for row in table.rows if row[1].endswith("%")]) == len(DECISION_RULES)


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
    for claim in claims:
        assert claim.source, claim.says
        assert claim.source_says, claim.says
        assert bool(claim.other_source) == bool(claim.other_says), claim.says
        assert not claim.says.lower().startswith(REFERRING_OPENINGS), claim.says
        assert not REFERRING_WORDS.search(claim.says), claim.says
        assert len(claim.says.split()) >= 5, claim.says
        assert claim.reason, f"{claim.says}: why {claim.threshold}?"
        theory = "stated" in (claim.against or experiment["baseline"])
        assert claim.threshold or theory or claim.reason.startswith("Any difference"), claim.reason
    assert len({claim.says for claim in claims}) == len(claims)
    keys = ("arm", "against", "metric", "compare", "relation", "threshold")
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
    loaded = load_ledger(folder)
    [table] = loaded.goals
    report = Report.model_validate_json((folder / "mine" / "report.json").read_text("utf-8"))
    primary = {effect.arm: effect for effect in report.effects if effect.primary}
    assert (table.goal, {option.experiment for option in table.options}) == ("cache", {"mine"})
    assert [option.arm for option in table.options] == ["mqa", "gqa"], "the smallest cache first"
    row = report.budget.find_row("kv_bytes_per_token")
    for option in table.options:
        effect = primary[option.arm]
        assert option.effect == f"Δ val/loss {format_effect(effect)}"
        assert option.verdict == effect.verdict
        assert option.cache == f"{row.get_cell(option.arm).ratio:.3g}×"
    [first, second] = list_records(build_tables(folder)["options"])
    assert (first["option"], second["option"]) == ("mqa vs mha", "gqa vs mha")
    assert first["effect, 95% CI"] == f"Δ val/loss {format_effect(primary['mqa'])}"
    assert list(first) == ["option", "experiment", *(header for header, _ in table.columns)]


def test_goal_shows_its_own_metric_and_only_its_arms(tmp_path, monkeypatch):
    report = load_report(ROOT / "reports" / "reference" / "forgetting_attention" / "report.json")
    metric = "length/excess/4"
    for name, settings in {
        "length": {"goals": {"context": metric, "loss": "val/loss"}, "arms": ["forget", "none"]},
        "unmeasured": {"goals": {"context": "length/excess/9"}},
    }.items():
        monkeypatch.setitem(ledger_goals.GOALS, name, settings)
        fields = {"experiment": replace_fields(report.experiment, name=name)}
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(
            json.dumps(replace_fields(report, **fields).to_dict()), "utf-8"
        )
    context, loss = load_ledger(tmp_path).goals
    effects = {(effect.arm, effect.metric): effect for effect in report.effects}
    shown = {(option.experiment, option.arm): option.effect for option in context.options}
    assert shown == {
        ("length", "forget"): f"Δ {metric} {format_effect(effects['forget', metric])}",
        ("length", "none"): f"Δ {metric} {format_effect(effects['none', metric])}",
        **{
            ("unmeasured", arm): f"Δ val/loss {format_effect(effects[arm, 'val/loss'])}"
            for arm in ("forget", "none", "alibi")
        },
    }
    assert {option.arm: option.effect for option in loss.options} == {
        arm: f"Δ val/loss {format_effect(effects[arm, 'val/loss'])}" for arm in ("forget", "none")
    }
    [forget] = [option for option in loss.options if option.arm == "forget"]
    assert forget.tested == "size S; at 0.5× the learning rate of rope"
    assert forget.cache == "1.03× + 32 B state"


def test_options_show_accuracy_stored_bytes_and_the_verdict_on_a_claim_in_another_metric(tmp_path):
    for name in ("nope_length_gen", "lossy_caches", "needle_window"):
        (tmp_path / name).mkdir()
        shutil.copy(ROOT / "reports" / "reference" / name / "report.json", tmp_path / name)
    cache, context, _ = load_ledger(tmp_path).goals
    by_arm = {option.arm: option for option in (*cache.options, *context.options)}
    assert by_arm["alibi"].accuracy == "0.81 against 0.31", "at 12 digits, as the loss beside it"
    assert by_arm["int4"].cache == "0.188×"
    assert by_arm["half"].verdict == "claim SUPPORTED"
    assert by_arm["full"].verdict == "EXPLORATORY"


def test_options_show_the_effects_on_other_corpora(tmp_path):
    """gqa_vs_mha was replicated on code: its options show both results."""
    for name in ("gqa_vs_mha", "gqa_vs_mha@code"):
        (tmp_path / name).mkdir()
        shutil.copy(ROOT / "reports" / "reference" / name / "report.json", tmp_path / name)
    [table] = load_ledger(tmp_path).goals
    [option] = [option for option in table.options if option.arm == "gqa"]
    code = load_report(tmp_path / "gqa_vs_mha@code" / "report.json")
    [effect] = [row for row in code.effects if row.primary and row.arm == "gqa"]
    assert option.tested == f"size S on pydocs; on code {format_effect(effect)}: {effect.verdict}"


@pytest.mark.parametrize("name", ledger_goals.GOALS)
def test_goals_name_arms_and_metrics_of_the_experiment(name):
    settings = ledger_goals.GOALS[name]
    experiment = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{name}.yaml"))
    assert {*settings["goals"]} <= {*ledger_goals.GOAL_TITLES}
    assert {*settings.get("arms", [])} <= {*experiment["arms"]}
    metrics = {experiment["metric"], *experiment.get("metrics", [])}
    metrics |= {claim.get("metric", experiment["metric"]) for claim in experiment["claims"]}
    assert {*settings["goals"].values()} <= metrics if isinstance(settings["goals"], dict) else True
