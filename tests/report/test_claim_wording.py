"""Wording of effects and claims: relations, verdicts, directions, and claims without numbers."""

from typing import Any

import ledger_rows
import pytest
from synthetic import build_claim_result

from attnlab import stats
from attnlab.report.schema import (
    MEANINGS,
    ClaimResult,
    CorpusClaim,
    Effect,
    EffectVerdict,
    InterimAnalyses,
    TrainingEquivalent,
    Verdict,
)
from attnlab.report.tables.wording import (
    describe_claim,
    explain_effect,
    explain_verdict,
    format_claim,
    format_conclusion,
    format_effect,
    format_estimate,
    format_exact_number,
    format_interval,
    format_level,
    format_quantity,
    format_required_seeds,
    format_threshold,
)
from attnlab.store.experiment_schema import RELATIONS

SUPPORTED, REFUTED = Verdict.SUPPORTED, Verdict.REFUTED
NOTHING = {"n": 0, "estimate": None, "low": None, "high": None, "level": None, "p": None, "p_holm": None}
KV = {"metric": "kv_bytes_per_token", "label": "KV cache per token", "unit": "B", "compare": "ratio"}


def test_claim_line_has_arms_numbers_threshold_conclusion_verdict_and_seeds() -> None:
    assert describe_claim(build_claim_result(-0.018, 0.016, "SUPPORTED", threshold=0.0181)) == (
        "gqa vs mha: Δ val/loss = −0.001 nats, 95% CI [−0.018, +0.016], margin +0.0181: non-inferior "
        "(SUPPORTED). 6 paired seeds."
    )


@pytest.mark.parametrize(
    ("relation", "threshold", "direction", "supported", "refuted"),
    [
        ("below", 0.03, "lower", "non-inferior", "worse by more than the margin"),
        ("above", -0.03, "higher", "non-inferior", "worse by more than the margin"),
        ("below", 0.0, "lower", "better", "not better"),
        ("above", 0.0, "higher", "better", "not better"),
        ("above", 0.0, "lower", "worse", "not worse"),
        ("below", 0.0, "higher", "worse", "not worse"),
        ("below", -0.03, "lower", "better by more than the threshold", "not better by that much"),
        ("above", 0.03, "higher", "better by more than the threshold", "not better by that much"),
        ("above", 0.03, "lower", "worse by more than the threshold", "not worse by that much"),
        ("below", -0.03, "higher", "worse by more than the threshold", "not worse by that much"),
        ("above", -0.03, "lower", "not better by more than the threshold",
         "better by more than the threshold"),
        ("below", 0.03, "higher", "not better by more than the threshold",
         "better by more than the threshold"),
        ("within", 0.03, "lower", "equivalent", "not equivalent"),
        ("within", 0.03, "higher", "equivalent", "not equivalent"),
        ("within", 0.03, None, "equivalent", "not equivalent"),
        ("below", 0.03, None, "below the threshold", "not below the threshold"),
        ("above", 0.0, None, "above the threshold", "not above the threshold"),
    ],
)  # fmt: skip
def test_conclusion_follows_from_relation_threshold_and_direction(
    relation: str, threshold: float, direction: str | None, supported: str, refuted: str
) -> None:
    fields = {"is": relation, "threshold": threshold, "direction": direction}
    for verdict, conclusion in ((SUPPORTED, supported), (REFUTED, refuted)):
        claim = build_claim_result(-0.1, 0.1, verdict, **fields)
        assert format_conclusion(claim) == conclusion
        assert format_claim(claim).endswith(f": {conclusion} ({verdict})")
    undecided = format_claim(build_claim_result(-0.1, 0.1, "INCONCLUSIVE", **fields))
    assert undecided.endswith(f"{format_threshold(claim)}: INCONCLUSIVE")


