"""Judge two sets of runs that were trained elsewhere: is B better than A by more than the margin?

Runs are paired by seed where both sides have the same seeds, else the groups are compared by Welch's t. If a
run diverged, the order of the runs decides: it is worse than every other run.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from attnlab import stats
from attnlab.errors import InvalidConfig
from attnlab.external.noise_floor import ALPHA, POWER, require_equal_steps
from attnlab.external.question import Question
from attnlab.external.result_files import ExternalRun, require_distinct_runs, shuffle_runs

Differences = stats.RankDifferences | stats.PairedDifferences | stats.GroupDifferences
UNIT_FACTORS = {  # ratio of the medians of both sides -> the likely units
    1 / math.log(2): "nats on one side and bits on the other",
    100.0: "fractions on one side and percent on the other",
    1000.0: "units that differ by 1,000",
}
UNIT_TOLERANCE = 0.02


@dataclass(frozen=True)
class Judgment:
    """The decision on the claim "B is better than A by more than the margin", with its evidence.

    Attributes:
        evidence: On B - A.
        sides: The runs of A and of B that the decision uses.
        values: Value of each of these runs, reduced to one number; infinite if it diverged.
        pairs: Values of A and B by seed, or in random pairs where seeds do not pair.
        paired: Whether the runs were compared seed by seed.
        pairing: A sentence that says which, and why.
        obstacle: Why there is no interval; empty if there is one.
        earlier_analyses: Planned interim analyses before this one.
        required_runs: Runs per side for 80% power at the observed effect, in one analysis of that number;
            None if unknown or over 10,000.
    """

    decision: stats.Decision
    evidence: Differences
    sides: list[list[ExternalRun]]
    values: list[list[float]]
    pairs: list[tuple[float, float]]
    paired: bool
    pairing: str
    obstacle: str
    earlier_analyses: int
    required_runs: int | None

    @property
    def is_ranked(self) -> bool:
        """Whether the order of the values decides, since a run diverged."""
        return isinstance(self.evidence, stats.RankDifferences)


def judge_runs(
    a: Sequence[ExternalRun], b: Sequence[ExternalRun], question: Question, *, same_unit: bool = False
) -> Judgment:
    """Decide whether B is better than A by more than the margin.

    Args:
        same_unit: Whether to accept sides whose values differ by a factor between usual units.

    Raises:
        InvalidConfig: the same runs twice, fewer than two runs on a side, a number of runs without an interim
            analysis, runs of unequal length, or other units.
    """
    require_distinct_runs([*a, *b])
    rule = question.select_rule((len(a), len(b)))
    sides, paired, pairing = _pair_runs(a, b)
    finished = [[run for run in side if run.status == "done"] for side in sides]
    for name, runs in zip("AB", finished, strict=True):
        if len(runs) < 2:
            raise InvalidConfig(
                f"{name}: {len(runs)} finished {'run' if len(runs) == 1 else 'runs'}: a comparison takes two "
                "or more on each side, as one run does not show the noise"
            )
    require_equal_steps([run for runs in finished for run in runs], question.reduce)
    values = [[question.get_value(run) for run in side] for side in sides]
    if not same_unit:
        _require_same_unit(values)
    matched = sides if paired else [shuffle_runs(side) for side in sides]
    pairs = [
        (question.get_value(theirs), question.get_value(ours))
        for theirs, ours in zip(*matched, strict=paired)
    ]
    differences = [second - first for first, second in pairs]  # NaN if both diverged
    evidence: Differences
    if any(math.isinf(value) for side in values for value in side):
        evidence = stats.RankDifferences(differences)
        if not paired:
            pairing += (
                "; a run diverged, so runs are compared in random pairs, which change as runs are added: the "
                "verdict holds for one analysis or a few"
            )
    elif paired:
        evidence = stats.PairedDifferences(differences, rule)
    else:
        evidence = stats.GroupDifferences(values[1], values[0], rule)
    [decision] = stats.decide_claims([stats.ClaimTest(evidence, question.region)], ALPHA)
    return Judgment(
        decision, evidence, sides, values, pairs, paired, pairing,
        _explain_missing_interval(decision, evidence, rule), getattr(rule, "index", 0),
        _estimate_required_runs(evidence, differences, question.region),
    )  # fmt: skip


def split_by_arm(runs: Sequence[ExternalRun], path: str, arm_column: str) -> list[list[ExternalRun]]:
    """The runs of the two arms of a file, in the order in which the arms appear.

    Raises:
        InvalidConfig: the file has another number of arms.
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    if len(arms) != 2:
        raise InvalidConfig(
            f"{path}: {len(arms)} arms in the column {arm_column} ({', '.join(map(str, arms))}): a "
            "comparison takes two, A first"
        )
    return [[run for run in runs if run.arm == arm] for arm in arms]


