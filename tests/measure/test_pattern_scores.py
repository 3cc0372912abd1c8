"""Scores of known attention patterns are exactly 0, 1 or the chance level."""

import numpy as np
import pytest

from attnlab.measure import pattern_scores

T, PERIOD = 128, 32
IDS = np.tile(np.random.default_rng(0).permutation(90)[:PERIOD], 4)
PATTERNS = {
    "identity": np.eye(T),
    "previous": np.eye(T, k=-1) + np.outer(np.arange(T) == 0, np.arange(T) == 0),
    "first": np.outer(np.ones(T), np.arange(T) == 0),
    "uniform": pattern_scores.make_uniform_attention(T),
}
H = 1 / np.arange(1, T + 1)  # weight of one token in each row of uniform attention


def compute_all_scores(pattern: str) -> dict[str, float]:
    A = PATTERNS[pattern]
    scores = {name: float(value) for name, value in pattern_scores.compute_pattern_scores(A, IDS).items()}
    scores["induction"] = float(pattern_scores.score_induction(A, IDS, PERIOD))
    peaks = pattern_scores.count_peak_offsets(A)
    return {**scores, "positional": float(peaks.max() / peaks.sum())}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (
            "identity",
            {"current": 1, "previous": 0, "duplicate": 0, "induction": 0, "sink": H[-1], "entropy": 0,
             "local": 1, "distance": 0, "confidence": 1, "positional": 1},
        ),
        (
            "previous",
            {"current": H[-1], "previous": 1, "duplicate": 0, "induction": 0, "sink": 2 / T, "entropy": 0,
             "local": 1, "distance": (T - 1) / T, "confidence": 1, "positional": (T - 1) / T},
        ),
        (
            "first",
            {"current": H[-1], "previous": 1 / (T - 1), "duplicate": 3 / (T - PERIOD), "induction": 0,
             "sink": 1, "entropy": 0, "local": 0, "distance": (T - 1) / 2, "confidence": 1,
             "positional": 1 / T},
        ),
        (
            "uniform",
            {"current": H.mean(), "previous": H[1:].mean(), "sink": H.mean(), "entropy": 1,
             "local": (8 * H[8:]).mean(), "distance": (T - 1) / 4, "confidence": H.mean()},
        ),
    ],
)  # fmt: skip
def test_a_known_pattern_has_its_known_scores(pattern: str, expected: dict[str, float]) -> None:
    scores = compute_all_scores(pattern)
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_the_chance_level_of_the_previous_token_equals_the_published_one() -> None:
    assert compute_all_scores("uniform")["previous"] == pytest.approx(0.035, abs=5e-4)


def test_attention_to_successors_of_earlier_copies_has_induction_score_one() -> None:
    A = np.zeros((T, T))
    for i in range(T):
        A[i, max(0, i - PERIOD + 1)] = 1
    assert pattern_scores.score_induction(A, IDS, PERIOD) == 1
    assert pattern_scores.score_induction(np.roll(A, -1, 1), IDS, PERIOD) == 0


def test_induction_counts_every_earlier_copy() -> None:
    A = np.zeros((T, T))
    for i in range(T):
        earlier = np.arange(i - PERIOD + 1, 0, -PERIOD)
        A[i, earlier if len(earlier) else 0] = 1 / max(1, len(earlier))
    assert pattern_scores.score_induction(A, IDS, PERIOD) == pytest.approx(1)
    by_hand = np.mean([(i // PERIOD) / (i + 1) for i in range(PERIOD, T)])
    assert pattern_scores.score_induction(
        pattern_scores.make_uniform_attention(T), IDS, PERIOD
    ) == pytest.approx(by_hand)


def test_duplicates_count_earlier_copies_only() -> None:
    A = (IDS[:, None] == IDS) & (np.arange(T)[:, None] > np.arange(T))
    normalized = A / np.maximum(1, A.sum(1, keepdims=True))
    assert pattern_scores.score_duplicates(normalized, IDS) == 1
    assert pattern_scores.score_duplicates(np.eye(4), np.arange(4)) is None


def test_copying_ranges_from_minus_one_to_one() -> None:
    ids = np.arange(5)
    assert pattern_scores.score_copying(np.eye(7)[:5], ids) == 1
    assert pattern_scores.score_copying(-np.eye(7)[:5], ids) == -1
    half = np.zeros((5, 7))
    half[ids, ids] = half[ids, ids + 1] = 1
    assert pattern_scores.score_copying(half, ids) == pytest.approx(0)
    assert pattern_scores.score_copying(np.ones((5, 7)), ids) == -1, (
        "a head that raises all tokens equally copies none"
    )


def test_scores_that_need_longer_texts_are_absent() -> None:
    scores = pattern_scores.compute_pattern_scores(np.ones((1, 1)), np.zeros(1, int))
    assert set(scores) == {"current", "sink", "confidence", "distance"}
