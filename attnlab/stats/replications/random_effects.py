"""Random effects of a claim over several corpora, and the prediction for a new corpus.

From three corpora on, the mean is by DerSimonian and Laird's model with Paule and Mandel's tau (J. Res. NBS
87:377, 1982). Its interval is by Hartung and Knapp (Stat. Med. 20:3875, 2001) and by Sidik and Jonkman (Stat.
Med. 21:3153, 2002), never narrower than without spread (Röver, Knapp and Friede, BMC Med. Res. Methodol.
15:99, 2015). The interval for a new corpus is by Higgins, Thompson and Spiegelhalter (J. R. Stat. Soc. A
172:137, 2009). Two corpora are not averaged: both are shown, and their difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from attnlab.stats.evidence import CONFIDENCE_LEVEL, validate_finite
from attnlab.stats.replications.ladder_sample import Estimate


@dataclass(frozen=True)
class CorpusEffect:
    """An effect in nats (arm - baseline), its standard error, and the degrees of freedom of that error."""

    name: str
    effect: float
    se: float
    df: float


@dataclass(frozen=True)
class RandomEffectsResult:
    """Result over corpora; an unknown quantity is None.

    Attributes:
        difference: first - second, of two corpora.
        mean: of three or more corpora, as are `tau` and `new_corpus`.
        tau: standard deviation between corpora.
        new_corpus: prediction for a corpus that was not measured.
    """

    difference: Estimate | None
    mean: Estimate | None
    tau: float | None
    new_corpus: Estimate | None


def combine_corpora(corpora: Sequence[CorpusEffect]) -> RandomEffectsResult:
    """Combine effects on different corpora, which are independent: a model was trained on each.

    Raises:
        ValueError: fewer than two corpora, a name twice, a standard error that is not positive, df below 1.
    """
    effects = validate_finite([corpus.effect for corpus in corpora], "effects on corpora", 2)
    errors = validate_finite([corpus.se for corpus in corpora], "standard errors on corpora", 2)
    if len({corpus.name for corpus in corpora}) < len(corpora):
        raise ValueError("duplicate corpus; pass one effect per corpus")
    for corpus in corpora:
        if not (corpus.se > 0 and corpus.df >= 1):
            raise ValueError(f"corpus {corpus.name}: se={corpus.se}, df={corpus.df}; need se > 0 and df >= 1")
    if len(corpora) == 2:
        return RandomEffectsResult(_estimate_corpus_difference(corpora[0], corpora[1]), None, None, None)
    tau = _estimate_tau(effects, errors)
    weights = 1 / (errors**2 + tau**2)
    mean = float(weights @ effects / weights.sum())
    df = len(corpora) - 1
    scatter = float(weights @ (effects - mean) ** 2) / df
    se = math.sqrt(max(1.0, scatter) / weights.sum())
    overall = _estimate_from_t(mean, se, df)
    new_corpus = _estimate_from_t(mean, math.hypot(tau, se), df - 1)
    return RandomEffectsResult(None, overall, tau, new_corpus)


def _estimate_corpus_difference(a: CorpusEffect, b: CorpusEffect) -> Estimate:
    """Estimate a - b with the degrees of freedom of Welch and Satterthwaite."""
    squared_errors = np.array([a.se, b.se]) ** 2
    df = float(squared_errors.sum() ** 2 / (squared_errors**2 / [a.df, b.df]).sum())
    return _estimate_from_t(a.effect - b.effect, math.sqrt(squared_errors.sum()), df)


def _estimate_tau(effects: np.ndarray, errors: np.ndarray) -> float:
    """The tau at which the weighted scatter around the mean has its expectation; 0 where none does."""

    def compute_excess_scatter(square: float) -> float:
        weights = 1 / (errors**2 + square)
        return float(weights @ (effects - weights @ effects / weights.sum()) ** 2) - (len(effects) - 1)

    if compute_excess_scatter(0.0) <= 0:
        return 0.0
    upper_bound = float(((effects - effects.mean()) ** 2).sum()) + float(errors.max() ** 2)
    from scipy import optimize  # imported here: takes longer than computing most reports

    return math.sqrt(optimize.brentq(compute_excess_scatter, 0.0, upper_bound, xtol=1e-16, rtol=1e-12))


def _estimate_from_t(estimate: float, se: float, df: float) -> Estimate:
    half_width = float(-special.stdtrit(df, (1 - CONFIDENCE_LEVEL) / 2)) * se
    return Estimate(float(estimate), float(estimate - half_width), float(estimate + half_width))
