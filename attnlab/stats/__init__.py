"""Inference from a few paired seeds: intervals, equivalence, Holm, power. Never imports torch.

The unit of replication is the seed, d_s = metric(arm, s) - metric(baseline, s); batches and items are not
replicates. An unknown quantity (the interval of one pair, the p-value of no pairs) is None, never 0, NaN or
infinity. A NaN input is an error, because a failed run is counted and not averaged.
"""

from attnlab.stats.censored_steps import (
    compare_steps,
    summarize_steps,
)
from attnlab.stats.claim_family import (
    ClaimTest,
    Decision,
    adjust_holm_p_values,
    decide_claims,
    is_inside_region,
)
from attnlab.stats.evalues import (
    ProportionDifferences,
    RankDifferences,
    count_unanimous_seeds,
)
from attnlab.stats.evidence import (
    Evidence,
    ExactEvidence,
    PairedDifferences,
    compute_region_p_value,
    compute_two_sided_p_value,
    is_rounding_error,
)
from attnlab.stats.factorial import average_options
from attnlab.stats.group_differences import GroupDifferences
from attnlab.stats.online_discoveries import (
    compute_online_level,
    compute_sign_evalue,
    compute_t_evalue,
    find_largest_evalue,
    select_discoveries,
)
from attnlab.stats.paired_tests import (
    PairedEstimate,
    estimate_compute_equivalent,
    estimate_paired_difference,
)
from attnlab.stats.power import (
    SeedsToDecide,
    estimate_sd_bounds,
    estimate_seeds_to_decide,
    find_detectable_effect,
    find_detectable_group_effect,
    find_group_seeds_needed,
    find_seeds_for_equivalence,
    simulate_seeds_to_decide,
    simulate_seeds_to_decide_median,
)
from attnlab.stats.sensitivity import (
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
    count_min_seeds,
    list_stopping_rules,
)
from attnlab.stats.timing_ratios import (
    bootstrap_ratio,
    estimate_median,
    estimate_ratio_of_medians,
)

__all__ = [
    "FIXED_SAMPLE",
    "AnytimeValid",
    "BeforeFirstAnalysis",
    "ClaimTest",
    "Decision",
    "Evidence",
    "ExactEvidence",
    "FixedSample",
    "GroupDifferences",
    "GroupSequential",
    "PairedDifferences",
    "PairedEstimate",
    "ProportionDifferences",
    "RankDifferences",
    "SeedsToDecide",
    "StoppingRule",
    "adjust_holm_p_values",
    "average_options",
    "bootstrap_ratio",
    "compare_steps",
    "compute_leave_one_out_range",
    "compute_online_level",
    "compute_region_p_value",
    "compute_sign_evalue",
    "compute_t_evalue",
    "compute_two_sided_p_value",
    "count_min_seeds",
    "count_unanimous_seeds",
    "decide_by_sign_flips",
    "decide_claims",
    "estimate_compute_equivalent",
    "estimate_median",
    "estimate_paired_difference",
    "estimate_ratio_of_medians",
    "estimate_sd_bounds",
    "estimate_seeds_to_decide",
    "find_detectable_effect",
    "find_detectable_group_effect",
    "find_group_seeds_needed",
    "find_largest_evalue",
    "find_seeds_for_equivalence",
    "flag_outliers",
    "is_inside_region",
    "is_rounding_error",
    "list_stopping_rules",
    "measure_pairing_gain",
    "run_sign_flip_test",
    "select_discoveries",
    "simulate_seeds_to_decide",
    "simulate_seeds_to_decide_median",
    "summarize_steps",
]
