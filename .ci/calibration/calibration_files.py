"""Error rates of verdicts on runs that were trained elsewhere, where the truth is known.

`make calibration` writes `docs/calibration_files.md` with it. It draws losses of runs and decides thousands
of comparisons at once, with shorter code than `judge`; a test compares both. Each cell has its own random
stream and can be drawn alone; procedures that are compared in a row decide the same runs.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import count, product
from pathlib import Path

import calibration
import numpy as np
from calibration import format_cells, format_table
from scipy import special

from attnlab.stats.online_discoveries import compute_t_evalue
from attnlab.stats.stopping_rules import (
    FIXED_SAMPLE,
    PRIOR_VARIANCE,
    AnytimeValid,
    FixedSample,
    GroupSequential,
)

COMPARISONS = 40_000
TAIL = 0.025
SEARCHES = 10_000
FDR = 0.05
MAX_PAIRS = 20  # of a candidate to which runs are added
LOOKS = 4, 8, 12, 16
Rule = FixedSample | GroupSequential | AnytimeValid
Plan = Sequence[tuple[int, int, Rule]]  # runs of A, runs of B, and stopping rule of each analysis

NOISES = ("normal", "heavy tails", "skewed")  # of `calibration.NOISES`; as a loss, so a skew is to bad runs
RELATIONS: Mapping[str, tuple[float, bool]] = {  # spread of B's runs, that of A's being 1; paired by seed
    "equal spreads": (1, False),
    "B has twice the spread": (2, False),
    "paired, equal spreads": (1, True),
    "paired, B has twice the spread": (2, True),
}
PLANS: Mapping[str, Plan] = {
    **{str(n): [(n, n, FIXED_SAMPLE)] for n in (3, 5, 7, 10, 20)},
    "looks to 16": [(n, n, GroupSequential(LOOKS, index)) for index, n in enumerate(LOOKS)],
    "anytime to 30": [(n, n, AnytimeValid()) for n in range(2, 31)],
}
UNEQUAL_PLANS: Mapping[str, Plan] = {
    "5 of B, once": [(20, 5, FIXED_SAMPLE)],
    "2 to 20 of B, anytime": [(20, n, AnytimeValid()) for n in range(2, 21)],
}
ALL_PLANS = {**PLANS, **UNEQUAL_PLANS}


def create_stream(*words: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"files {', '.join(map(str, words))}".encode()))


def decide_groups(a: np.ndarray, b: np.ndarray, rule: Rule) -> np.ndarray:
    """Vectorized `GroupDifferences`: per comparison 1 if A's loss is above B's, -1 if it is not, else 0."""
    sizes = a.shape[1], b.shape[1]
    errors = [side.std(1, ddof=1) / math.sqrt(size) for side, size in zip((a, b), sizes, strict=True)]
    if isinstance(rule, AnytimeValid):
        half = sum(
            rule.critical_value(size, TAIL / 2) * error for size, error in zip(sizes, errors, strict=True)
        )
    else:
        squares = errors[0] ** 2 + errors[1] ** 2
        df = squares**2 / sum(error**4 / (size - 1) for size, error in zip(sizes, errors, strict=True))
        half = -special.stdtrit(df, rule.compute_tail(TAIL)) * np.sqrt(squares)
    gain = a.mean(1) - b.mean(1)
    return np.asarray((gain > half) * 1 - (gain <= -half))


def decide_comparisons(a: np.ndarray, b: np.ndarray, plan: Plan, paired: bool) -> np.ndarray:
    """The decision of the first analysis that decides, for losses [comparisons, runs], a margin above B's."""
    verdicts = np.zeros(len(a), int)
    undecided = np.arange(len(a))
    for runs_a, runs_b, rule in plan:
        sides = a[undecided, :runs_a], b[undecided, :runs_b]
        if paired:
            decisions = calibration.decide_by_t(sides[0] - sides[1], rule, (0.0, math.inf), TAIL)
        else:
            decisions = decide_groups(*sides, rule)
        verdicts[undecided] = decisions
        undecided = undecided[decisions == 0]
    return verdicts


def draw_sides(
    noise: str, relation: str, plan: str, comparisons: int = COMPARISONS
) -> tuple[np.ndarray, np.ndarray]:
    """Losses [comparisons, runs] of A and of B, without the margin by which B is better."""
    rng = create_stream(noise, relation, plan)
    runs_a, runs_b, _ = ALL_PLANS[plan][-1]
    draw = calibration.NOISES[noise]
    return draw(rng, (comparisons, runs_a)), RELATIONS[relation][0] * draw(rng, (comparisons, runs_b))


