"""Effects across ladder sizes and corpora: trend, holdout prediction, scaling verdict, random effects."""

from attnlab.stats.replications.compute_multiplier import (
    ComputeMultiplier,
    MultiplierRange,
    ScalingLaw,
    SizeLosses,
    estimate_multiplier,
    estimate_multiplier_range,
    fit_scaling_law,
)
from attnlab.stats.replications.decision_accuracy import DecisionAccuracy, compute_decision_accuracy
from attnlab.stats.replications.holdout import HoldoutPrediction, predict_largest_size
from attnlab.stats.replications.ladder_sample import Estimate, SizeSample
from attnlab.stats.replications.random_effects import CorpusEffect, RandomEffectsResult, combine_corpora
from attnlab.stats.replications.scaling_verdict import (
    CANNOT_TELL,
    FLIPS,
    GROWS,
    HOLDS,
    SHRINKS,
    ScalingVerdict,
    SeedsNeeded,
    decide_scaling_verdict,
)
from attnlab.stats.replications.trend import Trend

__all__ = [
    "CANNOT_TELL",
    "FLIPS",
    "GROWS",
    "HOLDS",
    "SHRINKS",
    "ComputeMultiplier",
    "CorpusEffect",
    "DecisionAccuracy",
    "Estimate",
    "HoldoutPrediction",
    "MultiplierRange",
    "RandomEffectsResult",
    "ScalingLaw",
    "ScalingVerdict",
    "SeedsNeeded",
    "SizeLosses",
    "SizeSample",
    "Trend",
    "combine_corpora",
    "compute_decision_accuracy",
    "decide_scaling_verdict",
    "estimate_multiplier",
    "estimate_multiplier_range",
    "fit_scaling_law",
    "predict_largest_size",
]