@pytest.mark.parametrize("direction", ["lower", "higher"])
@pytest.mark.parametrize("relation", ["below", "above"])
@pytest.mark.parametrize("threshold", [-0.03, 0.0, 0.03])
def test_conclusion_agrees_with_the_region_of_the_claim(
    direction: str, relation: str, threshold: float
) -> None:
    """Each conclusion, read as a statement on an effect's harm, must hold exactly where the claim holds."""
    region = RELATIONS[relation].compute_region(threshold)
    sign = 1 if direction == "lower" else -1
    margin = abs(threshold)
    meanings = {
        "non-inferior": lambda harm: harm < margin,
        "not worse": lambda harm: harm <= 0,
        "worse by more than the margin": lambda harm: harm >= margin,
        "better": lambda harm: harm < 0,
        "not better": lambda harm: harm >= 0,
        "worse": lambda harm: harm > 0,
        "better by more than the threshold": lambda harm: harm < -margin,
        "not better by that much": lambda harm: harm >= -margin,
        "worse by more than the threshold": lambda harm: harm > margin,
        "not worse by that much": lambda harm: harm <= margin,
        "not better by more than the threshold": lambda harm: harm > -margin,
    }
    for value in (-0.06, -0.031, -0.029, -0.001, 0.001, 0.029, 0.031, 0.06):
        holds = stats.is_inside_region(region, (value, value))
        verdict = SUPPORTED if holds else REFUTED
        fields = {"is": relation, "threshold": threshold, "direction": direction}
        conclusion = format_conclusion(build_claim_result(value, value, verdict, **fields))
        assert meanings[conclusion](sign * value), (conclusion, value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"threshold": 0.0181}, "margin +0.0181"),
        ({"is": "above", "threshold": -0.03, "direction": "higher"}, "margin −0.03"),
        ({"is": "within", "threshold": 0.03}, "margin ±0.03"),
        ({"threshold": -0.05}, "claim Δ < −0.05"),
        ({"threshold": 0.0}, "claim Δ < 0"),
        ({"is": "above", "threshold": 0.0}, "claim Δ > 0"),
        ({"is": "above", "threshold": 0.05}, "claim Δ > +0.05"),
        ({**KV, "threshold": 0.51}, "claim ratio < 0.51×"),
        ({**KV, "threshold": 1.05}, "margin 1.05×"),
        ({**KV, "is": "above", "threshold": 0.95}, "margin 0.95×"),
        ({**KV, "is": "within", "threshold": 0.05}, "margin ±0.05×"),
        (
            {"threshold": 0.0185, "threshold_text": "5 % of training"},
            "margin +0.0185 (5% of training compute)",
        ),
        ({"threshold": None, "threshold_text": "5 % of training"}, "threshold 5% of training compute"),
    ],
)
def test_threshold_is_a_margin_if_no_difference_satisfies_the_claim(
    fields: dict[str, Any], words: str
) -> None:
    assert format_threshold(build_claim_result(0.1, 0.2, "INCONCLUSIVE", **fields)) == words


@pytest.mark.parametrize(
    ("value", "sign", "words"),
    [
        (0.03, False, "0.03"), (0.0125, True, "+0.0125"), (100.0, False, "100"), (-0.5, True, "−0.5"),
        (0, True, "0"), (1e-6, False, "0.000001"), (1500.0, True, "+1,500"),
    ],
)  # fmt: skip
def test_exact_number_keeps_its_own_decimals(value: float, sign: bool, words: str) -> None:
    assert format_exact_number(value, sign=sign) == words


@pytest.mark.parametrize(
    ("low", "high", "verdict", "words"),
    [
        (0.7211, 0.8111, "SUPPORTED", "below the threshold (SUPPORTED)"),
        (1.05, 1.25, "REFUTED", "not below the threshold (REFUTED)"),
        (0.85, 1.25, "INCONCLUSIVE", "INCONCLUSIVE"),
    ],
)
def test_ratio_has_no_sign_unit_or_direction(low: float, high: float, verdict: str, words: str) -> None:
    claim = build_claim_result(low, high, verdict, **KV, threshold=0.9, basis="timing", planned=None)
    middle = f"{(low + high) / 2:.3f}×, 95% CI [{low:.3f}×, {high:.3f}×]"
    assert describe_claim(claim) == (
        f"gqa vs mha: KV cache per token ratio = {middle}, claim ratio < 0.9×: {words}. 6 timing blocks."
    )


def test_counted_quantity_is_exact() -> None:
    exact = {"n": 1, "exact": True, "level": None, "alpha": None}
    halved = build_claim_result(
        0.5, 0.5, "SUPPORTED", **KV, threshold=0.55, basis="exact", planned=None, decision=exact
    )
    assert describe_claim(halved) == (
        "gqa vs mha: KV cache per token ratio = 0.5×, exact, claim ratio < 0.55×: below the threshold "
        "(SUPPORTED)."
    )
    assert explain_verdict(halved) == "The value is counted, not estimated."
    fewer = build_claim_result(
        -512, -512, "REFUTED", label="parameters", unit="", threshold=-1000, basis="exact", decision=exact
    )
    assert format_claim(fewer) == (
        "Δ parameters = −512, exact, claim Δ < −1,000: not better by that much (REFUTED)"
    )


