"""Judge two sets of runs that were trained elsewhere: is B better than A by more than the margin?

Runs are paired by seed where both sides have the same seeds, else the groups are compared by Welch's t. If a
run diverged, the order of the runs decides: it is worse than every other run.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnlab import stats
from attnlab.errors import InvalidConfig
from attnlab.external import own_runs
from attnlab.external.noise_floor import ALPHA, POWER, require_equal_steps
from attnlab.external.question import Question
from attnlab.external.result_files import (
    ExternalRun,
    count_equal_values,
    require_distinct_runs,
    shuffle_runs,
)
from attnlab.report.number_format import MINUS, format_bounds, format_number
from attnlab.report.schema import Verdict
from attnlab.report.verdicts.evidence_bases import BASES

VERDICTS = {True: Verdict.SUPPORTED, False: Verdict.REFUTED, None: Verdict.INCONCLUSIVE}
UNIT_FACTORS = {  # ratio of the medians of both sides -> the likely units
    1 / math.log(2): "nats on one side and bits on the other",
    100.0: "fractions on one side and percent on the other",
    1000.0: "units that differ by 1,000",
}
UNIT_TOLERANCE = 0.02


class RunCounts(NamedTuple):
    """Rows that were read of one side, runs that they hold, and runs that the verdict uses."""

    rows: int
    runs: int
    used: int


@dataclass(frozen=True)
class Judgment:
    """The claim "B is better than A by more than the margin", with its decision and the evidence.

    Attributes:
        decision: Of B - A, with an interval at 95%.
        values: Value of each run of A and of B, reduced to one number; infinite if it diverged.
        seeds: Seeds of these runs, or None.
        pairs: Values of A and B by seed, or in random pairs where seeds do not pair.
        paired: Whether the runs were compared seed by seed.
        pairing: A sentence that says which, and why.
        gain: How many times as many runs unpaired sides would need; None if unpaired or unknown.
        basis: "t" or "ranks".
        missing: Runs of A and of B that were lost, and count for neither side.
        required_runs: Runs per side for 80% power at the observed effect, in one analysis of that number;
            None if unknown or over 10,000.
        obstacle: Why there is no interval; empty if there is one.
        incomparable: Reasons against comparing the sides, where the runs are attnlab's own.
        counts: Of A and of B: rows read, runs found, and runs used.
        equal_values: Runs whose value another run has too, in fewer than eight digits.
    """

    decision: stats.Decision
    values: tuple[list[float], list[float]]
    seeds: tuple[list[str | None], list[str | None]]
    pairs: list[tuple[float, float]]
    paired: bool
    pairing: str
    gain: float | None
    basis: str
    missing: tuple[int, int]
    required_runs: int | None
    obstacle: str
    incomparable: list[str]
    counts: tuple[RunCounts, RunCounts]
    equal_values: int

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim."""
        return Verdict.NOT_COMPARABLE if self.incomparable else VERDICTS[self.decision.holds]

    def describe_counts(self) -> str:
        """How many rows and runs each side has, and how many count."""
        text = "; ".join(
            f"{name}: {counts.rows} rows read, {counts.runs} runs found, {counts.used} used"
            for name, counts in zip("AB", self.counts, strict=True)
        )
        if self.equal_values:
            text += f"; {self.equal_values} runs have a value that another run has too"
        return text

    def count_diverged(self) -> tuple[int, int]:
        """Runs of A and of B that diverged."""
        first, second = ([math.isinf(value) for value in side].count(True) for side in self.values)
        return first, second


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
    for name, side in zip("AB", sides, strict=True):
        finished = sum(run.status == "done" for run in side)
        if finished < 2:
            raise InvalidConfig(
                f"{name}: {finished} finished {'run' if finished == 1 else 'runs'}: a comparison takes two "
                "or more on each side, as one run does not show the noise"
            )
    require_equal_steps([run for side in sides for run in side if run.status == "done"], question.reduce)
    values = [[question.get_value(run) for run in side] for side in sides]
    if not same_unit:
        _require_same_unit(values)
    matched = sides if paired else [shuffle_runs(side) for side in sides]
    pairs = [
        (question.get_value(theirs), question.get_value(ours))
        for theirs, ours in zip(*matched, strict=paired)
    ]
    diverged = any(math.isinf(value) for side in values for value in side)
    if diverged and not paired:
        pairing += (
            "; a run diverged, so runs are compared in random pairs, which change as runs are added: the "
            "verdict holds for one analysis or a few"
        )
    differences = [second - first for first, second in pairs]  # NaN if both diverged
    gain = None
    evidence: stats.RankDifferences | stats.PairedDifferences | stats.GroupDifferences
    if diverged:
        evidence = stats.RankDifferences(differences)
    elif paired:
        evidence = stats.PairedDifferences(differences, rule)
        if not evidence.tied:
            gain = stats.measure_pairing_gain(*values).gain
    else:
        evidence = stats.GroupDifferences(values[1], values[0], rule)
    [decision] = stats.decide_claims([stats.ClaimTest(evidence, question.region)], ALPHA)
    seeds = [[run.seed for run in side] for side in sides]
    return Judgment(
        decision, (values[0], values[1]), (seeds[0], seeds[1]), pairs, paired, pairing, gain,
        "ranks" if diverged else "t",
        (sum(run.status == "missing" for run in a), sum(run.status == "missing" for run in b)),
        _estimate_required_runs(evidence, differences, question.region),
        _explain_missing_interval(decision, evidence, rule),
        own_runs.list_incomparable(sides, question.metric),
        (_count_runs(a, sides[0]), _count_runs(b, sides[1])),
        count_equal_values([*a, *b]),
    )  # fmt: skip