def _pair_runs(
    a: Sequence[ExternalRun], b: Sequence[ExternalRun]
) -> tuple[list[list[ExternalRun]], bool, str]:
    """The runs that count, by seed where both sides have the same; whether they have; and a sentence."""
    sides = [[run for run in side if run.status != "missing"] for side in (a, b)]
    lost_seeds = {run.seed for side in (a, b) for run in side if run.status == "missing"} - {None}
    complete = [[run for run in side if run.seed not in lost_seeds] for side in sides]
    first, second = ({run.seed for run in side} for side in complete)
    if None in first | second:
        return sides, False, "unpaired: not every run has a seed"
    if first == second:
        pairing = f"paired by {len(first)} seeds, which both sides have"
        if lost_seeds:
            pairing += f"; {len(lost_seeds)} left out, for which a run is missing"
        run_by_seed = {run.seed: run for run in complete[1]}
        return [complete[0], [run_by_seed[run.seed] for run in complete[0]]], True, pairing
    alone = sorted(str(seed) for seed in first ^ second)
    listed = ", ".join(alone[:5]) + (", ..." if len(alone) > 5 else "")
    pairing = f"unpaired: one side alone has {'seed' if len(alone) == 1 else 'seeds'} {listed}"
    if len(first & second) > 1:
        pairing += f"; files with the {len(first & second)} shared seeds alone would be paired"
    return sides, False, pairing


def _explain_missing_interval(
    decision: stats.Decision, evidence: Differences, rule: stats.StoppingRule
) -> str:
    """Why there is no interval; empty if there is one."""
    if not isinstance(evidence, stats.RankDifferences) and evidence.tied:
        kind = "differences" if isinstance(evidence, stats.PairedDifferences) else "values of a side"
        return f"all {kind} are equal, which shows no noise"
    low, high = decision.low, decision.high
    if low is None or high is None or low == -high == -math.inf:
        if isinstance(evidence, stats.RankDifferences):
            return "too few runs"
        return f"too few runs: {stats.count_min_seeds(rule, ALPHA / 4)} a side may decide"
    return ""


def _require_same_unit(values: Sequence[Sequence[float]]) -> None:
    """Raise InvalidConfig if the sides differ by a factor between usual units."""
    medians = [statistics.median(value for value in side if math.isfinite(value)) for side in values]
    if min(medians) <= 0:
        return
    ratio = max(medians) / min(medians)
    factors = {
        **UNIT_FACTORS,
        math.exp(min(medians)) / min(medians): "nats on one side and perplexity on the other",
    }
    for factor, meaning in factors.items():
        if abs(ratio / factor - 1) < UNIT_TOLERANCE:
            raise InvalidConfig(
                f"the medians of A and B are {medians[0]:.6g} and {medians[1]:.6g}, which looks like "
                f"{meaning}: convert one side, or add --same-unit if they have one unit"
            )


def _estimate_required_runs(
    evidence: Differences, differences: Sequence[float], region: tuple[float, float]
) -> int | None:
    if isinstance(evidence, stats.GroupDifferences):
        end = region[1] if math.isfinite(region[1]) else region[0]
        if evidence.tied or evidence.estimate is None:
            return None
        return stats.find_group_seeds_needed(abs(evidence.estimate - end) / evidence.pooled_sd, POWER, ALPHA)
    estimate = (
        stats.simulate_seeds_to_decide_median(evidence, region, ALPHA / 2)
        if isinstance(evidence, stats.RankDifferences)
        else stats.estimate_seeds_to_decide(differences, region, ALPHA / 2)
    )
    return estimate.seeds if estimate else None
