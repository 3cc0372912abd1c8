"""Wording of effects and claims: relations, verdicts, directions, and claims without numbers."""

from typing import Any

import ledger_rows
import pytest
from synthetic import build_claim_result, replace_fields

from attnlab.report.schema import (
    MEANINGS,
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
    format_required_seeds,
    format_threshold,
)

SUPPORTED, REFUTED = Verdict.SUPPORTED, Verdict.REFUTED
NOTHING = {"n": 0, "estimate": None, "low": None, "high": None, "level": None, "p": None, "p_holm": None}
KV = {"metric": "kv_bytes_per_token", "label": "KV cache per token", "unit": "B", "compare": "ratio"}


TIMED = KV | {"threshold": 0.9, "basis": "timing", "planned": None}
COUNTED = {"basis": "exact", "decision": {"n": 1, "exact": True, "level": None, "alpha": None}}
RANKS = {"basis": "ranks", "decision": {"estimate": 0.004}}
NO_MEDIAN = {"basis": "ranks", "decision": {"estimate": None}}
ONE_PAIR = {"decision": {"n": 1, "estimate": 0.016}}
UNKNOWN = {
    "threshold": None, "threshold_text": "5 % of training", "unknown_threshold_reason": "it may be 0",
    "exploratory": True, "decision": NOTHING,
}  # fmt: skip
NO_INTERVAL = {"level": 0.9875, "low": None, "high": None}


@pytest.mark.parametrize(
    ("low", "high", "verdict", "changes", "line"),
    [
        (-0.018, 0.016, "SUPPORTED", {"threshold": 0.0181},
         "Δ val/loss = −0.001 nats, 95% CI [−0.018, +0.016], margin +0.0181: non-inferior (SUPPORTED). "
         "6 paired seeds."),
        (-0.01, 0.02, "SUPPORTED", {"planned": 8},
         "Δ val/loss = +0.005 nats, 95% CI [−0.010, +0.020], margin +0.03: non-inferior (SUPPORTED). "
         "6 of 8 paired seeds."),
        (-0.01, 0.02, "SUPPORTED", {"planned": None, "leaking_by_design": ["mha", "gqa"]},
         "Δ val/loss = +0.005 nats, 95% CI [−0.010, +0.020], margin +0.03: below the threshold (SUPPORTED). "
         "6 paired seeds. mha sees future tokens (by design). gqa sees future tokens (by design)."),
        (0.7211, 0.8111, "SUPPORTED", TIMED,
         "KV cache per token ratio = 0.766×, 95% CI [0.721×, 0.811×], claim ratio < 0.9×: "
         "below the threshold (SUPPORTED). 6 timing blocks."),
        (1.05, 1.25, "REFUTED", TIMED,
         "KV cache per token ratio = 1.150×, 95% CI [1.050×, 1.250×], claim ratio < 0.9×: "
         "not below the threshold (REFUTED). 6 timing blocks."),
        (0.81, 0.89, "INCONCLUSIVE", TIMED | {"decision": {"low": 0.8, "high": 0.91, "level": 0.975}},
         "KV cache per token ratio = 0.850×, 95% CI [0.810×, 0.890×], claim ratio < 0.9×: INCONCLUSIVE; "
         "decided on the 97.5% CI [0.800×, 0.910×]. 6 timing blocks."),
        (0.5, 0.5, "SUPPORTED", KV | COUNTED | {"threshold": 0.55, "planned": None},
         "KV cache per token ratio = 0.5×, exact, claim ratio < 0.55×: below the threshold (SUPPORTED)."),
        (-512, -512, "REFUTED", COUNTED | {"label": "parameters", "unit": "", "threshold": -1000},
         "Δ parameters = −512, exact, claim Δ < −1,000: not better by that much (REFUTED)."),
        (None, None, "INCONCLUSIVE", ONE_PAIR,
         "Δ val/loss = +0.016 nats, no interval, margin +0.03: INCONCLUSIVE. 1 of 6 paired seeds."),
        (None, None, "INCONCLUSIVE", ONE_PAIR | {"planned": 1},
         "Δ val/loss = +0.016 nats, no interval, margin +0.03: INCONCLUSIVE. 1 paired seed."),
        (-0.125, -0.116, "INCONCLUSIVE", {"threshold": -0.01, "decision": NO_INTERVAL},
         "Δ val/loss = −0.120 nats, 95% CI [−0.125, −0.116], claim Δ < −0.01: INCONCLUSIVE; "
         "no interval at the deciding level of 98.8%. 6 paired seeds."),
        (-0.013, None, "INCONCLUSIVE", RANKS,
         "median Δ val/loss = +0.004 nats, 95% CI [−0.013, ∞), margin +0.03: INCONCLUSIVE. 6 paired seeds."),
        (None, 0.05, "INCONCLUSIVE", RANKS,
         "median Δ val/loss = +0.004 nats, 95% CI (−∞, +0.050], margin +0.03: INCONCLUSIVE. "
         "6 paired seeds."),
        (-0.003, None, "INCONCLUSIVE", NO_MEDIAN,  # at least half of the pairs diverged
         "median Δ val/loss = not finite, 95% CI [−0.003, ∞), margin +0.03: INCONCLUSIVE. 6 paired seeds."),
        (None, None, "REFUTED", NO_MEDIAN | {"interval": {"low": None, "high": None, "level": 0.95}},
         "median Δ val/loss = not finite, margin +0.03: worse by more than the margin (REFUTED). "
         "6 paired seeds."),
        (None, None, "NOT COMPARABLE", {"not_comparable": ["a: 1, 2", "b"], "decision": NOTHING},
         "a: 1, 2; b (NOT COMPARABLE). 0 of 6 paired seeds."),
        (-0.01, 0.02, "UNTRAINED", {"untrained_reason": "trained for 4 steps, below the minimum of 50"},
         "gqa and mha were trained for 4 steps, below the minimum of 50 (UNTRAINED). 6 paired seeds."),
        (None, None, "NO RESULT", {"decision": NOTHING},
         "no paired seed of gqa and mha is complete (NO RESULT). 0 of 6 paired seeds."),
        (None, None, "NO RESULT", {"basis": "timing", "planned": None, "decision": NOTHING},
         "no timing block of gqa and mha is complete (NO RESULT). 0 timing blocks."),
        (None, None, "NO RESULT", UNKNOWN,
         "5% of training compute has no known value in nats: it may be 0 (NO RESULT, exploratory)."),
        (None, None, "NO RESULT", UNKNOWN | {"unit": ""},  # before any run
         "5% of training compute has no known value: it may be 0 (NO RESULT, exploratory)."),
    ],
)  # fmt: skip
def test_claim_line_has_arms_numbers_threshold_conclusion_verdict_and_seeds(
    low: float | None, high: float | None, verdict: str, changes: dict[str, Any], line: str
) -> None:
    assert describe_claim(build_claim_result(low, high, verdict, **changes)) == f"gqa vs mha: {line}"


