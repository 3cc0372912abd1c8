"""Scores of attention patterns: what kind of looking a head does. A is [..., T, T], row = query, 0-based.

Surprising: nothing here has a table of chance levels. The chance level of a score is the score of uniform
causal attention over the same tokens, so it is right for any length, period and text.
"""

from typing import NamedTuple

import numpy as np

WINDOW = 8  # keys that count as local, and the row from which entropies are compared
Array = np.ndarray


class Score(NamedTuple):
    """What a score is called and what it is; a report counts the heads above `threshold`."""

    label: str
    about: str = ""
    threshold: float | None = None


SCORES = {
    "previous": Score("previous token", "mean attention from each token to the one before it", 0.3),
    "current": Score("current token", "mean attention of a token to itself", 0.3),
    "duplicate": Score("duplicate token", "attention to earlier copies of the same token", 0.3),
    "induction": Score("induction", "attention to what followed the earlier copies of this token", 0.3),
    "copying": Score(
        "copying (OV)", "share of the rise in logits that goes to the attended token, -1 to 1", 0.0
    ),
    "sink": Score("attention sink", "mean attention to the first token", 0.3),
    "entropy": Score("entropy", "of each row, as a share of the uniform one: 1 is uniform", 0.9),
    "local": Score("local (8 tokens)", "mean attention to the last 8 tokens", 0.7),
    "distance": Score("mean distance", "how far back attention reaches, in tokens"),
    "confidence": Score("confidence", "mean of the largest weight of each row", 0.5),
    "positional": Score("positional", "share of rows whose maximum sits at one offset", 0.9),
}


def uniform(length: int) -> Array:
    """Uniform causal attention [T, T]."""
    return np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]


def pattern_scores(A: Array, tokens: Array) -> dict[str, Array]:
    """All scores of one text that need no special tokens; one that the text is too short for is absent."""
    T = A.shape[-1]
    out = {"current": _diagonal(A, 0), "sink": A[..., 0].mean(-1), "confidence": A.max(-1).mean(-1)}
    out["distance"] = mean_distance(A)
    if T > 1:
        out["previous"] = _diagonal(A, 1)
    if T > WINDOW:
        out["entropy"], out["local"] = entropy(A), local(A)
    score = duplicate(A, tokens)
    return out if score is None else out | {"duplicate": score}


def _diagonal(A: Array, offset: int) -> Array:
    return np.diagonal(A, -offset, -2, -1).mean(-1)


def duplicate(A: Array, tokens: Array) -> Array | None:
    """Over queries with an earlier equal token: the mean of the sum of A over those earlier tokens."""
    earlier = np.tril(tokens[:, None] == tokens[None, :], -1)
    return _mean_over(A, earlier, earlier.any(1))


def induction(A: Array, tokens: Array, period: int) -> Array | None:
    """Tokens repeated with this period: over queries after the first repeat, the attention to every key whose
    predecessor is the query's token (Olsson et al. 2022).
    """
    follows = np.zeros((len(tokens), len(tokens)), bool)
    follows[:, 1:] = tokens[:, None] == tokens[None, :-1]
    return _mean_over(A, np.tril(follows), np.arange(len(tokens)) >= period)


def _mean_over(A: Array, keys: Array, queries: Array) -> Array | None:
    """Mean over these queries of the attention to their `keys`; None where there is no query."""
    return (A * keys).sum(-1)[..., queries].mean(-1) if queries.any() else None


def entropy(A: Array) -> Array:
    """Mean over rows i >= 8 of H(A[i, :i+1]) / ln(i+1): 1 is uniform."""
    rows = np.arange(WINDOW, A.shape[-1])
    logs = np.log(A, where=A > 0, out=np.zeros_like(A))
    return (-(A * logs).sum(-1)[..., rows] / np.log(rows + 1)).mean(-1) + 0.0  # no minus zero


def local(A: Array, width: int = WINDOW) -> Array:
    """Mean over rows i >= width of the attention to the last `width` keys, the query's own included."""
    T = A.shape[-1]
    behind = np.arange(T)[:, None] - np.arange(T)
    near = (behind >= 0) & (behind < width)
    return (A * near).sum(-1)[..., width:].mean(-1)


def mean_distance(A: Array) -> Array:
    """Mean over rows of how far back the attention reaches, in tokens."""
    T = A.shape[-1]
    return (A * np.abs(np.arange(T)[:, None] - np.arange(T))).sum(-1).mean(-1)


def peaks(A: Array) -> Array:
    """How many rows have their maximum at offset 0, 1, ..., T-1 behind the query; of equal ones the first."""
    T = A.shape[-1]
    offset = np.abs(np.arange(T) - A.argmax(-1))
    return (offset[..., None] == np.arange(T)).sum(-2)


def copying(rise: Array, tokens: Array) -> Array:
    """rise [..., n, vocabulary] are the logits that a head writes when it attends to each of n tokens.

    Centred over the vocabulary and cut at zero; the share of what is left that the attended token itself
    gets, as 2 share - 1: -1 where it gets nothing, 1 where it gets all.
    """
    up = np.maximum(rise - rise.mean(-1, keepdims=True), 0)
    total = up.sum(-1)
    own = up[..., np.arange(len(tokens)), tokens]
    share = np.divide(own, total, out=np.zeros_like(total), where=total > 0)
    return 2 * share.mean(-1) - 1
