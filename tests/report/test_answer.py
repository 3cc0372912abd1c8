"""The first screen: one sentence, arms best first, terms explained."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rendering import REFERENCES, make_report, read_table, render_texts
from synthetic import World, build_context, declare_claim, replace_fields, replace_result, write_runs
from worlds import EVIL

from attnlab.report.answer import MAX_WORDS, answer_question, describe_scope
from attnlab.report.pages.glossary import DEFINITIONS, Glossary
from attnlab.report.pages.terminal import format_terminal_lines
from attnlab.report.report_builder import compute_claim_statuses
from attnlab.report.schema import MEANINGS, EffectVerdict, load_report
from attnlab.report.sections.answer_section import build_arms_table
from attnlab.report.tables.wording import DELTA
from attnlab.report.verdicts.budget_check import describe_short_training
from attnlab.report.verdicts.results import Run
from attnlab.report.verdicts.worst_case import find_worst_case, list_cases

PUBLISHED = sorted(path.parent.name for path in REFERENCES.glob("*/report.json"))


def write_shortened_runs(folder: Path, world: World, steps: int = 80, **estimate: Any) -> list[Run]:
    """Write the runs of a world, trained for so many steps, with changes to their estimates."""
    estimate |= {"steps": steps, "tokens": steps * 512}
    return [
        replace_result(run, estimate=replace_fields(run.result.estimate, **estimate))
        for run in write_runs(folder, world)
    ]


@pytest.mark.parametrize(
    ("steps", "epochs", "continued", "is_short"),
    [
        (80, 0.4, 0, True),
        (80, None, 0, True),
        (80, 1.5, 0, False),
        (200, 0.4, 0, False),
        (80, 0.4, 400, False),
        (0, None, 0, False),  # a measurement
    ],
)
def test_short_training_is_called_a_demonstration(
    tmp_path: Path, steps: int, epochs: float | None, continued: int, is_short: bool
) -> None:
    runs = write_shortened_runs(tmp_path, World(), steps, epochs=epochs)
    report = make_report([replace(run, ancestor_tokens=continued * 512) for run in runs])
    sentence = "Trained for 80 steps: a demonstration of the report, not a finding about the designs."
    for page in render_texts(report):
        assert (sentence in page) == is_short
        assert page.count("SUPPORTED: the statement holds. It does not say that the design is good.") == 1


def test_demonstration_decides_no_loss(tmp_path: Path) -> None:
    runs = []
    for run in write_runs(tmp_path, World()):
        steps = 60 if run.arm == "gqa" else 199
        estimate = replace_fields(run.result.estimate, steps=steps, tokens=steps * 512)
        runs.append(replace_result(run, estimate=estimate))
    report = make_report(runs, controlled=[])
    assert describe_short_training(report.budget).startswith("Trained for 60 to 199 steps: a demonstration")
    verdicts = [claim.verdict for claim in report.verdict.claims]
    assert verdicts == ["DEMONSTRATION", "DEMONSTRATION", "SUPPORTED"], "a count needs no training"
    statuses = compute_claim_statuses(build_context(World(), controlled=[]), runs)
    assert [status.verdict for status in statuses] == verdicts
    assert {row.verdict for row in report.effects if row.primary} == {"DEMONSTRATION"}
    assert report.verdict.headline == "both claims DEMONSTRATION; 1 identity holds"
    for text in render_texts(report):
        assert "margin ±0.03: DEMONSTRATION. " in text
        assert MEANINGS["DEMONSTRATION"] in text
    assert "DEMONSTRATION  1. gqa is as good as mha" in "\n".join(format_terminal_lines(report))


@pytest.mark.parametrize(
    ("column", "key", "value", "other"),
    [("learning rate", "lr", 6e-3, 3e-3), ("precision", "dtype", "bf16-mixed", "float32")],
)
def test_arms_table_has_learning_rate_and_precision_if_an_arm_differs_from_the_baseline(
    tmp_path: Path, column: str, key: str, value: Any, other: Any
) -> None:
    runs = write_runs(tmp_path, World())
    for changed in (False, True):
        report = make_report(runs)
        assert (column in [shown.title for shown in build_arms_table(report).columns]) == changed
        runs = [
            replace_result(run, estimate=run.result.estimate.model_copy(update={key: value}))
            if run.arm == "gqa"
            else run
            for run in runs
        ]
    name = column.replace(" ", "_")
    assert [row[name] for row in read_table(report, "arms")] == [other, value, other]


@pytest.mark.parametrize(
    ("world", "changes", "answer"),
    [
        (
            World(),
            {},
            "gqa vs mha: equivalent, Δ val/loss +0.004 nats [−0.006, +0.014], at 0.5× the KV cache; "
            "worst of 2 arms: mqa, +0.060 nats [+0.050, +0.070].",
        ),
        (
            World({"mha": 0.0, "gqa": 0.004}, parameters={"gqa": 150_000}),
            {"controlled": []},
            "gqa vs mha: equivalent, Δ val/loss +0.004 nats [−0.006, +0.014], at 0.5× the KV cache; "
            "at worst +0.014.",
        ),
        (
            World({"mha": 0.0, "gqa": 0.1}),
            {},
            "gqa vs mha: not equivalent, Δ val/loss +0.100 nats [+0.090, +0.110], at 0.5× the KV cache; "
            "at worst +0.110.",
        ),
        (
            World({"mha": 0.0, "gqa": 0.02}, sd=0.06),
            {},
            "gqa vs mha: inconclusive, Δ val/loss +0.02 nats [−0.05, +0.09], at 0.5× the KV cache; "
            "at worst +0.09.",
        ),
        (
            World({"mha": 0.0, "gqa": 0.004}, parameters={"gqa": 150_000}),
            {},
            "gqa vs mha: parameters: controlled, but 150,000 in gqa and 120,000 in mha (NOT COMPARABLE), "
            "at 0.5× the KV cache.",
        ),
        (
            World(status={(arm, seed): "crashed" for arm in ("mha", "gqa", "mqa") for seed in range(5)}),
            {},
            "gqa vs mha: no paired seed of gqa and mha is complete (NO RESULT).",
        ),
        (
            World(),
            {"claims": []},
            "No preregistered claim; worst of 2 arms: mqa, +0.060 nats [+0.050, +0.070].",
        ),
    ],
)
def test_answer_has_conclusion_effect_cost_and_worst_case(
    tmp_path: Path, world: World, changes: dict[str, Any], answer: str
) -> None:
    report = make_report(tmp_path, world, **changes)
    assert answer_question(report) == answer
    for text in (*render_texts(report), " ".join(format_terminal_lines(report))):
        assert answer in text
    size = "120,000 to 150,000" if world.parameters else "120,000"
    counts = f", {size} parameters" if not world.status else ""
    seeds = ", 5 seeds" if not world.status else ""
    assert describe_scope(report) == f"Size debug{counts}, text{seeds}."


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PUBLISHED)
def test_answer_of_a_reference_has_at_most_30_words(name: str) -> None:
    answer = answer_question(load_report(REFERENCES / name / "report.json"))
    assert 3 < len(answer.split()) <= MAX_WORDS == 30, answer


def test_arms_are_sorted_best_first_with_the_mean_of_their_pairs(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "mqa": 0.06, "gqa": -0.01}, status={("mqa", 4): "missing"})
    report = make_report(tmp_path, world)
    table, rows = build_arms_table(report), read_table(report, "arms")
    headings = [table.columns[i].heading for i in table.shown_columns]
    assert headings[:5] == ["arm", "val/loss (nats)", DELTA, "verdict", "seeds"]
    assert [(row["arm"], row["seeds"]) for row in rows] == [("gqa", 5), ("mha", 5), ("mqa", 4)]
    assert [row["verdict"] for row in rows] == ["EQUIVALENT", "baseline", "INCONCLUSIVE"]
    for row in rows:
        values = [run.metrics["val/loss"] for run in report.runs if run.arm == row["arm"] and run.is_done]
        assert row["mean"] == pytest.approx(sum(values) / len(values))
        assert row["mean_low"] < row["mean"] < row["mean_high"]
    upward = make_report(tmp_path / "up", World(effects={"mha": 0.0, "mqa": 0.06}), direction="higher")
    assert [row["arm"] for row in read_table(upward, "arms")] == ["mqa", "mha"]
    equal = build_arms_table(upward)
    assert "seeds" not in [equal.columns[i].title for i in equal.shown_columns], (
        "all arms have the same number"
    )
    runs = [
        replace_result(run, metrics={"val/loss": run.result.metrics["val/loss"] - 1.0})
        if run.seed == 4
        else run
        for run in write_runs(tmp_path / "lowest", World())
        if (run.arm, run.seed) != ("gqa", 4)
    ]  # gqa lacks the seed with the lowest losses
    report = make_report(runs)
    means = [row["mean"] for row in read_table(report, "arms")]
    assert [row["arm"] for row in read_table(report, "arms")] == ["mha", "mqa", "gqa"]
    assert means == sorted(means)
    assert "Arms by val/loss, lowest first. Means" in build_arms_table(report).caption


def test_tables_show_the_level_of_a_verdict_that_their_interval_would_not_give(tmp_path: Path) -> None:
    report = make_report(tmp_path)
    worse = next(row for row in report.effects if row.arm == "mqa" and row.primary)
    strict = replace_fields(worse, alpha=0.01, verdict=EffectVerdict.INCONCLUSIVE)
    report = replace_fields(report, effects=[strict if row is worse else row for row in report.effects])
    for text in render_texts(report):
        assert text.count("INCONCLUSIVE at 99%") == 2


def test_arm_without_a_comparable_result_has_the_reason_and_comes_last(tmp_path: Path) -> None:
    sees = {"sees_future": 1.0, "sees_rows": 0.0, "with_future": 0.055, "without_future": 4.2, "checked": 4}
    world = World(effects={"mha": 0.0, "gqa": -1.5, "mqa": 0.06}, leakage={"gqa": sees})
    claim = declare_claim("mqa is as good", "mqa", "within", 0.03)
    report = make_report(tmp_path, world, claims=[claim])
    note = "NOT COMPARABLE: sees future tokens in 5 of 5 runs"
    table = build_arms_table(report)
    *_, last = table.full_rows
    assert (last.typed_cells[0].text, last.typed_cells[3].value) == ("gqa", "NOT COMPARABLE")
    assert last.typed_cells[3].text.startswith(note)
    assert "arms that are not ranked come last" in table.caption
    for text in (*render_texts(report), " ".join(" ".join(format_terminal_lines(report)).split())):
        assert "gqa sees future tokens in 5 of 5 runs" in text, "no claim is about gqa"
    assert answer_question(report).endswith("; gqa sees future tokens.")
    by_design = build_arms_table(load_report(REFERENCES / "causal_leakage" / "report.json"))
    arm, _, _, verdict, *_ = by_design.full_rows[-1].typed_cells
    assert (arm.text, verdict.text) == ("unmasked", "SEES FUTURE TOKENS (by design)")
    assert not [*by_design.iterate_records()][-1]["is_ranked"]
    crashed = make_report(tmp_path / "crashed", World(status={("gqa", seed): "crashed" for seed in range(5)}))
    unmeasured = load_report(REFERENCES / "length_extrapolation" / "report.json")
    for report, arm, text in ((crashed, "gqa", "no run finished"), (unmeasured, "learned", "not measured")):
        verdicts = {
            row.typed_cells[0].text: row.typed_cells[3].text for row in build_arms_table(report).full_rows
        }
        assert verdicts[arm] == f"NO RESULT: {text}"


def test_cache_is_the_bytes_that_each_arm_holds(tmp_path: Path) -> None:
    """The formula of the model has 1,024 bytes for every cache; those of the ledger are the ratios."""
    runs = [
        replace_result(run, metrics=run.result.metrics | {"cache/share": 0.375}) if run.arm == "gqa" else run
        for run in write_runs(tmp_path, World())
    ]
    report = make_report(runs)
    model_bytes = {run.arm: run.result.estimate.kv_bytes_per_token for run in runs}
    held = model_bytes | {"gqa": model_bytes["gqa"] * 0.375}
    assert {row["arm"]: row["kv_bytes_per_token"] for row in read_table(report, "arms")} == held
    assert {cell.arm: cell.value for cell in report.budget.find_row("kv_bytes_per_token").cells} == held
    assert {run.arm: run.budget.kv_bytes_per_token for run in report.runs} == held
    assert report.verdict.claims[2].decision.estimate == held["gqa"] / held["mha"]
    published = load_report(REFERENCES / "lossy_caches" / "report.json")
    shares = {run.arm: run.metrics["cache/share"] for run in published.runs if "cache/share" in run.metrics}
    for row in read_table(published, "arms"):
        assert row["kv_bytes_per_token"] in (1024 * shares.get(row["arm"], 1.0), None)


@pytest.mark.parametrize(
    ("experiment", "arm", "label", "corpus", "mean"),
    [
        ("lossy_caches", "window_needle", "loss increase at distance/48", "", 6.6),
        ("gqa_vs_mha", "mqa", "", "pydocs", 0.0205),  # that of gqa_alone is larger, but may be noise
    ],
)
def test_worst_case_is_the_largest_harm_over_arms_conditions_and_corpora(
    experiment: str, arm: str, label: str, corpus: str, mean: float
) -> None:
    report = load_report(REFERENCES / experiment / "report.json")
    case = find_worst_case(report, list_cases(report))
    assert case is not None
    assert (case.arm, case.label, case.corpus) == (arm, label, corpus)
    assert case.mean == pytest.approx(mean, rel=0.02)


def test_worst_case_of_a_metric_that_is_better_if_higher_is_a_fall(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.2, "mqa": -0.2})
    report = make_report(tmp_path, world, direction="higher", claims=[], margin=0.1)
    case = find_worst_case(report, list_cases(report))
    assert case is not None
    assert (case.arm, case.mean) == ("mqa", pytest.approx(-0.2))


CLEARLY_BETTER = World(effects={"mha": 0.0, "gqa": -0.5})


UNSURE = World(effects={"mha": 0.0, "gqa": 0.02}, sd=0.06)


@pytest.mark.parametrize(
    ("world", "changes", "verdict"),
    [
        (CLEARLY_BETTER, {}, "REFUTED"),
        (CLEARLY_BETTER, {"steps": 4}, "UNTRAINED"),
        (UNSURE, {}, "INCONCLUSIVE"),
        (UNSURE, {"steps": 4}, "UNTRAINED"),
        (CLEARLY_BETTER, {"metrics": {"val/loss": math.log(97), "val/best_loss": math.log(97)}}, "UNTRAINED"),
        (CLEARLY_BETTER, {"steps": 4, "config": {"parent": "mha"}}, "REFUTED"),
        (CLEARLY_BETTER, {"metrics": {"val/loss": 2.0}, "guess": 2.02}, "UNTRAINED"),
        (CLEARLY_BETTER, {"metrics": {"val/loss": 2.0}, "guess": 2.1}, "SUPPORTED"),
    ],
)
def test_untrained_models_decide_counted_claims_only(
    tmp_path: Path, world: World, changes: dict[str, Any], verdict: str
) -> None:
    runs = []
    for run in write_runs(tmp_path, world):
        fields = dict(changes)
        estimate = run.result.estimate
        steps, data = fields.pop("steps", estimate.steps), estimate.data
        data = data | {"guessing_loss": fields.pop("guess")} if "guess" in fields else data
        config = run.result.config | fields.pop("config", {})
        estimate = replace_fields(estimate, steps=steps, data=data)
        runs.append(replace_result(run, estimate=estimate, config=config, **fields))
    report = make_report(runs, world)
    assert [claim.verdict for claim in report.verdict.claims] == [verdict, "SUPPORTED"]
    for claim in report.verdict.claims:
        assert claim.required_seeds is None or claim.verdict == "INCONCLUSIVE", "no number of seeds helps"
    statuses = compute_claim_statuses(build_context(world), runs)
    assert [status.verdict for status in statuses] == [verdict, "SUPPORTED"], "`status` shows the same"


def test_term_is_explained_once_and_markup_is_escaped() -> None:
    glossary = Glossary()
    first = glossary.explain_terms(f"costs 0.1 nats {EVIL} against the margin")
    assert first.count('class="term"') == 2
    assert "<img" not in first
    assert DEFINITIONS["margin"] in first
    assert 'class="term"' not in glossary.explain_terms("nats and margins")
    assert 'class="term"' not in Glossary().explain_terms("an alarming pharmacy"), "no words inside others"
