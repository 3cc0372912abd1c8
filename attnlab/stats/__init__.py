"""Inference from a few paired seeds: intervals, equivalence, Holm, power. Never imports torch.

The unit of replication is the seed, d_s = metric(arm, s) - metric(baseline, s); batches and items are not
replicates. An unknown quantity (the interval of one pair, the p-value of no pairs) is None, never 0, NaN or
infinity. A NaN input is an error, because a failed run is counted and not averaged.
"""

from attnlab.stats.censored_steps import (
    BinomialProportion,
    StepsComparison,
    compare_steps,
    estimate_proportion,
)
from attnlab.stats.claim_family import (
    ClaimTest,
    Decision,
    adjust_holm_p_values,
    compute_holm_levels,
    decide_claims,
    is_inside_region,
)
from attnlab.stats.crossed_components import (
    CrossedComponents,
    estimate_crossed_components,
    estimate_sampling_error,
)
from attnlab.stats.evalues import (
    ProportionDifferences,
    RankDifferences,
    compute_betting_p_value,
    count_unanimous_seeds,
)
from attnlab.stats.evidence import (
    BootstrapDraws,
    Evidence,
    ExactEvidence,
    PairedDifferences,
    compute_region_p_value,
)
from attnlab.stats.factorial import (
    OptionMeans,
    VarianceComponent,
    VarianceDecomposition,
    average_options,
    decompose_variance,
    find_balanced_subset,
)
from attnlab.stats.paired_tests import (
    ComputeEquivalent,
    MarginTest,
    PairedEstimate,
    compute_product_interval,
    compute_ratio_interval,
    estimate_compute_equivalent,
    estimate_paired_difference,
    run_noninferiority_test,
    run_tost,
)
from attnlab.stats.power import (
    PowerPlan,
    SeedsToDecide,
    compute_power,
    compute_tost_power,
    estimate_power_plan,
    estimate_seeds_to_decide,
    find_detectable_effect,
    find_seeds_for_equivalence,
    find_seeds_needed,
    simulate_seeds_to_decide,
)
from attnlab.stats.sensitivity import (
    PairingGain,
    SignFlipDecision,
    SignFlipResult,
    compute_leave_one_out_range,
    decide_by_sign_flips,
    flag_outliers,
    measure_pairing_gain,
    run_sign_flip_test,
)
from attnlab.stats.stopping_rules import (
    FIXED_SAMPLE,
    AnytimeValid,
    BeforeFirstAnalysis,
    FixedSample,
    GroupSequential,
    StoppingRule,
    list_stopping_rules,
)
from attnlab.stats.timing_ratios import (
    RatioEstimate,
    bootstrap_ratio,
    estimate_median,
    estimate_ratio_of_medians,
)

__all__ = [
    "FIXED_SAMPLE",
    "AnytimeValid",
    "BeforeFirstAnalysis",
    "BinomialProportion",
    "BootstrapDraws",
    "ClaimTest",
    "ComputeEquivalent",
    "CrossedComponents",
    "Decision",
    "Evidence",
    "ExactEvidence",
    "FixedSample",
    "GroupSequential",
    "MarginTest",
    "OptionMeans",
    "PairedDifferences",
    "PairedEstimate",
    "PairingGain",
    "PowerPlan",
    "ProportionDifferences",
    "RankDifferences",
    "RatioEstimate",
    "SeedsToDecide",
    "SignFlipDecision",
    "SignFlipResult",
    "StepsComparison",
    "StoppingRule",
    "VarianceComponent",
    "VarianceDecomposition",
    "adjust_holm_p_values",
    "average_options",
    "bootstrap_ratio",
    "compare_steps",
    "compute_betting_p_value",
    "compute_holm_levels",
    "compute_leave_one_out_range",
    "compute_power",
    "compute_product_interval",
    "compute_ratio_interval",
    "compute_region_p_value",
    "compute_tost_power",
    "count_unanimous_seeds",
    "decide_by_sign_flips",
    "decide_claims",
    "decompose_variance",
    "estimate_compute_equivalent",
    "estimate_crossed_components",
    "estimate_median",
    "estimate_paired_difference",
    "estimate_power_plan",
    "estimate_proportion",
    "estimate_ratio_of_medians",
    "estimate_sampling_error",
    "estimate_seeds_to_decide",
    "find_balanced_subset",
    "find_detectable_effect",
    "find_seeds_for_equivalence",
    "find_seeds_needed",
    "flag_outliers",
    "is_inside_region",
    "list_stopping_rules",
    "measure_pairing_gain",
    "run_noninferiority_test",
    "run_sign_flip_test",
    "run_tost",
    "simulate_seeds_to_decide",
]