OWN = {"low": -0.01, "high": 0.025, "level": 0.9}


@pytest.mark.parametrize(
    ("low", "high", "verdict", "changes", "start"),
    [
        (0.5, 0.5, "SUPPORTED", COUNTED, "The value is counted, not estimated."),
        (None, None, "INCONCLUSIVE", ONE_PAIR,
         "Without an interval the claim is undecided. This is no evidence that the arms are equal."),
        (-0.013, None, "INCONCLUSIVE", RANKS, "The deciding interval extends to both sides of a threshold"),
        (None, None, "NOT COMPARABLE", {"decision": NOTHING}, MEANINGS["NOT COMPARABLE"]),
        (None, None, "NO RESULT", {"decision": NOTHING}, MEANINGS["NO RESULT"]),
        (-0.01, 0.02, "UNTRAINED", {}, "Models that have barely learned cannot show"),
        (-0.013, 0.028, "SUPPORTED", {"decision": OWN},
         "The deciding interval, 90% CI [−0.010, +0.025], lies entirely in the region where the claim"),
        # printed beside the effect
        (-0.013, 0.028, "SUPPORTED", {}, "The deciding interval lies"),
        (-0.013, 0.032, "SUPPORTED", {"decision": OWN}, "The deciding interval lies"),
    ],
)  # fmt: skip
def test_verdict_is_explained(
    low: float | None, high: float | None, verdict: str, changes: dict[str, Any], start: str
) -> None:
    assert explain_verdict(build_claim_result(low, high, verdict, **changes)).startswith(start)


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


@pytest.mark.parametrize("verdict", Verdict)
def test_words_beside_a_verdict(verdict: Verdict) -> None:
    """Every verdict is explained, and only decided claims have a conclusion and a training compute."""
    training = TrainingEquivalent(compute_change=-0.03, low=-0.09, high=0.02, level=0.95)
    reasons = {"not_comparable": ["x"], "untrained_reason": "raw", "training_equivalent": training}
    claim = build_claim_result(0.05, 0.08, verdict, exploratory=True, **reasons)
    assert explain_verdict(claim).endswith(".")
    assert "significant" not in explain_verdict(claim)
    line = describe_claim(claim)
    assert f"{verdict}, exploratory" in line
    assert "exploratory" not in describe_claim(replace_fields(claim, exploratory=False))
    words = "; equivalent to −3% training compute, 95% CI [−9%, +2%]. 6 paired seeds."
    assert (words in line) == (verdict in (SUPPORTED, REFUTED, Verdict.INCONCLUSIVE))
    if verdict not in (SUPPORTED, REFUTED):
        assert format_conclusion(claim) == verdict.lower()
        cell = ledger_rows._format_decision_cell(claim)
        assert cell == f"95% CI [+0.050, +0.080]: {verdict.lower()}", "in the ledger too"


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
    power = "would support it with 80% power at the observed effect"
    reason = "because the standard deviation is uncertain"
    assert format_required_seeds(claim) == words.format(power, reason)
    assert format_required_seeds(replace_fields(claim, required_seeds=None)) == ""
    looks = replace_fields(claim, interim_analyses=make_analyses(None, 0))
    assert "fresh seeds in a single analysis" in format_required_seeds(looks)
    by_rank = replace_fields(looks, basis="ranks")  # valid after any number of seeds
    assert format_required_seeds(by_rank) == words.format(power, reason)


def test_bound_rounded_to_zero_keeps_its_sign() -> None:
    assert format_interval(0.0, 0.0, 3) == "[+0.000, +0.000]"
    assert format_interval(0.0004, 0.09, 3) == "[+0.000, +0.090]"
    assert format_interval(-0.09, -0.0004, 3) == "[−0.090, −0.000]"
    assert format_estimate(-0.0004, -0.09, 0.08, 0.95, 2) == "0.00, 95% CI [−0.09, +0.08]"
    assert [format_level(x) for x in (0.9, 0.975, 0.98333)] == ["90% CI", "97.5% CI", "98.3% CI"]


def make_effect(**changes: Any) -> Effect:
    values = {
        "metric": "val/loss", "mean": -0.001, "low": -0.018, "high": 0.016, "level": 0.95,
        "unit": "nats", "digits": 3,
        "verdict": EffectVerdict.EQUIVALENT, "reasons": [], "alpha": 0.05, "margin": 0.03, "primary": True,
    }  # fmt: skip
    return Effect.model_construct(**values | changes)


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