def test_planned_seeds_stay_in_the_denominator() -> None:
    assert describe_claim(build_claim_result(-0.01, 0.02, "SUPPORTED", planned=8)).endswith(
        ". 6 of 8 paired seeds."
    )
    assert describe_claim(build_claim_result(-0.01, 0.02, "SUPPORTED", planned=6)).endswith(
        ". 6 paired seeds."
    )
    assert describe_claim(build_claim_result(-0.01, 0.02, "SUPPORTED", planned=None)).endswith(
        ". 6 paired seeds."
    )


def make_one_pair_claim(**changes: Any) -> ClaimResult:
    return build_claim_result(None, None, "INCONCLUSIVE", decision={"n": 1, "estimate": 0.016}, **changes)


def test_one_pair_has_no_interval_and_decides_nothing() -> None:
    assert describe_claim(make_one_pair_claim()) == (
        "gqa vs mha: Δ val/loss = +0.016 nats, no interval, margin +0.03: INCONCLUSIVE. 1 of 6 paired seeds."
    )
    assert describe_claim(make_one_pair_claim(planned=1)).endswith(". 1 paired seed.")
    assert explain_verdict(make_one_pair_claim()) == (
        "Without an interval the claim is undecided. This is no evidence that the arms are equal."
    )


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [(-0.013, None, "[−0.013, ∞)"), (None, 0.05, "(−∞, +0.050]"), (0.0, 0.0, "[+0.000, +0.000]")],
)
def test_infinite_bound_is_written_as_infinity(low: float | None, high: float | None, ends: str) -> None:
    assert format_interval(low, high, 3) == ends
    claim = build_claim_result(low, high, "INCONCLUSIVE", basis="ranks", decision={"estimate": 0.004})
    assert describe_claim(claim) == (
        f"gqa vs mha: median Δ val/loss = +0.004 nats, 95% CI {ends}, margin +0.03: INCONCLUSIVE. "
        "6 paired seeds."
    )
    assert explain_verdict(claim).startswith("The deciding interval extends to both sides of a threshold")


def test_infinite_median_keeps_the_finite_bound() -> None:
    """The median is infinite if at least half of the pairs diverged."""
    inconclusive = build_claim_result(
        -0.003, None, "INCONCLUSIVE", basis="ranks", decision={"estimate": None}
    )
    assert format_effect(inconclusive) == "not finite, 95% CI [−0.003, ∞)"
    no_interval = {"interval": {"low": None, "high": None, "level": 0.95}, "decision": {"estimate": None}}
    refuted = build_claim_result(None, None, "REFUTED", basis="ranks", **no_interval)
    assert describe_claim(refuted) == (
        "gqa vs mha: median Δ val/loss = not finite, margin +0.03: worse by more than the margin "
        "(REFUTED). 6 paired seeds."
    )


def test_extreme_ratio_bounds_use_scientific_notation() -> None:
    decision = {"n": 2, "estimate": 1.0}
    wide = build_claim_result(1e-300, 1e304, "INCONCLUSIVE", compare="ratio", digits=0, decision=decision)
    assert format_effect(wide) == "1×, 95% CI [0×, 1e+304×]"


def make_undecided_claim(verdict: str, **changes: Any) -> ClaimResult:
    return build_claim_result(None, None, verdict, decision=NOTHING, **changes)


def test_undecided_claim_gives_the_reason_instead_of_numbers() -> None:
    reasons = ["a: 1 in gqa, 2 in mha", "gqa sees future tokens"]
    incomparable = make_undecided_claim("NOT COMPARABLE", not_comparable=reasons)
    assert describe_claim(incomparable) == (
        "gqa vs mha: a: 1 in gqa, 2 in mha; gqa sees future tokens (NOT COMPARABLE). 0 of 6 paired seeds."
    )
    assert explain_verdict(incomparable) == MEANINGS["NOT COMPARABLE"]
    untrained = build_claim_result(
        -0.01, 0.02, "UNTRAINED", untrained_reason="trained for 4 steps, below the minimum of 50"
    )
    assert describe_claim(untrained) == (
        "gqa vs mha: gqa and mha were trained for 4 steps, below the minimum of 50 (UNTRAINED). "
        "6 paired seeds."
    )
    assert explain_verdict(untrained).startswith("Models that have barely learned cannot show")
    without_pairs = make_undecided_claim("NO RESULT")
    assert describe_claim(without_pairs) == (
        "gqa vs mha: no paired seed of gqa and mha is complete (NO RESULT). 0 of 6 paired seeds."
    )
    assert explain_verdict(without_pairs) == MEANINGS["NO RESULT"]
    untimed = make_undecided_claim("NO RESULT", basis="timing", planned=None)
    assert describe_claim(untimed) == (
        "gqa vs mha: no timing block of gqa and mha is complete (NO RESULT). 0 timing blocks."
    )


