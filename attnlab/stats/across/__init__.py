"""Effects across sizes and texts: rungs of paired seeds come in, a trend, one word and its reasons go out."""

from attnlab.stats.across.agreement import Agreement, agreement
from attnlab.stats.across.holdout import Holdout, holdout
from attnlab.stats.across.multiplier import Law, Multiplier, Multipliers, Spent, law, multiplier, multipliers
from attnlab.stats.across.rungs import Estimate, Rung
from attnlab.stats.across.texts import Text, Texts, texts
from attnlab.stats.across.trend import Trend
from attnlab.stats.across.word import CANNOT_TELL, FLIPS, GROWS, HOLDS, SHRINKS, More, Word, word

__all__ = [
    "CANNOT_TELL",
    "FLIPS",
    "GROWS",
    "HOLDS",
    "SHRINKS",
    "Agreement",
    "Estimate",
    "Holdout",
    "Law",
    "More",
    "Multiplier",
    "Multipliers",
    "Rung",
    "Spent",
    "Text",
    "Texts",
    "Trend",
    "Word",
    "agreement",
    "holdout",
    "law",
    "multiplier",
    "multipliers",
    "texts",
    "word",
]
