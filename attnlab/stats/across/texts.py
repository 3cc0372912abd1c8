"""An effect on several texts: what another text would show, by random effects.

From three texts on there is a mean over texts, by DerSimonian and Laird's model with Paule and Mandel's tau
(J. Res. NBS 87:377, 1982), its interval by Hartung and Knapp (Stat. Med. 20:3875, 2001) and by Sidik and
Jonkman (Stat. Med. 21:3153, 2002), never narrower than without spread (Röver, Knapp and Friede, BMC Med. Res.
Methodol. 15:99, 2015), and an interval for the effect on a new text (Higgins, Thompson and Spiegelhalter, J.
R. Stat. Soc. A 172:137, 2009). Two texts are not averaged: both are shown, and their difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from attnlab.stats.across.rungs import Estimate
from attnlab.stats.evidence import finite, fraction


@dataclass(frozen=True)
class Text:
    """An effect in nats (arm - baseline), its standard error, and that one's degrees of freedom."""

    name: str
    effect: float
    se: float
    df: float


@dataclass(frozen=True)
class Texts:
    """What is not known is None: `difference` (first - second) is of two texts, `mean`, `tau` (standard
    deviation between texts) and `new` (a text that was not seen) of three or more.
    """

    texts: tuple[tuple[str, Estimate], ...]
    difference: Estimate | None
    mean: Estimate | None
    tau: float | None
    new: Estimate | None
    says: str


def texts(of: Sequence[Text], level: float = 0.95) -> Texts:
    """Effects on different texts are taken to be independent: models that were trained on each.

    ValueError: no text, a name twice, a standard error that is not positive, df below 1.
    """
    effects = finite([text.effect for text in of], "effects on texts")
    errors = finite([text.se for text in of], "standard errors on texts")
    if len({text.name for text in of}) < len(of):
        raise ValueError("a text comes twice; give one effect per text")
    for text in of:
        if not (text.se > 0 and text.df >= 1):
            raise ValueError(f"text {text.name}: se={text.se}, df={text.df}; need se > 0 and df >= 1")
    each = tuple((text.name, _by_t(text.effect, text.se, text.df, level)) for text in of)
    if len(of) == 1:
        return Texts(each, None, None, None, None, "one text: what another would show is not known")
    if len(of) == 2:
        return _two(of, each, level)
    tau = _tau(effects, errors)
    weights = 1 / (errors**2 + tau**2)
    mean = float(weights @ effects / weights.sum())
    df = len(of) - 1
    scatter = float(weights @ (effects - mean) ** 2) / df
    se = math.sqrt(max(1.0, scatter) / weights.sum())
    overall = _by_t(mean, se, df, level)
    new = _by_t(mean, math.hypot(tau, se), df - 1, level)
    says = (
        f"over {len(of)} texts the effect is {mean:.3g} {_ends(overall)}, with a standard deviation of "
        f"{tau:.3g} between texts; on a new text it would be in {_ends(new)}"
    )
    return Texts(each, None, overall, tau, new, says)


def _two(of: Sequence[Text], each: tuple[tuple[str, Estimate], ...], level: float) -> Texts:
    a, b = of
    both = np.array([a.se, b.se]) ** 2
    df = float(both.sum() ** 2 / (both**2 / [a.df, b.df]).sum())
    apart = _by_t(a.effect - b.effect, math.sqrt(both.sum()), df, level)
    differs = apart.low is not None and apart.high is not None and not apart.low <= 0 <= apart.high
    told = "it differs by text" if differs else "that it differs by text is not shown"
    shown = ", ".join(f"{known.estimate:.3g} {_ends(known)} on {name}" for name, known in each)
    return Texts(each, apart, None, None, None, f"{shown}: apart by {_ends(apart)}, so {told}")


def _tau(effects: np.ndarray, errors: np.ndarray) -> float:
    """Where the weighted scatter around the mean is what it should be, or 0 where it is less even without."""

    def excess(square: float) -> float:
        weights = 1 / (errors**2 + square)
        return float(weights @ (effects - weights @ effects / weights.sum()) ** 2) - (len(effects) - 1)

    if excess(0.0) <= 0:
        return 0.0
    most = float(((effects - effects.mean()) ** 2).sum()) + float(errors.max() ** 2)
    from scipy import optimize  # takes longer to import than most reports to work out

    return math.sqrt(optimize.brentq(excess, 0.0, most, xtol=1e-16, rtol=1e-12))


def _by_t(estimate: float, se: float, df: float, level: float) -> Estimate:
    half = float(-special.stdtrit(df, (1 - fraction(level, "level")) / 2)) * se
    return Estimate(float(estimate), float(estimate - half), float(estimate + half), float(df), level)


def _ends(known: Estimate) -> str:
    return f"[{known.low:.3g}, {known.high:.3g}]"