def test_unknown_threshold_is_no_result_with_a_reason() -> None:
    why = "the slope may be 0"
    claim = make_undecided_claim(
        "NO RESULT",
        threshold=None,
        threshold_text="5 % of training",
        unknown_threshold_reason=why,
        exploratory=True,
    )
    assert describe_claim(claim) == (
        f"gqa vs mha: 5% of training compute has no known value in nats: {why} (NO RESULT, exploratory)."
    )
    before_any_run = claim.model_copy(update={"unit": ""})
    assert describe_claim(before_any_run) == (
        f"gqa vs mha: 5% of training compute has no known value: {why} (NO RESULT, exploratory)."
    )
    assert format_conclusion(claim) == "no result"


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in (SUPPORTED, REFUTED)])
def test_verdict_without_decision_has_no_conclusion(verdict: Verdict) -> None:
    claim = build_claim_result(0.05, 0.08, verdict)
    assert format_conclusion(claim) == verdict.lower()
    assert ledger_rows._format_decision_cell(claim) == f"95% CI [+0.050, +0.080]: {verdict.lower()}", (
        "in the ledger too"
    )


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_is_explained_without_the_word_significant(verdict: Verdict) -> None:
    words = explain_verdict(build_claim_result(-0.1, 0.1, verdict))
    assert words.endswith(".")
    assert "significant" not in words


def make_analyses(decided_at: int | None, n_completed: int, design: str = "looks") -> InterimAnalyses:
    analysis = {"n": 4, "estimate": 0.0, "low": -0.1, "high": 0.1, "level": 0.98}
    planned = [4, 8, 12, 16] if design == "looks" else [16]
    rows = [{**analysis, "seeds": 4 * (i + 1)} for i in range(n_completed)]
    return InterimAnalyses.model_validate(
        {"design": design, "planned": planned, "decided_at": decided_at, "completed": rows}
    )


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        (make_analyses(2, 2), "Stopped at interim analysis 2 of 4, 6 paired seeds."),
        (make_analyses(None, 3), "After 3 of 4 interim analyses, 6 paired seeds."),
        (make_analyses(None, 4), "After 4 of 4 interim analyses, 6 paired seeds."),
        (make_analyses(None, 0), "Before the first interim analysis, 6 paired seeds."),
        (make_analyses(None, 0, "fixed"), "Not all seeds have finished, 6 paired seeds."),
        (make_analyses(1, 1, "anytime"), "Anytime-valid, 6 paired seeds."),
        (make_analyses(None, 0, "anytime"), "Not all seeds have finished, 6 paired seeds."),
        (make_analyses(1, 1, "fixed"), "6 paired seeds."),
        (None, "6 paired seeds."),
    ],
)
def test_claim_line_names_the_deciding_interim_analysis(looks: InterimAnalyses | None, words: str) -> None:
    line = describe_claim(build_claim_result(-0.1, 0.02, "SUPPORTED", interim_analyses=looks))
    assert line.partition("(SUPPORTED). ")[2] == words


def test_deviation_marks_the_verdict_exploratory() -> None:
    for verdict in Verdict:
        claim = build_claim_result(
            -0.01, 0.02, verdict, exploratory=True, not_comparable=["x"], untrained_reason="raw"
        )
        assert f"{verdict}, exploratory" in describe_claim(claim)
        assert "exploratory" not in describe_claim(claim.model_copy(update={"exploratory": False}))


def test_only_decided_claims_show_equivalent_training_compute() -> None:
    training = TrainingEquivalent(compute_change=-0.03, low=-0.09, high=0.02, level=0.95)
    words = "; equivalent to −3% training compute, 95% CI [−9%, +2%]"
    for verdict in (SUPPORTED, REFUTED, Verdict.INCONCLUSIVE):
        line = describe_claim(build_claim_result(-0.01, 0.02, verdict, training_equivalent=training))
        verdict_text = "INCONCLUSIVE" if verdict == Verdict.INCONCLUSIVE else f"({verdict})"
        assert f"{verdict_text}{words}. 6 paired seeds." in line
    untrained = build_claim_result(
        -0.01, 0.02, "UNTRAINED", untrained_reason="raw", training_equivalent=training
    )
    assert "training compute" not in describe_claim(untrained)


