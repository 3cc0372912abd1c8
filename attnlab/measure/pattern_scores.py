"""Scores of attention patterns. A is [..., T, T], row = query, 0-based.

There is no table of chance levels. The chance level of a score is the score of uniform causal attention over
the same tokens, so it is right for any length, period and text.
"""

from typing import NamedTuple

import numpy as np

LOCAL_WINDOW = 8  # number of local keys, and first row of the entropy score
Array = np.ndarray


class ScoreInfo(NamedTuple):
    """Label and description of a score; a report counts the heads above `threshold`."""

    label: str
    description: str = ""
    threshold: float | None = None


HEAD_SCORES = {
    "previous": ScoreInfo("previous token", "mean attention from each token to the one before it", 0.3),
    "current": ScoreInfo("current token", "mean attention of a token to itself", 0.3),
    "duplicate": ScoreInfo("duplicate token", "attention to earlier copies of the same token", 0.3),
    "induction": ScoreInfo(
        "induction", "attention to the tokens that followed earlier copies of this token", 0.3
    ),
    "copying": ScoreInfo(
        "copying (OV)",
        "proportion of the logit increase that goes to the attended token, scaled to [-1, 1]",
        0.0,
    ),
    "sink": ScoreInfo("attention sink", "mean attention to the first token", 0.3),
    "entropy": ScoreInfo("entropy", "entropy of each row relative to uniform attention: 1 is uniform", 0.9),
    "local": ScoreInfo("local (8 tokens)", "mean attention to the last 8 tokens", 0.7),
    "distance": ScoreInfo("mean distance", "attention-weighted distance to the keys, in tokens"),
    "confidence": ScoreInfo("confidence", "mean of the largest weight of each row", 0.5),
    "positional": ScoreInfo(
        "positional", "proportion of rows whose maximum is at the most common offset", 0.9
    ),
}


def make_uniform_attention(length: int) -> Array:
    """Return uniform causal attention [T, T]."""
    return np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]


def compute_pattern_scores(A: Array, tokens: Array) -> dict[str, Array]:
    """Return all scores that need no special tokens; scores for which the text is too short are absent."""
    T = A.shape[-1]
    out = {"current": _mean_diagonal(A, 0), "sink": A[..., 0].mean(-1), "confidence": A.max(-1).mean(-1)}
    out["distance"] = score_distance(A)
    if T > 1:
        out["previous"] = _mean_diagonal(A, 1)
    if T > LOCAL_WINDOW:
        out["entropy"], out["local"] = score_entropy(A), score_locality(A)
    score = score_duplicates(A, tokens)
    return out if score is None else out | {"duplicate": score}


def _mean_diagonal(A: Array, offset: int) -> Array:
    return np.diagonal(A, -offset, -2, -1).mean(-1)


def score_duplicates(A: Array, tokens: Array) -> Array | None:
    """Return the attention to earlier equal tokens, averaged over queries that have such tokens.

    None if no token repeats.
    """
    earlier = np.tril(tokens[:, None] == tokens[None, :], -1)
    return _mean_attention(A, earlier, earlier.any(1))


def score_induction(A: Array, tokens: Array, period: int) -> Array | None:
    """Return the attention to keys whose predecessor is the query's token (Olsson et al. 2022).

    Tokens repeat with this period; the mean is over queries after the first repeat.
    """
    follows = np.zeros((len(tokens), len(tokens)), bool)
    follows[:, 1:] = tokens[:, None] == tokens[None, :-1]
    return _mean_attention(A, np.tril(follows), np.arange(len(tokens)) >= period)


def _mean_attention(A: Array, keys: Array, queries: Array) -> Array | None:
    """Return the mean over these queries of the attention to their `keys`; None without queries."""
    return (A * keys).sum(-1)[..., queries].mean(-1) if queries.any() else None


def score_entropy(A: Array) -> Array:
    """Return the mean over rows i >= 8 of H(A[i, :i+1]) / ln(i+1): 1 is uniform."""
    rows = np.arange(LOCAL_WINDOW, A.shape[-1])
    logs = np.log(A, where=A > 0, out=np.zeros_like(A))
    return (-(A * logs).sum(-1)[..., rows] / np.log(rows + 1)).mean(-1) + 0.0  # no minus zero


def score_locality(A: Array, width: int = LOCAL_WINDOW) -> Array:
    """Return the mean attention to the last `width` keys, including the query's own, over rows i >= width."""
    T = A.shape[-1]
    distance = np.arange(T)[:, None] - np.arange(T)
    is_local = (distance >= 0) & (distance < width)
    return (A * is_local).sum(-1)[..., width:].mean(-1)


def score_distance(A: Array) -> Array:
    """Return the attention-weighted distance to the keys, in tokens, averaged over rows."""
    T = A.shape[-1]
    return (A * np.abs(np.arange(T)[:, None] - np.arange(T))).sum(-1).mean(-1)


def count_peak_offsets(A: Array) -> Array:
    """Count rows whose maximum is at offset 0, 1, ..., T-1 behind the query; ties count at the first key."""
    T = A.shape[-1]
    offset = np.abs(np.arange(T) - A.argmax(-1))
    return (offset[..., None] == np.arange(T)).sum(-2)


def score_copying(logits: Array, tokens: Array) -> Array:
    """Score how much a head raises the logit of the token that it attends to.

    `logits` [..., n, vocabulary] are the head's contributions when it attends to each of n tokens. They are
    centered over the vocabulary and clipped at zero. The score is 2 p - 1, where p is the attended token's
    proportion of the rest: -1 if it gets nothing, 1 if it gets everything.
    """
    raised = np.maximum(logits - logits.mean(-1, keepdims=True), 0)
    total = raised.sum(-1)
    attended = raised[..., np.arange(len(tokens)), tokens]
    proportion = np.divide(attended, total, out=np.zeros_like(total), where=total > 0)
    return 2 * proportion.mean(-1) - 1
