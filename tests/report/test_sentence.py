import pytest
from attnlab.report.verdicts.sentence import Wording, decimals, declared, phrase, plain, sentence

from attnlab.report.verdicts.verdict import Verdict, Word
from attnlab.stats import Decision

MARGIN = Wording("gqa", "mha", "below", 0.03, baseline="mha")


def decision(low, high, n=6, exact=False) -> Decision:
    estimate = 0.016 if low is None else (low + high) / 2
    return Decision(n, estimate, low, high, 0.9, 0.05, 0.01, 0.01, exact)


def said(claim, low, high, verdict, **more) -> str:
    return sentence(claim, decision(low, high), verdict, **more)


def test_a_supported_claim_reads_as_its_bound():
    assert (
        said(MARGIN, -0.01, 0.0155, Verdict.SUPPORTED)
        == "SUPPORTED: gqa costs at most 0.016 nats (margin 0.030). 6 paired seeds."
    )


@pytest.mark.parametrize(
    ("claim", "low", "high", "verdict", "body"),
    [
        (MARGIN, 0.0409, 0.0771, Verdict.REFUTED, "gqa costs at least 0.040 nats (margin 0.030)"),
        (
            MARGIN,
            -0.0121,
            0.0771,
            Verdict.INCONCLUSIVE,
            "gqa gains at most 0.013 or costs at most 0.078 nats (margin 0.030)",
        ),
        (
            MARGIN,
            0.0121,
            0.0771,
            Verdict.INCONCLUSIVE,
            "gqa costs at least 0.012 and at most 0.078 nats (margin 0.030)",
        ),
        (MARGIN, -0.0771, -0.0129, Verdict.SUPPORTED, "gqa gains at least 0.012 nats (margin 0.030)"),
        (
            Wording("gqa", "mha", "within", 0.03, baseline="mha"),
            -0.0121,
            0.0155,
            Verdict.SUPPORTED,
            "gqa gains at most 0.013 or costs at most 0.016 nats (margin 0.030)",
        ),
        (
            Wording("gqa", "mha", "within", 0.03, baseline="mha"),
            -0.0771,
            -0.0409,
            Verdict.REFUTED,
            "gqa gains at least 0.040 nats (margin 0.030)",
        ),
        (
            Wording("mqa", "gqa", "above", 0.01, baseline="mha"),
            0.0209,
            0.0771,
            Verdict.SUPPORTED,
            "mqa costs at least 0.020 nats against gqa (claimed: costs more than 0.01)",
        ),
        (
            Wording("rope", "none", "above", -0.02, direction="higher", unit="", baseline="none"),
            -0.0151,
            0.05,
            Verdict.SUPPORTED,
            "rope costs at most 0.016 (margin 0.020)",
        ),
        (
            Wording("rope", "none", "above", 0.0, direction="higher", unit="", baseline="none"),
            -0.05,
            -0.0151,
            Verdict.REFUTED,
            "rope costs at least 0.015 (claimed: gains more than 0)",
        ),
        (
            Wording(
                "gate", "none", "below", 0.0, metric="head/sink", unit="", direction=None, baseline="none"
            ),
            -0.5,
            -0.21,
            Verdict.SUPPORTED,
            "gate lowers head/sink by at least 0.21 (claimed: lowers head/sink by more than 0)",
        ),
        (
            Wording("gqa", "mha", "below", 0.9, "ratio", "decode time"),
            0.7211,
            0.8111,
            Verdict.SUPPORTED,
            "gqa has at most 0.812x the decode time of mha (claimed: has less than 0.9x)",
        ),
    ],
)
def test_the_side_that_decided_is_named_in_words(claim, low, high, verdict, body):
    assert said(claim, low, high, verdict) == f"{verdict}: {body}. 6 paired seeds."


def test_a_counted_quantity_is_stated_as_it_is():
    claim = Wording("gqa", "mha", "below", 0.55, "ratio", "KV bytes per token")
    assert (
        sentence(claim, decision(0.5, 0.5, 1, exact=True), Verdict.SUPPORTED)
        == "SUPPORTED: gqa has 0.5x the KV bytes per token of mha (claimed: has less than 0.55x). Exact."
    )