def test_arms_leaking_by_design_are_named_last() -> None:
    line = describe_claim(build_claim_result(-0.01, 0.02, "SUPPORTED", leaking_by_design=["mha", "gqa"]))
    assert line.endswith(
        ". 6 paired seeds. mha sees future tokens (by design). gqa sees future tokens (by design)."
    )


@pytest.mark.parametrize(
    ("own", "verdict", "words"),
    [
        ({"low": -0.01, "high": 0.029, "level": 0.9}, "SUPPORTED", "90% CI [−0.010, +0.029]"),
        ({"low": -0.02, "high": 0.05, "level": 0.983}, "INCONCLUSIVE", ""),
        ({"low": -0.02, "high": None, "level": 0.983}, "INCONCLUSIVE", ""),
        ({"low": None, "high": 0.029, "level": 0.9}, "SUPPORTED", "90% CI (−∞, +0.029]"),
    ],
)
def test_deciding_interval_is_shown_if_the_95_percent_one_disagrees(
    own: dict[str, Any], verdict: str, words: str
) -> None:
    line = describe_claim(build_claim_result(-0.013, 0.032, verdict, decision=own))
    assert "95% CI [−0.013, +0.032]" in line
    assert ("; decided on the" in line) is bool(words)
    assert words in line
    agreeing = describe_claim(
        build_claim_result(-0.013, 0.028, "SUPPORTED", decision={"level": 0.9, "high": 0.02})
    )
    assert "decided on" not in agreeing


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        ((5, 4, 24), "about 7 seeds in total {}. This is rough, between 7 and 24, {}."),
        ((3, 2, 5), "about 7 seeds in total {}. This is rough {}."),
        ((90, 40, None), "about 90 seeds in total {}. This is rough, between 40 and more than 10,000, {}."),
        ((None, None, None), "more than 10,000 seeds in total {}, which lies close to the threshold."),
        (
            (None, 3, None),
            "more than 10,000 seeds in total {}, which lies close to the threshold. This is rough, between 7 "
            "and more than 10,000, {}.",
        ),
    ],
)
def test_required_seeds_exceed_the_seeds_that_did_not_decide(
    estimate: tuple[int | None, ...], words: str
) -> None:
    seeds = dict(zip(("seeds", "low", "high"), estimate, strict=True)) | {"power": 0.8, "ends": "support"}
    claim = build_claim_result(-0.1, 0.1, "INCONCLUSIVE", required_seeds=seeds)
    assert claim.decision.n == 6
    power = "would support it with 80% power at the observed effect"
    reason = "because the standard deviation is uncertain"
    assert format_required_seeds(claim) == words.format(power, reason)
    assert format_required_seeds(build_claim_result(-0.1, 0.1, "INCONCLUSIVE")) == ""


def test_required_seeds_of_interim_analyses_are_fresh_ones_of_a_single_analysis() -> None:
    seeds = {"seeds": 5, "low": 4, "high": 24, "power": 0.8, "ends": "support"}
    analyses = {"design": "looks", "planned": [4, 6], "decided_at": None, "completed": []}
    claim = build_claim_result(-0.1, 0.1, "INCONCLUSIVE", required_seeds=seeds, interim_analyses=analyses)
    assert format_required_seeds(claim).startswith(
        "about 5 fresh seeds in a single analysis would support it"
    )
    assert ", between 4 and 24, " in format_required_seeds(claim)
    by_rank = claim.model_copy(update={"basis": "ranks"})  # valid after any number of seeds
    assert format_required_seeds(by_rank).startswith("about 7 seeds in total would support it")


def test_explanation_names_the_deciding_interval_unless_it_is_printed_beside_the_effect() -> None:
    own = {"low": -0.01, "high": 0.025, "level": 0.9}
    assert explain_verdict(build_claim_result(-0.013, 0.028, "SUPPORTED", decision=own)) == (
        "The deciding interval, 90% CI [−0.010, +0.025], lies entirely in the region where the claim holds."
    )
    shown = build_claim_result(-0.013, 0.028, "SUPPORTED")
    diverging = build_claim_result(-0.013, 0.032, "SUPPORTED", decision=own)
    for claim in (shown, diverging):
        assert explain_verdict(claim).startswith("The deciding interval lies")


