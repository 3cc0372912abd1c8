"""Known effects give the expected verdicts, numbers and warnings."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rendering import make_report, render_markdown
from synthetic import (
    World,
    build_context,
    build_provenance,
    declare_claim,
    draw_noise,
    replace_result,
    write_runs,
)

from attnlab import stats
from attnlab.measure.accuracy import ACCURACY
from attnlab.report.pages.report_files import format_json
from attnlab.report.report_builder import build_report, compute_claim_statuses
from attnlab.report.schema import MEANINGS, LayerKinds, Report
from attnlab.report.tables.config_diff import list_layer_kinds
from attnlab.report.tables.wording import (
    describe_claim,
    explain_verdict,
    find_claim_effect,
    format_margin_reason,
)
from attnlab.report.verdicts.evidence_bases import BASES
from attnlab.report.verdicts.results import Run


def without_length(run: Run, **changes: object) -> Run:
    """Remove a metric from a run that other runs measure."""
    metrics = {name: value for name, value in run.result.metrics.items() if name != "length/2x"}
    return replace_result(run, metrics=metrics, **changes)


def list_verdicts(report: Report) -> list[str]:
    return [claim.verdict for claim in report.verdict.claims]


@pytest.mark.parametrize(
    ("effect", "sd", "effect_verdict", "claim_verdict", "direction"),
    [
        (0.004, 0.008, "EQUIVALENT", "SUPPORTED", "lower"),
        (-0.2, 0.008, "BETTER", "REFUTED", "lower"),
        (0.2, 0.008, "WORSE", "REFUTED", "lower"),
        (0.2, 0.008, "BETTER", "REFUTED", "higher"),
        (0.04, 0.015, "WORSE", "INCONCLUSIVE", "lower"),
        (-0.01, 0.035, "NON-INFERIOR", "INCONCLUSIVE", "lower"),
        (0.02, 0.2, "INCONCLUSIVE", "INCONCLUSIVE", "lower"),
    ],
)
def test_known_effect_gets_its_verdict(
    tmp_path: Path, effect: float, sd: float, effect_verdict: str, claim_verdict: str, direction: str
) -> None:
    world = World(effects={"mha": 0.0, "gqa": effect}, sd=sd, seeds=[0, 1, 2, 3, 4, 5])
    report = make_report(tmp_path, world, direction=direction)
    assert report.effects[0].verdict == effect_verdict
    assert list_verdicts(report)[0] == claim_verdict


@pytest.mark.parametrize("seeds", [[0], [0, 1, 2]])
def test_arms_that_are_equal_in_every_pair_are_equal_without_noise(tmp_path: Path, seeds: list[int]) -> None:
    """Ties that are not 0 show no noise, and decide nothing; counts that differ are decided."""
    world = World(effects={"mha": 0.0, "gqa": 0.0, "mqa": 0.25}, sd=0.0, seeds=seeds)
    sides = [("below", 0.03, "SUPPORTED"), ("below", 0.0, "REFUTED"), ("within", 0.03, "SUPPORTED")]
    claims = [
        declare_claim(f"gqa {number}", "gqa", side, threshold)
        for number, (side, threshold, _) in enumerate(sides)
    ]
    report = make_report(tmp_path / "a", world, claims=[*claims, {**claims[0], "says": "m", "arm": "mqa"}])
    gqa, mqa = (row for row in report.effects if row.primary)
    assert (gqa.verdict, gqa.mean, gqa.low, gqa.high) == ("EQUAL", 0.0, 0.0, 0.0)
    assert (mqa.verdict, mqa.low) == ("INCONCLUSIVE", None)
    assert list_verdicts(report) == [*(verdict for *_, verdict in sides), "INCONCLUSIVE"]
    assert not any(claim.holds_by_construction for claim in report.verdict.claims)
    line = describe_claim(report.verdict.claims[0], find_claim_effect(report.verdict.claims[0], [gqa]))
    assert line.startswith("gqa vs mha: Δ val/loss = 0 nats, exact, margin +0.03: non-inferior (SUPPORTED)")
    assert explain_verdict(report.verdict.claims[0]) == MEANINGS["EQUAL"]
    assert "| 0 nats, exact | EQUAL |" in render_markdown(report)
    diverged = replace(world, seeds=[*seeds, 9], status={("gqa", 9): "diverged"})
    assert make_report(tmp_path / "b", diverged, claims=[]).effects[0].verdict == "INCONCLUSIVE"
    counted = {"metric": "kv_bytes_per_token", "margin": 8.0, "claims": []}
    rows = [row for row in make_report(tmp_path / "c", world, **counted).effects if row.primary]
    assert [(row.verdict, row.low == row.high == row.mean) for row in rows] == [("BETTER", True)] * 2


@pytest.mark.parametrize("is_primary", [True, False])
def test_effect_on_a_proportion_has_the_evidence_of_a_claim(tmp_path: Path, is_primary: bool) -> None:
    """By t, four accuracies near 1 would show that the arms are equivalent."""
    world = World(effects={"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    runs = []
    for run in write_runs(tmp_path, world):
        accuracy = 0.98 - 0.003 * run.seed * (run.arm == "gqa")
        metrics = {**run.result.metrics, ACCURACY.name: accuracy}
        definitions = {**run.result.metric_definitions, ACCURACY.name: ACCURACY}
        runs.append(replace_result(run, metrics=metrics, metric_definitions=definitions))
    claim = declare_claim("s", "gqa", "above", -0.05, metric="val/accuracy")
    changes = {"metric": "val/accuracy", "direction": "higher", "margin": 0.05} if is_primary else {}
    report = make_report(runs, world, claims=[claim], **changes)
    [claim_result] = report.verdict.claims
    [effect] = [row for row in report.effects if row.metric == "val/accuracy"]
    assert (claim_result.basis, claim_result.verdict) == ("e-value", "INCONCLUSIVE")
    assert effect.verdict == ("INCONCLUSIVE" if is_primary else "EXPLORATORY")
    assert (effect.mean, effect.low, effect.high) == (
        claim_result.decision.estimate,
        claim_result.interval.low,
        claim_result.interval.high,
    )
    assert find_claim_effect(claim_result, [effect]) is None, "stored reports have intervals by t"


def test_length_beyond_learned_positions_is_listed_as_undefined(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.01}, sd=0.01, seeds=[0, 1], extra={"length/2x": 2.0})
    runs = [
        without_length(run, undefined=("length/2x",)) if run.arm == "gqa" else run
        for run in write_runs(tmp_path, world)
    ]
    [table] = make_report(runs, world, is_timed=True).length
    [row] = table.rows
    assert [cell.arm for cell in row.cells] == ["mha"]
    assert row.undefined == ["gqa"]


def test_mean_sd_and_pairs_equal_the_known_ones(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.0123}, sd=0.007, seeds=[3, 5, 8, 13])
    row = make_report(tmp_path, world).effects[0]
    assert row.mean == pytest.approx(0.0123, abs=1e-9)
    assert row.sd == pytest.approx(0.007, abs=1e-9)
    assert [pair.seed for pair in row.pairs] == [3, 5, 8, 13]
    assert [p.difference for p in row.pairs] == pytest.approx(
        list(0.0123 + draw_noise(world, "gqa")), abs=1e-9
    )


def test_effect_verdict_uses_the_alpha_of_its_claim(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.016, "mqa": 0.03}, sd=0.019, seeds=list(range(8)))
    alone = [declare_claim("s", "gqa", "within", 0.03)]
    others = [declare_claim(str(i), "mqa", "above", i / 100) for i in (1, 2, 3)]
    row = make_report(tmp_path / "alone", world, claims=alone).effects[0]
    assert (row.verdict, row.alpha) == ("EQUIVALENT", 0.05)
    report = make_report(tmp_path / "many", world, claims=alone + others)
    row, claim = report.effects[0], report.verdict.claims[0]
    assert claim.verdict == "INCONCLUSIVE"
    assert row.alpha == claim.decision.alpha < 0.05
    assert row.verdict != "EQUIVALENT"


@pytest.mark.parametrize(
    ("gqa", "mqa", "changes", "mark", "verdicts"),
    [
        (130_000, 120_000, {}, "differs", ["NOT COMPARABLE", "SUPPORTED"]),
        (130_000, 120_000, {"unmatched": ["gqa"]}, "differs", ["SUPPORTED"] * 2),
        (130_000, 130_000, {"unmatched": ["gqa"]}, "differs", ["SUPPORTED", "NOT COMPARABLE"]),
        (130_000, 120_000, {"controlled": ["tokens"]}, "differs", ["SUPPORTED"] * 2),
        (122_000, 120_000, {"controlled": ["tokens"]}, "differs", ["SUPPORTED"] * 2),
        (121_000, 120_000, {}, "equal", ["SUPPORTED"] * 2),  # one percent is tolerated
    ],
)
def test_unequal_budget_is_not_comparable_if_controlled_and_matched(
    tmp_path: Path, gqa: int, mqa: int, changes: dict[str, Any], mark: str, verdicts: list[str]
) -> None:
    report = make_report(tmp_path, World(parameters={"gqa": gqa, "mqa": mqa}), **changes)
    [row] = [row for row in report.budget.rows if row.key == "parameters"]
    assert (row.mark, row.cells[1].value) == (mark, gqa), "and the page shows it"
    assert list_verdicts(report)[:2] == verdicts
    unmatched = make_report(tmp_path / "b", World({"mha": 0.0, "gqa": 0.0}), unmatched=["gqa", "gqa_alone"])
    assert unmatched.budget.unmatched == ["gqa"], "only arms of the comparison"


@pytest.mark.parametrize("margin", ["(margin: 5% of training compute)", "by more than a margin of 0.3 nats"])
def test_margin_of_the_command_line_replaces_the_words_about_the_margin(tmp_path: Path, margin: str) -> None:
    world = World({"mha": 0.0, "gqa": 0.004})
    claim = {"says": f"loses little {margin}", "arm": "gqa", "is": "below", "reason": "why"}
    claims = [{**claim, "threshold": "margin"}, {**claim, "threshold": 0.3}]
    runs = write_runs(tmp_path, world)

    def build(*overrides: str, **changes: object) -> Report:
        context = replace(build_context(world, claims=claims, **changes), overrides=overrides)
        return build_report(context, runs, None, build_provenance())

    first, second = build("margin=0.1", margin=0.1).verdict.claims
    assert first.says == ("loses little by more than the margin" if "by" in margin else "loses little")
    assert (first.threshold, first.reason) == (0.1, "Given on the command line.")
    assert (second.says, second.reason) == (claim["says"], "why"), "it has a threshold of its own"
    assert build("margin=0.1", margin=0.1).experiment.margin_reason == "Given on the command line."
    plain = build("seeds=[0,1]")
    assert plain.experiment.margin_reason.startswith("15 %")
    assert plain.verdict.claims[0].says == claim["says"]
    assert build("margin=0.1", "margin_reason=mine", margin_reason="mine").experiment.margin_reason == "mine"


def test_rationale_of_the_margin_names_the_size_it_was_written_for(tmp_path: Path) -> None:
    stated = {"margin_reason": build_context(World()).experiment.margin_reason}
    runs = write_runs(tmp_path, World())
    for size, end in (("S", " (written for size S)"), ("debug", "")):
        report = make_report(runs, provenance={"preregistered": {**stated, "size": size}})
        assert format_margin_reason(report).endswith(f"in the same harness{end}")


@pytest.mark.parametrize(
    ("arm", "relation", "verdict"),
    [("gqa", "above", "SUPPORTED"), ("gqa", "below", "REFUTED"), ("gqa", "within", "REFUTED"),
     ("mha", "below", "SUPPORTED"), ("mha", "above", "REFUTED"), ("mha", "within", "REFUTED")],
)  # fmt: skip
def test_arm_that_always_diverges_is_worse(tmp_path: Path, arm: str, relation: str, verdict: str) -> None:
    world = World(seeds=list(range(8)), status={(arm, seed): "diverged" for seed in range(8)})
    claim = declare_claim("gqa is worse, or is not", "gqa", relation, 0.03)
    [result] = make_report(tmp_path, world, claims=[claim]).verdict.claims
    assert (result.verdict, result.basis) == (verdict, "ranks")
    assert (result.decision.p <= 0.05) is (verdict == "SUPPORTED")
    assert "median Δ val/loss = not finite, " in describe_claim(result)


@pytest.mark.parametrize(
    ("diverged", "missing", "changes", "n", "verdict"),
    [
        ((), (), {}, 8, "BETTER"),
        ((2, 5), (), {}, 6, "INCONCLUSIVE"),
        (range(8), (), {}, 0, "WORSE"),
        ((0,), range(1, 8), {"looks": [3, 8]}, 0, "INCONCLUSIVE"),  # before the first analysis
    ],
)
def test_effect_is_not_that_of_the_runs_that_survived(
    tmp_path: Path,
    diverged: Sequence[int],
    missing: Sequence[int],
    changes: dict[str, Any],
    n: int,
    verdict: str,
) -> None:
    status = dict.fromkeys((("gqa", seed) for seed in missing), "missing")
    status |= dict.fromkeys((("gqa", seed) for seed in diverged), "diverged")
    world = World(effects={"mha": 0.0, "gqa": -1.0}, seeds=list(range(8)), status=status)
    [effect] = make_report(tmp_path, world, claims=[], **changes).effects
    assert (effect.n, effect.planned, effect.verdict) == (n, 8, verdict)


def test_arm_that_always_diverges_has_the_worst_proportion() -> None:
    seeds = range(8)
    sweep = SimpleNamespace(
        run_by_arm_seed={
            (arm, seed): SimpleNamespace(status=status)
            for arm, status in (("mha", "done"), ("gqa", "diverged"))
            for seed in seeds
        },
        get_value=lambda arm, seed, metric: 0.9 if arm == "mha" else None,
    )
    claim = SimpleNamespace(metric="val/accuracy", direction="higher", weights={"gqa": 1.0, "mha": -1.0})
    evidence = BASES["e-value"].collect_evidence(sweep, claim, seeds, stats.FixedSample())
    assert (evidence.n, evidence.estimate) == (8, pytest.approx(-0.9))
    assert evidence.p_below(0.0) < 0.05


@pytest.mark.parametrize(
    ("failed", "verdict"), [((), "SUPPORTED"), (("gqa",), "REFUTED"), (("gqa", "mha"), "SUPPORTED")]
)
def test_pair_with_one_diverged_arm_breaks_an_identity(
    tmp_path: Path, failed: tuple[str, ...], verdict: str
) -> None:
    world = World(status={(arm, 2): "diverged" for arm in failed})
    claim = declare_claim("gqa is mha", "gqa", "within", 1.0, identity=True)
    report = make_report(tmp_path, world, claims=[claim])
    [result] = report.verdict.claims
    assert (result.verdict, result.basis) == (verdict, "identity")
    assert verdict in render_markdown(report)
    assert json.loads(format_json(report.to_dict())) == report.to_dict()


def test_timed_claim_is_decided_by_a_bootstrap_and_a_counted_one_uses_no_alpha(tmp_path: Path) -> None:
    claim = declare_claim("gqa decodes faster", "gqa", "below", 1.0, compare="ratio")
    metrics = ("decode_ms_per_token", "kv_bytes_per_token")
    claims = [{**claim, "says": metric, "metric": metric} for metric in metrics]
    timed, counted = make_report(tmp_path, is_timed=True, claims=claims).verdict.claims
    assert (timed.basis, timed.timed) == ("timing", True)
    assert timed.decision.estimate == pytest.approx(1.3 / 1.4)
    assert timed.decision.low <= 1.3 / 1.4 <= timed.decision.high < 1
    assert counted.decision.exact
    assert (counted.decision.estimate, counted.decision.alpha) == (0.5, None)


def test_pareto_front_excludes_dominated_arms(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.05, "mqa": 0.02})
    panel = next(p for p in make_report(tmp_path, world).tradeoff if p.key == "kv_bytes_per_token")
    assert panel.pareto_front == ["mqa", "mha"]


def test_config_diff_has_only_keys_that_differ(tmp_path: Path) -> None:
    rows = make_report(tmp_path).config.rows
    assert [row.key for row in rows] == ["model.attention.heads.n_kv_heads", "model.ffn_width"]
    assert [cell.value for cell in rows[0].cells] == [4, 2, 1]


def test_unmeasured_metric_has_no_row_unless_no_run_finished(tmp_path: Path) -> None:
    world = World(extra={"length/2x": 2.0}, status={("mqa", seed): "crashed" for seed in range(5)})
    runs = [without_length(run) if run.arm == "gqa" else run for run in write_runs(tmp_path, world)]

    effects = make_report(runs, world, metrics=["length/2x"]).effects
    assert [(row.arm, row.metric, row.n) for row in effects] == [
        ("gqa", "val/loss", 5),
        ("mqa", "val/loss", 0),
        ("mqa", "length/2x", 0),
    ]


def test_cache_size_that_contradicts_the_formula_gives_a_warning(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, World())
    runs[0].result.memory["kv_bytes_per_token_live"] += 1
    report = make_report(runs)
    assert any("the live cache holds 1025 B" in warning for warning in report.warnings)


def test_report_and_statistics_do_not_import_torch() -> None:
    loaded = "attnlab.stats, attnlab.report.report_builder, attnlab.report.pages.report_files"
    code = f"import sys, {loaded}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_stopped_seed_is_drawn_but_does_not_shorten_the_mean_curve(tmp_path: Path) -> None:
    curves = make_report(tmp_path, World(status={("gqa", 1): "diverged"})).curves
    lengths = {line.seed: len(line.tokens) for line in curves.lines if line.arm == "gqa"}
    assert lengths[1] < lengths[0]
    mean = next(line for line in curves.means if line.arm == "gqa")
    assert (len(mean.tokens), mean.seeds) == (lengths[0], 4)
    assert len(next(line for line in curves.mean_differences if line.arm == "gqa").tokens) == lengths[0]


def test_nonuniform_layers_are_listed_by_kind() -> None:
    delta = {"_target_": "attnlab.attention.mixers.delta.GatedDeltaNet", "dim": 64}
    full = {"_target_": "attnlab.attention.layer.Attention", "heads": {"_target_": "a.B"}}
    window = {"masks": {"local": {"_target_": "attnlab.attention.masks.window.window", "size": 16}}}
    models = {
        "alike": {"attention": full, "layers": None, "n_layers": 3},
        "same": {"attention": full, "layers": [{}, {}], "n_layers": 3},
        "hybrid": {"attention": full, "mixer": delta, "layers": [{}, {}, full], "n_layers": 4},
        "local": {"attention": full, "layers": [window, {"rotary": None}], "n_layers": 3},
    }

    def get_runs(arm: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(result=SimpleNamespace(config={"model": models[arm]}))]

    hybrid, local = list_layer_kinds(SimpleNamespace(arms=list(models), get_runs=get_runs))
    assert hybrid == LayerKinds(arm="hybrid", layers=[0, 0, 1, 0], kinds=["GatedDeltaNet", "Attention"])
    kinds = ["Attention (masks.local: window)", "Attention (rotary: null)"]
    assert local == LayerKinds(arm="local", layers=[0, 1, 0], kinds=kinds)


@pytest.mark.parametrize("status", ["killed", "host_out_of_memory"])
def test_lost_run_is_no_outcome_and_leaves_claims_pending(tmp_path: Path, status: str) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.004, "mqa": 0.06})
    assert list_verdicts(make_report(tmp_path / "whole", world)) == ["SUPPORTED"] * 3
    world.status = {("gqa", 4): status, ("mqa", 2): "crashed"}
    report = make_report(tmp_path / "lost", world)
    counts = {row.arm: (row.planned, row.failed, row.lost) for row in report.failures.counts}
    assert counts == {"mha": (5, 0, 0), "gqa": (5, 0, 1), "mqa": (5, 1, 0)}
    assert report.failures.status_counts == [("crashed", 1), ("lost to the machine", 1)]
    assert report.verdict.run_warnings[0].startswith(
        "Lost to the machine: gqa seed 4. A lost run is no failure of its arm"
    )
    assert list_verdicts(report) == ["INCONCLUSIVE", "SUPPORTED", "SUPPORTED"], (
        "a crash is an end, and a count no matter"
    )
    pending, decided, _ = report.verdict.claims
    assert "Not all seeds have finished, 4 of 5 paired seeds." in describe_claim(pending)
    assert (pending.basis, pending.interim_analyses.completed, pending.decision.n) == ("t", [], 4)
    assert len(decided.interim_analyses.completed) == 1


@pytest.mark.parametrize(
    ("status", "analyses", "required"), [("done", 2, 6), ("killed", 1, 4), ("crashed", 2, 6)]
)
def test_lost_run_keeps_earlier_interim_analyses_and_required_seeds(
    tmp_path: Path, status: str, analyses: int, required: int
) -> None:
    statuses = {("gqa", 3): status, ("gqa", 4): "missing", ("gqa", 5): "missing"}
    world = World({"mha": 0.0, "gqa": 0.03}, sd=0.03, seeds=[0, 1, 2, 3, 4, 5], status=statuses)
    [first, _] = compute_claim_statuses(build_context(world, looks=[2, 4, 6]), write_runs(tmp_path, world))
    assert first.completed_analyses == analyses
    assert status == "crashed" or (first.required_seeds, first.is_pending) == (required, True)