def test_planned_seeds_stay_in_the_denominator():
    assert said(MARGIN, -0.01, 0.0155, Verdict.SUPPORTED, planned=8).endswith("6 of 8 paired seeds.")
    assert said(MARGIN, -0.01, 0.0155, Verdict.SUPPORTED, planned=6).endswith(" 6 paired seeds.")


def test_one_pair_says_that_it_has_no_interval():
    assert (
        sentence(MARGIN, decision(None, None, 1), Verdict.INCONCLUSIVE, planned=6)
        == "INCONCLUSIVE: gqa costs 0.016 nats, which is the only pair and has no interval (margin 0.03). "
        "1 of 6 paired seeds."
    )


def test_no_verdict_gives_its_reason():
    nothing = Decision(0, None, None, None, 0.9, 0.05, None, None, False)
    assert (
        sentence(MARGIN, nothing, Verdict.NO_RESULT, planned=6)
        == "NO RESULT: no paired seed of gqa and mha was completed. 0 of 6 paired seeds."
    )
    assert (
        said(MARGIN, 0.0, 0.1, Verdict.NOT_COMPARABLE, unequal=["a: 1 in gqa, 2 in mha", "gqa leaks"])
        == "NOT COMPARABLE: a: 1 in gqa, 2 in mha; gqa leaks. 6 paired seeds."
    )


def test_a_departure_from_the_plan_is_in_the_headline():
    words = said(MARGIN, -0.01, 0.0155, Verdict.SUPPORTED, exploratory=True)
    assert words.startswith("SUPPORTED (exploratory): ")


def test_pairs_that_are_all_equal_are_said_to_be_so():
    claim = Wording("a", "b", "within", 0.1, metric="val/loss", baseline="b")
    words = said(claim, 0.0, 0.0, Verdict.SUPPORTED)
    assert words.startswith("SUPPORTED: a has the val/loss of b in every pair, to the last digit (margin 0.1")


def test_a_bound_that_is_not_zero_is_not_printed_as_zero():
    claim = Wording("a", "b", "above", 0.0, baseline="b")
    assert "costs at least 0.0004 nats" in said(claim, 0.0004, 0.09, Verdict.SUPPORTED)


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("claim", [MARGIN, Wording("gqa", "mha", "within", 0.05, "ratio", "decode time")])
def test_every_verdict_has_plain_words(verdict, claim):
    words = plain(claim, verdict)
    assert words.endswith(".")
    assert "gqa" in words
    assert "significant" not in words


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (Word.EQUIVALENT, "EQUIVALENT WITHIN ±0.030 nats"),
        (Word.WORSE_MORE, "WORSE by more than 0.030 nats"),
        (Word.BETTER, "BETTER, size undecided"),
        (Word.INCONCLUSIVE, "INCONCLUSIVE"),
    ],
)
def test_an_effects_phrase_holds_its_margin(word, text):
    assert phrase(word, 0.03, unit="nats") == text


@pytest.mark.parametrize(
    ("width", "digits"), [(0.03, 3), (0.0099, 4), (0.1, 2), (5, 1), (47, 0), (4e5, 0), (0, 3), (None, 3)]
)
def test_decimals_show_two_digits_of_the_width(width, digits):
    assert decimals(width) == digits


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.03, 0, "0.03"),
        (0.03, 3, "0.030"),
        (0.0125, 1, "0.0125"),
        (100.0, 0, "100"),
        (-0.5, 2, "-0.50"),
        (0, 0, "0"),
    ],
)
def test_a_declared_number_keeps_its_own_decimals(value, digits, text):
    assert declared(value, digits) == text


def test_a_ratio_that_is_hardly_bounded_is_told_all_the_same():
    claim = Wording("gqa", "mha", "below", 0.25, compare="ratio", metric="train/loss", unit="")
    wide = Decision(2, 1.0, 1e-300, 1e304, 0.975, 0.025, 0.9, 0.9, exact=False)
    assert "at most 1e+304x" in sentence(claim, wide, Verdict.INCONCLUSIVE)