def compute_max_rate(nominal: float, count: int) -> float:
    """The largest rate that may occur by chance: three standard errors above the nominal one."""
    return nominal + 3 * math.sqrt(nominal * (1 - nominal) / count)


def format_wrong_rates(noise: str, relation: str, plan: str) -> str:
    """Wrong SUPPORTED and wrong REFUTED in percent; bold where one is above what chance allows."""
    sides = draw_sides(noise, relation, plan)
    verdicts = decide_comparisons(*sides, ALL_PLANS[plan], RELATIONS[relation][1])
    rates = [float((verdicts == verdict).mean()) for verdict in (1, -1)]
    text = "/".join(f"{100 * rate:.1f}" for rate in rates)
    return f"**{text}**" if max(rates) > compute_max_rate(TAIL, COMPARISONS) else text


Rows = Mapping[tuple[str, ...], Callable[[], Iterable[str]]]


@dataclass(frozen=True)
class Table:
    """A table whose rows can be computed alone: their first cells, and functions that compute the others."""

    head: Sequence[str]
    rows: Rows

    def format_row(self, label: tuple[str, ...]) -> str:
        return format_cells(*label, *self.rows[label]())

    def format(self) -> str:
        return format_table(self.head, map(self.format_row, self.rows))


def create_sides_table(plans: Iterable[str], relations: Iterable[str]) -> Table:
    def format_cells_of(noise: str, relation: str) -> Iterable[str]:
        return (format_wrong_rates(noise, relation, plan) for plan in plans)

    rows: Rows = {labels: partial(format_cells_of, *labels) for labels in product(NOISES, relations)}
    return Table(["noise", "sides", *plans], rows)


@dataclass(frozen=True)
class Search:
    """Candidates that are tested against one champion with the same seeds.

    Attributes:
        better: Proportion of candidates that are better by more than the margin; all others are better by
            exactly the margin.
        effect: By how much these exceed the margin, in sd of a paired difference.
        pairs: Runs of the champion and of each candidate.
        spread: Of a candidate's runs; that of the champion's is 1.
    """

    candidates: int
    better: float
    effect: float
    pairs: int
    noise: str = "normal"
    spread: float = 1.0


@dataclass(frozen=True)
class SearchSample:
    """Runs of many searches, without the margin.

    Attributes:
        champion: Noise in the losses of the first champion [searches, pairs].
        candidates: Noise in the losses of the candidates [searches, candidates, pairs].
        better: Whether a candidate is better by more than the margin [searches, candidates].
        shift: By how much such a candidate exceeds the margin, in sd of the champion's runs.
    """

    champion: np.ndarray
    candidates: np.ndarray
    better: np.ndarray
    shift: float

    def compute_gains(self) -> np.ndarray:
        """Paired differences [searches, candidates, pairs], minus the margin."""
        return self.champion[:, None] - self.candidates + self.shift * self.better[..., None]


def draw_searches(search: Search, searches: int = SEARCHES) -> SearchSample:
    rng = create_stream(*astuple(search))
    draw = calibration.NOISES[search.noise]
    candidates = search.candidates
    is_better = np.arange(candidates) < round(candidates * search.better)
    better = rng.permuted(np.broadcast_to(is_better, (searches, candidates)), axis=1)
    noise = search.spread * draw(rng, (searches * candidates, search.pairs))
    return SearchSample(
        draw(rng, (searches, search.pairs)),
        noise.reshape(searches, candidates, search.pairs),
        better,
        search.effect * math.hypot(1, search.spread),
    )


def compute_evalues(gains: np.ndarray) -> np.ndarray:
    """Vectorized `compute_t_evalue`, of the gains along the last axis."""
    return _compute_evalues(gains.sum(-1), np.square(gains).sum(-1), gains.shape[-1])


def compute_evalue_paths(gains: np.ndarray) -> np.ndarray:
    """The e-value after each gain of the last axis."""
    counts = np.arange(1, gains.shape[-1] + 1)
    return _compute_evalues(gains.cumsum(-1), np.square(gains).cumsum(-1), counts)


def _compute_evalues(sums: np.ndarray, squares: np.ndarray, n: int | np.ndarray) -> np.ndarray:
    precision = n + 1 / PRIOR_VARIANCE
    location = sums / precision
    residual = squares - location**2 * precision
    log_ratio = (n / 2) * np.log(squares / residual) - np.log(1 + n * PRIOR_VARIANCE) / 2
    positive = special.stdtr(n, location / np.sqrt(residual / (n * precision)))
    return np.asarray(2 * np.exp(log_ratio) * positive)


