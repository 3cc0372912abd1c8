"""Error rates of verdicts where the truth is known. `make calibration` writes `docs/calibration.md` with it.

Sweeps are simulated with the truth at the threshold, decided as a report decides them, and counted. They are
decided by the thousand, so not by the classes that a report uses; a test compares both on every sweep. Each
row of a table has its own random stream and can be drawn alone.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from scipy import special

from attnlab.stats.claim_family import ClaimTest, Decision, decide_claims
from attnlab.stats.evalues import STAKES, WEIGHTS, compute_betting_p_value
from attnlab.stats.evidence import PairedDifferences
from attnlab.stats.sensitivity import run_sign_flip_test
from attnlab.stats.stopping_rules import FIXED_SAMPLE, AnytimeValid, StoppingRule, list_stopping_rules
from attnlab.stats.timing_ratios import bootstrap_ratio
from attnlab.store.experiment_schema import RELATIONS

ALPHA = 0.05
SWEEPS = 40_000
Region = tuple[float, float]
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]  # differences [sweeps, seeds]
Decide = Callable[
    [np.ndarray, StoppingRule, Region, float], np.ndarray
]  # per sweep 1 SUPPORTED, -1 REFUTED, 0
ShowSide = Callable[[int, float, bool], np.ndarray]  # per sweep: beyond an end, or beyond or at it
Plan = Sequence[tuple[int, StoppingRule]]  # seeds and stopping rule of each analysis

_LOOKS = (4, 8, 12, 16), (4, 8, 12, 16, 24)
PLANS: Mapping[str, Plan] = {
    **{str(n): list_stopping_rules(None, n) for n in (2, 3, 4, 6, 8, 12, 16, 24)},
    **{f"looks to {looks[-1]}": list_stopping_rules(looks, looks[-1]) for looks in _LOOKS},
    "by hand to 24": [(n, AnytimeValid()) for n in (5, *range(8, 25))],
}


@dataclass(frozen=True)
class Row:
    """Simulated sweeps and the claim that they test; at its threshold, any decision is wrong."""

    label: str
    draw: Draw
    relation: str
    threshold: float
    decide: Decide

    @property
    def region(self) -> Region:
        """The differences for which the claim holds."""
        return RELATIONS[self.relation].compute_region(self.threshold)

    def get_tail(self) -> float:
        """How often either decision may be wrong: as in `decide_claims`, for a single claim."""
        low, high = self.region
        return ALPHA if low < 0 < high else ALPHA / 2


def decide_by_t(values: np.ndarray, stopping_rule: StoppingRule, region: Region, tail: float) -> np.ndarray:
    """Vectorized `PairedDifferences`."""
    n = values.shape[1]
    sd = values.std(1, ddof=1)
    with np.errstate(invalid="ignore"):  # ties under an infinite boundary
        half = stopping_rule.critical_value(n, tail) * sd / math.sqrt(n)
    low = values.mean(1) - half
    high = values.mean(1) + half
    is_inside = (region[0] < low) & (high < region[1])
    is_outside = (high <= region[0]) | (low >= region[1])
    return np.asarray(
        (is_inside * 1 - is_outside) * (sd > 1e-12 * np.abs(values).max(1))
    )  # ties decide nothing


def decide_by_evalues(
    values: np.ndarray, stopping_rule: StoppingRule, region: Region, tail: float
) -> np.ndarray:
    """Vectorized `ProportionDifferences`: bets on the mean of differences in [-1, 1]."""

    def is_shown(side: int, end: float, strict: bool) -> np.ndarray:  # side 1: above the end, -1: below it
        gains = (1 + side * values) / (1 + side * end) - 1
        return np.asarray(WEIGHTS @ np.prod(1 + STAKES[:, None, None] * gains, axis=2) >= 1 / tail)

    return _combine_sides(is_shown, region)


def decide_by_ranks(
    values: np.ndarray, stopping_rule: StoppingRule, region: Region, tail: float
) -> np.ndarray:
    """Vectorized `RankDifferences`: bets on the side of the threshold on which a difference lies."""
    n = values.shape[1]
    needed = next((k for k in range(n + 1) if compute_betting_p_value(np.arange(n) < k, 0.5) <= tail), n + 1)
    comparisons = {True: np.greater, False: np.greater_equal}
    return _combine_sides(
        lambda side, end, strict: comparisons[strict](side * values, side * end).sum(1) >= needed, region
    )


def _combine_sides(is_shown: ShowSide, region: Region) -> np.ndarray:
    ends = [(side, end) for side, end in zip((1, -1), region, strict=True) if math.isfinite(end)]
    supported = np.all([is_shown(side, end, True) for side, end in ends], axis=0)
    return np.asarray(supported * 1 - np.any([is_shown(-side, end, False) for side, end in ends], axis=0))


def decide_by_t_or_ranks(
    values: np.ndarray, stopping_rule: StoppingRule, region: Region, tail: float
) -> np.ndarray:
    """Decide by t, but by ranks as soon as a run has failed."""
    has_failure = ~np.isfinite(values).all(1, keepdims=True)
    by_t = decide_by_t(np.where(has_failure, 0, values), stopping_rule, region, tail)
    return np.where(has_failure[:, 0], decide_by_ranks(values, stopping_rule, region, tail), by_t)


def decide_sweeps(row: Row, values: np.ndarray, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """A decision per sweep, and its seeds: those of the analysis that decided, else of the last one."""
    tail = row.get_tail()
    verdicts = np.zeros(len(values), int)
    seeds = np.full(len(values), plan[-1][0])
    undecided = np.arange(len(values))
    for n, stopping_rule in plan:
        verdicts[undecided] = decisions = row.decide(values[undecided, :n], stopping_rule, row.region, tail)
        seeds[undecided[decisions != 0]] = n
        undecided = undecided[decisions == 0]
    return verdicts, seeds


def draw_sweeps(row: Row, sweeps: int, seeds: int) -> np.ndarray:
    """Differences [sweeps, seeds] of a row, from its own random stream."""
    return row.draw(np.random.default_rng(zlib.crc32(row.label.encode())), (sweeps, seeds))


def measure_rates(
    row: Row, plans: Mapping[str, Plan], sweeps: int = SWEEPS
) -> dict[str, tuple[float, float]]:
    """Per plan the proportions of SUPPORTED and of REFUTED."""
    values = draw_sweeps(row, sweeps, max(plan[-1][0] for plan in plans.values()))
    rates = {}
    for name, plan in plans.items():
        verdicts, _ = decide_sweeps(row, values, plan)
        rates[name] = float((verdicts == 1).mean()), float((verdicts == -1).mean())
    return rates


def get_max_rate(row: Row, sweeps: int = SWEEPS) -> float:
    """The largest rate that may occur by chance: three standard errors above the allowed one."""
    return row.get_tail() + 3 * math.sqrt(row.get_tail() * (1 - row.get_tail()) / sweeps)


# Noise of mean 0 and sd 1, and its median. One seed in ten has 10 times the sd, or lies 10 sd above the rest.
_SKEW = math.sqrt((math.e - 1) * math.e)
_WORSE = math.sqrt(10)
NOISES: Mapping[str, Draw] = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "skewed": lambda draw, shape: (draw.lognormal(size=shape) - math.exp(0.5)) / _SKEW,
    "heavy tails": lambda draw, shape: draw.standard_t(3, shape) / math.sqrt(3),
    "wild seeds": lambda draw, shape: draw.normal(0, np.where(draw.random(shape) < 0.1, 10, 1) / 10.9**0.5),
    "bad seeds": lambda draw, shape: (draw.normal(10 * (draw.random(shape) < 0.1), 1) - 1) / _WORSE,
    "two modes": lambda draw, shape: draw.normal(draw.choice([-1, 1], shape), 0.1) / math.sqrt(1.01),
}
MEDIANS: Mapping[str, float] = dict.fromkeys(NOISES, 0.0) | {
    "skewed": (1 - math.exp(0.5)) / _SKEW,
    "bad seeds": (float(special.ndtri(0.5 / 0.9)) - 1) / _WORSE,  # one seed in ten lies far above
}


def shift_noise(noise: Draw, shift: float) -> Draw:
    return lambda draw, shape: noise(draw, shape) + shift


def list_claims(noise: str) -> list[Row]:
    """The claims that t decides: one that asserts a difference, and tolerances of 1 sd and of 1.65 sd."""
    relations = (("above", 0.0), ("below", 1.0), ("within", 1.0), ("within", 1.65))
    return [
        Row(
            f"{noise}: {relation} {threshold:g} sd",
            shift_noise(NOISES[noise], threshold),
            relation,
            threshold,
            decide_by_t,
        )
        for relation, threshold in relations
    ]


def create_solved_pairs(arm_chance: float, baseline_chance: float) -> Draw:
    """Differences of pairs of runs that solve a task or do not."""
    return lambda draw, shape: (
        1.0 * (draw.random(shape) < arm_chance) - (draw.random(shape) < baseline_chance)
    )


def create_accuracy_pairs(arm_chance: float, baseline_chance: float) -> Draw:
    """Differences of accuracies: 0.96 to 0.98 of a run that solves the task, and 0.02 to 0.04 of others."""
    pairs = create_solved_pairs(arm_chance, baseline_chance)
    return lambda draw, shape: 0.94 * pairs(draw, shape) + draw.triangular(-0.02, 0, 0.02, shape)


def create_failing_pairs(chance: float, both: bool = False) -> Draw:
    """Differences of median 0, infinite where the arm (or with `both` either) failed, NaN where both did."""
    median_quantile = 0.5 if both else min(0.5 / (1 - chance), 1 - 1e-9)

    def draw_pairs(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        differences = np.where(
            draw.random(shape) < chance, math.inf, draw.normal(-special.ndtri(median_quantile), 1, shape)
        )
        baseline_fails = draw.random(shape) < chance * both
        return np.where(baseline_fails, np.where(np.isinf(differences), math.nan, -math.inf), differences)

    return draw_pairs


# Weights of arms, and the spread of each arm's noise beside what the runs of a seed share.
CONTRASTS: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    "an arm against the mean of two": ((1, -0.5, -0.5), (1, 0.5, 2)),
    "interaction": ((1, -1, -1, 1), (1, 0.5, 2, 1)),
}


def create_contrast(noise: Draw, weights: Sequence[float], scales: Sequence[float]) -> Draw:
    """A weighted sum of arms without a true difference, of sd 1; the noise that seeds share cancels."""
    spread = math.sqrt(sum((weight * scale) ** 2 for weight, scale in zip(weights, scales, strict=True)))

    def draw_sums(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        shared = draw.normal(0, 3, shape)
        arms = [shared + scale * noise(draw, shape) for scale in scales]
        return sum(weight * arm for weight, arm in zip(weights, arms, strict=True)) / spread

    return draw_sums


def list_contrast_claims() -> list[Row]:
    return [
        Row(
            f"{label}, {noise}: {relation} {threshold:g} sd",
            shift_noise(create_contrast(NOISES[noise], *arms), threshold),
            relation,
            threshold,
            decide_by_t,
        )
        for label, arms in CONTRASTS.items()
        for noise in ("normal", "skewed")
        for relation, threshold in (("above", 0.0), ("below", 1.0), ("within", 1.65))
    ]


# Claims of one experiment about the same four arms, each as weights; none has a true difference.
FAMILIES: Mapping[str, Sequence[Sequence[float]]] = {
    "three steps and their ends": ((-1, 1, 0, 0), (0, -1, 1, 0), (0, 0, -1, 1), (-1, 0, 0, 1)),
    "two effects and their interaction": ((-1, 1, 0, 0), (-1, 0, 1, 0), (1, -1, -1, 1)),
    "three parts left out": ((-1, 1, 0, 0), (-1, 0, 1, 0), (-1, 0, 0, 1)),
}


def measure_family_error(claims: Sequence[Sequence[float]], plan: Plan, sweeps: int) -> float:
    """How often at least one claim "above 0" is decided, as a report decides the family by Holm's method."""
    rng = np.random.default_rng(zlib.crc32(repr(claims).encode()))
    wrong = 0
    for _ in range(sweeps):
        arms = rng.normal(size=(4, plan[-1][0])) + rng.normal(0, 3, plan[-1][0])
        decisions = list[Decision]()
        for n, stopping_rule in plan:
            tests = [
                ClaimTest(
                    PairedDifferences(np.asarray(weights) @ arms[:, :n], stopping_rule), (0.0, math.inf)
                )
                for weights in claims
            ]
            decisions = decide_claims(tests, previous=decisions)
        wrong += any(decision.holds is not None for decision in decisions)
    return wrong / sweeps