def _count_runs(runs: Sequence[ExternalRun], used: Sequence[ExternalRun]) -> RunCounts:
    return RunCounts(sum(run.rows for run in runs), len(runs), len(used))


def describe_judgment(judgment: Judgment, question: Question) -> str:
    """The decision in one sentence."""
    decision, margin = judgment.decision, question.margin
    digits = count_digits(margin)
    interval = (
        f"no interval ({judgment.obstacle})"
        if judgment.obstacle or decision.low is None or decision.high is None
        else f"95% CI {format_bounds(decision.low, decision.high, digits)}"
    )
    estimate = "unknown" if decision.estimate is None else format_number(decision.estimate, digits, sign=True)
    outcome = judgment.verdict
    counts = " and ".join(str(len(side)) for side in judgment.values)
    threshold = f"< {MINUS}{margin:g}" if question.lower_is_better else f"> {margin:g}"
    kind = "median " if BASES[judgment.basis].estimates_median else ""
    return (
        f"B vs A: {kind}difference of {question.metric} {estimate}, {interval}, claim {threshold}: {outcome}"
        f"; {counts} runs, {'paired by seed' if judgment.paired else 'unpaired'}"
        f"{'; ' if judgment.incomparable else ''}{'; '.join(judgment.incomparable)}"
    )


def count_digits(margin: float) -> int:
    """Decimals that show a hundredth of the margin."""
    return max(0, 2 - math.floor(math.log10(margin)))


def summarize_judgment(judgment: Judgment, question: Question) -> dict[str, Any]:
    """The decision as plain JSON, without the exit status."""
    decision, diverged_counts = judgment.decision, judgment.count_diverged()
    return {
        "sentence": describe_judgment(judgment, question),
        "metric": question.metric,
        "direction": "lower" if question.lower_is_better else "higher",
        "margin": question.margin,
        "reduce": question.reduce,
        "looks": question.to_dict()["looks"],
        "estimate": decision.estimate,  # B − A
        "interval": {
            "low": _keep_finite(decision.low), "high": _keep_finite(decision.high), "level": decision.level,
        },
        "basis": judgment.basis,
        "paired": judgment.paired,
        "pairing": judgment.pairing,
        "pairing_gain": judgment.gain,
        "not_comparable": judgment.incomparable,
        "equal_values": judgment.equal_values,
        "required_runs_per_side": judgment.required_runs,  # in one analysis of that number
        **{
            name: {
                "rows_read": counts.rows,
                "runs_found": counts.runs,
                "runs": len(side),
                "diverged": diverged,
                "missing": missing,
                "mean": None if diverged else statistics.mean(side),
                "sd": None if diverged else statistics.stdev(side),
                "values": [_keep_finite(value) for value in side],
                "seeds": seeds,
            }
            for name, side, seeds, diverged, missing, counts in zip(
                "ab", judgment.values, judgment.seeds, diverged_counts, judgment.missing, judgment.counts,
                strict=True,
            )
        },
    }  # fmt: skip


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
    decision: stats.Decision,
    evidence: stats.RankDifferences | stats.PairedDifferences | stats.GroupDifferences,
    rule: stats.StoppingRule,
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
    evidence: stats.Evidence, differences: Sequence[float], region: tuple[float, float]
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


def _keep_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