def pass_t_tests(gains: np.ndarray) -> np.ndarray:
    """Whether a one-sided t test at 2.5%, of the gains along the last axis, rejects."""
    n = gains.shape[-1]
    flat = gains.reshape(-1, n)
    verdicts = calibration.decide_by_t(flat, FIXED_SAMPLE, (0.0, math.inf), TAIL)
    return np.asarray(verdicts.reshape(gains.shape[:-1]) == 1)


def compute_online_thresholds(tests: np.ndarray, discoveries: np.ndarray) -> np.ndarray:
    """Vectorized `compute_online_level`, as the e-value that the next test needs."""
    return np.asarray(tests * (tests + 1) / (FDR * (discoveries + 1)))


def accept_online(e_values: np.ndarray) -> np.ndarray:
    """e-LOND on e-values [searches, candidates], in their order."""
    accepted = np.zeros(e_values.shape, bool)
    discoveries = np.zeros(len(e_values))
    for test in range(e_values.shape[1]):
        accepted[:, test] = e_values[:, test] >= compute_online_thresholds(np.array(test + 1), discoveries)
        discoveries += accepted[:, test]
    return accepted


def accept_batches(e_values: np.ndarray) -> np.ndarray:
    """Vectorized `select_discoveries` on e-values [searches, candidates]: e-BH."""
    candidates = e_values.shape[1]
    ordered = -np.sort(-e_values, axis=1)
    ranks = np.arange(1, candidates + 1)
    largest = ((ordered >= candidates / (FDR * ranks)) * ranks).max(1)
    least = np.take_along_axis(ordered, np.maximum(largest - 1, 0)[:, None], axis=1)
    return np.asarray((largest > 0)[:, None] & (e_values >= least))