def format_family_table(sweeps: int = 4000) -> str:
    plans = {name: PLANS[name] for name in ("4", "8", "looks to 16")}
    lines = [
        format_cells(label, *(f"{measure_family_error(claims, plan, sweeps):.1%}" for plan in plans.values()))
        for label, claims in FAMILIES.items()
    ]
    return format_table(["claims", *plans], lines)


PROPORTION_ROWS = (
    Row(
        "both solve it half the time: above 0", create_solved_pairs(0.5, 0.5), "above", 0.0, decide_by_evalues
    ),
    Row(
        "both solve it 9 times in 10: above 0", create_solved_pairs(0.9, 0.9), "above", 0.0, decide_by_evalues
    ),
    Row(
        "85 % against 95 %: loses at most 0.1",
        create_solved_pairs(0.85, 0.95),
        "above",
        -0.1,
        decide_by_evalues,
    ),
    Row("85 % against 95 %: within 0.1", create_solved_pairs(0.85, 0.95), "within", 0.1, decide_by_evalues),
    Row(
        "90 % against always: loses at most 0.1",
        create_solved_pairs(0.9, 1.0),
        "above",
        -0.1,
        decide_by_evalues,
    ),
    Row(
        "accuracies, likewise: loses at most 0.094",
        create_accuracy_pairs(0.9, 1.0),
        "above",
        -0.094,
        decide_by_evalues,
    ),
    Row(
        "accuracies, 85 % against 95 %: at most 0.094",
        create_accuracy_pairs(0.85, 0.95),
        "above",
        -0.094,
        decide_by_evalues,
    ),
)
RANK_ROWS = (
    Row("two modes, the median between: above 0", NOISES["two modes"], "above", 0.0, decide_by_ranks),
    *(
        Row(f"the arm fails {q:.0%}: below 0", create_failing_pairs(q), "below", 0.0, decide_by_ranks)
        for q in (0.1, 0.3, 0.5)
    ),
    Row(
        "the arm fails 30%: below 1 sd",
        shift_noise(create_failing_pairs(0.3), 1.0),
        "below",
        1.0,
        decide_by_ranks,
    ),
    Row(
        "the arm fails 30%: within 1 sd",
        shift_noise(create_failing_pairs(0.3), 1.0),
        "within",
        1.0,
        decide_by_ranks,
    ),
    Row("either arm fails 30%: below 0", create_failing_pairs(0.3, both=True), "below", 0.0, decide_by_ranks),
)