def test_level_without_an_interval_is_named() -> None:
    own = {"low": None, "high": None, "level": 0.9875}
    line = describe_claim(build_claim_result(-0.125, -0.116, "INCONCLUSIVE", threshold=-0.01, decision=own))
    assert ": INCONCLUSIVE; no interval at the deciding level of 98.8%. " in line


def test_deciding_interval_of_a_ratio_has_the_times_sign() -> None:
    own = {"low": 0.8, "high": 0.91, "level": 0.975}
    line = describe_claim(build_claim_result(0.81, 0.89, "INCONCLUSIVE", **KV, threshold=0.9, decision=own))
    assert "; decided on the 97.5% CI [0.800×, 0.910×]. " in line


def test_bound_rounded_to_zero_keeps_its_sign() -> None:
    assert format_interval(0.0004, 0.09, 3) == "[+0.000, +0.090]"
    assert format_interval(-0.09, -0.0004, 3) == "[−0.090, −0.000]"
    assert format_estimate(-0.0004, -0.09, 0.08, 0.95, 2) == "0.00, 95% CI [−0.09, +0.08]"
    assert (format_level(0.9), format_level(0.975), format_level(0.98333)) == (
        "90% CI",
        "97.5% CI",
        "98.3% CI",
    )


def test_quantity_is_a_mean_median_or_ratio_by_basis() -> None:
    assert format_quantity(build_claim_result(0, 1, "SUPPORTED")) == "Δ val/loss"
    assert format_quantity(build_claim_result(0, 1, "SUPPORTED", basis="ranks")) == "median Δ val/loss"
    assert (
        format_quantity(build_claim_result(0, 1, "SUPPORTED", basis="ranks", compare="ratio"))
        == "median val/loss ratio"
    )


def make_effect(**changes: Any) -> Effect:
    values = {
        "arm": "gqa", "against": "mha", "metric": "val/loss", "label": "val/loss", "unit": "nats",
        "primary": True, "margin": 0.03, "n": 6, "planned": 6, "digits": 3, "mean": -0.001, "sd": 0.01,
        "low": -0.018, "high": 0.016, "level": 0.95, "training_equivalent": None, "alpha": 0.05, "p": 0.9,
        "p_holm": 0.9, "p_equivalent": 0.01, "p_noninferior": 0.01, "verdict": EffectVerdict.EQUIVALENT,
        "reasons": [], "pairs": [], "sign_flip": None, "leave_one_out": None, "pairing": None, "outliers": [],
    }  # fmt: skip
    return Effect.model_validate(values | changes)


def test_effect_claim_and_corpus_row_have_one_format() -> None:
    words = "−0.001 nats, 95% CI [−0.018, +0.016]"
    row = {
        "corpus": "a",
        "title": "b",
        "verdict": "SUPPORTED",
        "unit": "nats",
        "digits": 3,
        "training_equivalent": None,
    }
    row |= {"compare": "difference", "effect": -0.001, "low": -0.018, "high": 0.016}
    assert format_effect(make_effect()) == words
    assert format_effect(build_claim_result(-0.018, 0.016, "SUPPORTED")) == words
    assert format_effect(CorpusClaim.model_validate(row)) == words
    ratio = row | {"compare": "ratio", "effect": 0.98, "low": 0.97, "high": 0.99}
    assert format_effect(CorpusClaim.model_validate(ratio)) == "0.980×, 95% CI [0.970×, 0.990×]"
    assert format_effect(make_effect(mean=None, low=None, high=None)) == "–"
    assert format_effect(make_effect(low=None, high=None)) == "−0.001 nats, no interval"
    assert format_effect(make_effect(unit="")) == "−0.001, 95% CI [−0.018, +0.016]"


def test_effect_verdict_is_explained_or_its_reasons_given() -> None:
    assert explain_effect(make_effect()) == "The deciding interval lies within the margin on both sides of 0"
    incomparable = make_effect(
        verdict=EffectVerdict.NOT_COMPARABLE, mean=None, reasons=["other data", "gqa sees future tokens"]
    )
    assert explain_effect(incomparable) == "other data; gqa sees future tokens"
    assert explain_effect(make_effect(verdict=EffectVerdict.EXPLORATORY)) == ""
    assert explain_effect(make_effect(verdict=EffectVerdict.INCONCLUSIVE, mean=None)) == ""