def accept_with_new_champions(
    sample: SearchSample, accept: Callable[[np.ndarray, int, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Test one candidate after another; an accepted one is the champion of all later tests.

    Its runs are their base, and `better` means better than this champion.

    Args:
        accept: From gains [searches, pairs], the number of the test, and the discoveries so far.
    """
    base = sample.champion.copy()
    accepted = np.zeros(sample.better.shape, bool)
    discoveries = np.zeros(len(base))
    for test in range(accepted.shape[1]):
        noise = sample.candidates[:, test]
        gains = base - noise + sample.shift * sample.better[:, test, None]
        accepted[:, test] = passed = accept(gains, test + 1, discoveries)
        base[passed] = noise[passed]
        discoveries += passed
    return accepted


def accept_after_added_pairs(e_values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Accept a candidate as soon as its e-value suffices, after 2 pairs or more; else go on to the next.

    Args:
        e_values: [searches, candidates, pairs so far, from 1].

    Returns:
        Which candidates are accepted if each added pair is another test, and if each candidate is one test.
    """
    largest = e_values[..., 1:].max(-1)
    accepted = np.zeros(largest.shape, bool)
    tests, discoveries = np.zeros(len(largest)), np.zeros(len(largest))
    for candidate, pairs in product(range(largest.shape[1]), range(1, e_values.shape[-1])):
        is_open = ~accepted[:, candidate]
        tests += is_open
        thresholds = compute_online_thresholds(tests, discoveries)
        passed = is_open & (e_values[:, candidate, pairs] >= thresholds)
        accepted[:, candidate] |= passed
        discoveries += passed
    return accepted, accept_online(largest)


def try_all(sample: SearchSample) -> list[np.ndarray]:
    gains = sample.compute_gains()
    e_values = compute_evalues(gains)
    return [accept_online(e_values), accept_batches(e_values), pass_t_tests(gains)]


def try_with_new_champions(sample: SearchSample) -> list[np.ndarray]:
    def accept(gains: np.ndarray, test: int, discoveries: np.ndarray) -> np.ndarray:
        return np.asarray(compute_evalues(gains) >= compute_online_thresholds(np.array(test), discoveries))

    return [
        accept_with_new_champions(sample, accept),
        accept_with_new_champions(sample, lambda gains, *_: pass_t_tests(gains)),
    ]


def try_after_added_pairs(sample: SearchSample) -> list[np.ndarray]:
    gains = sample.compute_gains()
    by_t = np.any([pass_t_tests(gains[..., :n]) for n in range(2, gains.shape[-1] + 1)], axis=0)
    return [*accept_after_added_pairs(compute_evalue_paths(gains)), by_t]


Procedures = Callable[[SearchSample], list[np.ndarray]]  # accepted candidates [searches, candidates] of each
PROCEDURES: Mapping[Procedures, Sequence[str]] = {
    try_all: ("e-LOND", "e-BH", "t tests"),
    try_with_new_champions: ("e-LOND", "t tests"),
    try_after_added_pairs: ("e-LOND, a test per pair", "e-LOND, a test per candidate", "t tests"),
}
TRUTHS = (0.0, 0.0), (0.1, 2.0), (0.1, 4.0), (0.5, 2.0), (0.5, 4.0)  # `better` and `effect` of a search


def measure_discoveries(accepted: np.ndarray, better: np.ndarray) -> tuple[float, float]:
    """Mean proportion of the accepted candidates that are false; proportion of the better that are found."""
    false = (accepted & ~better).sum(1) / np.maximum(accepted.sum(1), 1)
    return float(false.mean()), float((accepted & better).sum() / max(better.sum(), 1))


def format_discoveries(search: Search, procedures: Procedures) -> Iterable[str]:
    """Per procedure the false discovery rate, bold if above what chance allows, and the found ones."""
    sample = draw_searches(search)
    for accepted in procedures(sample):
        rate, found = measure_discoveries(accepted, sample.better)
        text = f"{100 * rate:.1f}" + (f"/{100 * found:.0f}" if search.better else "")
        yield f"**{text}**" if rate > compute_max_rate(FDR, SEARCHES) else text


def create_search_table(
    procedures: Procedures,
    noise: str = "normal",
    spread: float = 1.0,
    counts: Sequence[int] = (20, 100),
    pairs: Sequence[int] = (5, 10),
) -> Table:
    def format_cells_of(candidates: int, better: float, effect: float) -> Iterable[str]:
        for n in pairs:
            yield from format_discoveries(Search(candidates, better, effect, n, noise, spread), procedures)

    rows = dict[tuple[str, ...], Callable[[], Iterable[str]]]()
    for candidates, (better, effect) in product(counts, TRUTHS):
        share = f"{better:.0%} by {effect:g} sd" if better else "none"
        rows[str(candidates), share] = partial(format_cells_of, candidates, better, effect)
    names = PROCEDURES[procedures]
    heads = [f"{n} pairs: {name}" for n in pairs for name in names] if len(pairs) > 1 else names
    return Table(["candidates", "better", *heads], rows)


def create_limits_table() -> Table:
    """The largest e-value that so many pairs can have, and how many failures in a row it survives."""

    def format_limit(n: int) -> Iterable[str]:
        largest = compute_t_evalue([1.0] * n)  # no noise
        tests = next(t for t in count(1) if compute_online_thresholds(np.array(t), np.array(0)) > largest) - 1
        return f"{largest:,.0f}", f"{tests:,}"

    rows: Rows = {(str(n),): partial(format_limit, n) for n in range(3, 9)}
    return Table(
        ["pairs", "largest e-value", "candidates that can be accepted before the first success"], rows
    )


SKEWED = "skewed", 2.0  # with candidates of twice the spread
ADDED = (20,), (MAX_PAIRS,)
TABLES: Mapping[str, Table] = {
    "sides": create_sides_table([*PLANS], [*RELATIONS]),
    "unequal": create_sides_table(
        [*UNEQUAL_PLANS], [relation for relation, (_, paired) in RELATIONS.items() if not paired]
    ),
    "normal": create_search_table(try_all),
    "limits": create_limits_table(),
    "heavy_tails": create_search_table(try_all, "heavy tails"),
    "skewed": create_search_table(try_all, "skewed"),
    "wider": create_search_table(try_all, *SKEWED),
    "champions": create_search_table(try_with_new_champions),
    "added": create_search_table(try_after_added_pairs, "normal", 1.0, *ADDED),
    "added_wider": create_search_table(try_after_added_pairs, *SKEWED, *ADDED),
}


def fill_page(tables: Mapping[str, str]) -> str:
    """The page with these tables."""
    page = Path(__file__).with_suffix(".md").read_text("utf-8")
    return page.format(comparisons=f"{COMPARISONS:,}", searches=f"{SEARCHES:,}", **tables)


if __name__ == "__main__":
    print(fill_page({name: table.format() for name, table in TABLES.items()}), end="")