def format_row(row: Row, plans: Mapping[str, Plan] = PLANS, sweeps: int = SWEEPS) -> str:
    """A table row: per plan wrong SUPPORTED and REFUTED in percent, bold where one is too frequent."""
    cells = []
    for rates in measure_rates(row, plans, sweeps).values():
        cell = "/".join(f"{100 * rate:.1f}" for rate in rates)
        cells.append(f"**{cell}**" if max(rates) > get_max_rate(row, sweeps) else cell)
    return format_cells(row.label, *cells)


def format_cells(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def format_table(head: Sequence[str], lines: Iterable[str]) -> str:
    return "\n".join([format_cells(*head), format_cells(*("---" for _ in head)), *lines])


def format_error_table(rows: Iterable[Row]) -> str:
    return format_table(["claim", *PLANS], map(format_row, rows))


def format_stopping_table() -> str:
    """Seeds added until a claim is SUPPORTED; and interim analyses at other numbers of seeds than planned."""
    rows = [
        replace(row, decide=lambda *args: np.maximum(decide_by_t(*args), 0))
        for row in list_claims("normal")[:3]
    ]
    stopping_rules: Mapping[str, StoppingRule] = {
        "t for fixed seeds": FIXED_SAMPLE,
        "anytime": AnytimeValid(),
    }
    plans = {
        label: [(n, stopping_rule) for n in (5, *range(8, 31))]
        for label, stopping_rule in stopping_rules.items()
    }
    plans["looks to 24, each a pair short"] = [
        (n - 1, stopping_rule) for n, stopping_rule in PLANS["looks to 24"]
    ]
    rates_by_row = [measure_rates(row, plans) for row in rows]
    lines = [format_cells(label, *(f"{rates[label][0]:.1%}" for rates in rates_by_row)) for label in plans]
    return format_table(["interval", *(row.label for row in rows)], lines)


def format_sign_flip_table(sweeps: int = 4000) -> str:
    """At 8 seeds without a difference: how often t, and how often sign flips, find one at 5%."""
    lines = []
    for row in [list_claims(noise)[0] for noise in NOISES]:
        values = draw_sweeps(row, sweeps, 8)
        rejected_by_t = decide_sweeps(row, values, PLANS["8"])[0] != 0
        not_rejected_by_flips = np.array([(run_sign_flip_test(sweep).p or 0) > ALPHA for sweep in values])
        rates = (
            rejected_by_t.mean(),
            1 - not_rejected_by_flips.mean(),
            not_rejected_by_flips[rejected_by_t].mean(),
        )
        lines.append(format_cells(row.label, *(f"{share:.1%}" for share in rates)))
    return format_table(["claim", "t errs", "sign flips err", "sign flips object where t errs"], lines)


def list_coverage_rows() -> list[Row]:
    """Claims to lie above the truth, at the truth itself: decided where the 95% interval misses it."""
    t = {f"mean by t: {noise}": draw for noise, draw in NOISES.items()}
    t["ratio by t of logarithms: F"] = lambda draw, shape: np.log(draw.f(8, 8, shape))
    ranks = {
        f"median by ranks: {noise}": shift_noise(draw, -MEDIANS[noise]) for noise, draw in NOISES.items()
    }
    ranks["median by ranks: the arm fails 30%"] = create_failing_pairs(0.3)
    return [
        *(Row(label, draw, "above", 0.0, decide_by_t) for label, draw in t.items()),
        *(Row(label, draw, "above", 0.0, decide_by_ranks) for label, draw in ranks.items()),
        Row(
            "share: 95 % against 85 % solve it",
            create_solved_pairs(0.95, 0.85),
            "above",
            0.1,
            decide_by_evalues,
        ),
        Row(
            "share: accuracies, 95 % against 85 %",
            create_accuracy_pairs(0.95, 0.85),
            "above",
            0.094,
            decide_by_evalues,
        ),
    ]


COVERAGE_PLANS: Mapping[str, Plan] = {
    "8 seeds": PLANS["8"],
    "all looks to 24": PLANS["looks to 24"],
    "every number from 2 to 30": [(n, AnytimeValid()) for n in range(2, 31)],
}


def format_coverage_table() -> str:
    rates_by_row = ((row.label, measure_rates(row, COVERAGE_PLANS).values()) for row in list_coverage_rows())
    lines = [
        format_cells(label, *(f"{1 - sum(error_rates):.1%}" for error_rates in rates))
        for label, rates in rates_by_row
    ]
    lines += [
        format_cells(f"ratio of medians: {n} blocks", f"{measure_timing_coverage(n):.1%}", "", "")
        for n in (10, 30)
    ]
    return format_table(["interval", *COVERAGE_PLANS], lines)


def measure_timing_coverage(blocks: int, sweeps: int = 1000) -> float:
    """How often the bootstrap interval covers the ratio of two arms timed in turn, under a common drift."""
    rng = np.random.default_rng(blocks)
    covered = 0
    for _ in range(sweeps):
        drift, (a, b) = np.exp(rng.normal(0, 0.03, (blocks, 1))), rng.normal(1, 0.02, (2, blocks, 2))
        low, high = bootstrap_ratio(1.2 * drift * a, drift * b, resamples=999).interval(1 - ALPHA) or (0, 0)
        covered += low <= 1.2 <= high
    return covered / sweeps


def format_cost_table() -> str:
    lines = []
    for margin, fraction in product((1.65, 1.0), (0.0, 0.5, 1.0)):
        row = Row(
            f"{margin}, {fraction}",
            shift_noise(NOISES["normal"], fraction * margin),
            "below",
            margin,
            decide_by_t,
        )
        decisions = [
            decide_sweeps(row, draw_sweeps(row, SWEEPS, 24), PLANS[name])
            for name in ("8", "24", "looks to 24")
        ]
        support_rates = [f"{(verdicts == 1).mean():.1%}" for verdicts, _ in decisions]
        lines.append(
            format_cells(
                f"{margin:g} sd", f"{fraction:g} of it", *support_rates, f"{decisions[-1][1].mean():.1f}"
            )
        )
    return format_table(
        ["margin", "truth", "8 seeds", "24 seeds", "looks to 24", "mean seeds of the looks"], lines
    )


TABLES: Mapping[str, Callable[[], str]] = {
    "normal": lambda: format_error_table(list_claims("normal")),
    "stopped": format_stopping_table,
    "free": lambda: format_error_table([*PROPORTION_ROWS, *RANK_ROWS]),
    "other": lambda: format_error_table(row for noise in [*NOISES][1:] for row in list_claims(noise)[:3]),
    "shares_by_t": lambda: format_error_table(replace(row, decide=decide_by_t) for row in PROPORTION_ROWS),
    "either": lambda: format_error_table(replace(row, decide=decide_by_t_or_ranks) for row in RANK_ROWS[1:]),
    "contrasts": lambda: format_error_table(list_contrast_claims()),
    "families": format_family_table,
    "flips": format_sign_flip_table,
    "coverage": format_coverage_table,
    "costs": format_cost_table,
}

if __name__ == "__main__":
    page = Path(__file__).with_suffix(".md").read_text("utf-8")
    print(page.format(sweeps=f"{SWEEPS:,}", **{name: table() for name, table in TABLES.items()}), end="")
