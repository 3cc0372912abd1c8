"""How often a verdict is wrong where the truth is known: sweeps are drawn with the truth at the threshold,
decided as a report decides them, and counted. `make calibration` writes `docs/calibration.md` with it.

Surprising: sweeps are decided by the thousand, so not by the classes that a report calls; a test holds both
to the same word on every sweep. Each row of a table has a stream of its own and can be drawn alone.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from scipy import special

from attnlab.stats.betting import STAKES, WEIGHTS, doubt
from attnlab.stats.blocks import ratio_draws
from attnlab.stats.designs import FIXED, Anytime, Design, designs
from attnlab.stats.sensitivity import sign_flip
from attnlab.store.declarations import RELATIONS

ALPHA = 0.05
SWEEPS = 40_000
Where = tuple[float, float]
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]  # differences [sweeps, seeds]
Read = Callable[[np.ndarray, Design, Where, float], np.ndarray]  # per sweep 1 SUPPORTED, -1 REFUTED, 0
Shown = Callable[[int, float, bool], np.ndarray]  # per sweep, that it lies beyond an end, or beyond or at it
Plan = Sequence[tuple[int, Design]]  # seeds at each look, and what is made of them

_LOOKS = (4, 8, 12, 16), (4, 8, 12, 16, 24)
PLANS: Mapping[str, Plan] = {
    **{str(n): designs(None, n) for n in (2, 3, 4, 6, 8, 12, 16, 24)},
    **{f"looks to {looks[-1]}": designs(looks, looks[-1]) for looks in _LOOKS},
    "by hand to 24": [(n, Anytime()) for n in (5, *range(8, 25))],
}


@dataclass(frozen=True)
class Row:
    """Sweeps and the claim that is put to them; where the truth is its threshold, any decision is wrong."""

    says: str
    draw: Draw
    relation: str
    threshold: float
    read: Read

    @property
    def region(self) -> Where:
        """The differences for which the claim holds."""
        return RELATIONS[self.relation].region(self.threshold)

    def tail(self) -> float:
        """How often either decision may be wrong: as in `decide`, of one claim alone."""
        low, high = self.region
        return ALPHA if low < 0 < high else ALPHA / 2


def by_t(values: np.ndarray, design: Design, where: Where, tail: float) -> np.ndarray:
    """As `Differences`."""
    n = values.shape[1]
    sd = values.std(1, ddof=1)
    with np.errstate(invalid="ignore"):  # a tie under an infinite boundary
        half = design.critical(n, tail) * sd / math.sqrt(n)
    low = values.mean(1) - half
    high = values.mean(1) + half
    holds = (where[0] < low) & (high < where[1])
    fails = (high <= where[0]) | (low >= where[1])
    return np.asarray((holds * 1 - fails) * (sd > 1e-12 * np.abs(values).max(1)))  # not where they are tied


def by_shares(values: np.ndarray, design: Design, where: Where, tail: float) -> np.ndarray:
    """As `Shares`: bets on the mean of differences in [-1, 1]."""

    def shown(side: int, end: float, strict: bool) -> np.ndarray:  # side 1: above the end, -1: below it
        gains = (1 + side * values) / (1 + side * end) - 1
        return np.asarray(WEIGHTS @ np.prod(1 + STAKES[:, None, None] * gains, axis=2) >= 1 / tail)

    return _sided(shown, where)


def by_ranks(values: np.ndarray, design: Design, where: Where, tail: float) -> np.ndarray:
    """As `Ranks`: bets on the side of the threshold on which a difference lies."""
    n = values.shape[1]
    needed = next((k for k in range(n + 1) if doubt(np.arange(n) < k, 0.5) <= tail), n + 1)
    beyond = {True: np.greater, False: np.greater_equal}
    return _sided(lambda side, end, strict: beyond[strict](side * values, side * end).sum(1) >= needed, where)


def _sided(shown: Shown, where: Where) -> np.ndarray:
    ends = [(side, end) for side, end in zip((1, -1), where, strict=True) if math.isfinite(end)]
    holds = np.all([shown(side, end, True) for side, end in ends], axis=0)
    return np.asarray(holds * 1 - np.any([shown(-side, end, False) for side, end in ends], axis=0))


def by_either(values: np.ndarray, design: Design, where: Where, tail: float) -> np.ndarray:
    """By t, but by ranks as soon as a run has failed."""
    failed = ~np.isfinite(values).all(1, keepdims=True)
    t = by_t(np.where(failed, 0, values), design, where, tail)
    return np.where(failed[:, 0], by_ranks(values, design, where, tail), t)


def verdicts(row: Row, values: np.ndarray, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """A word per sweep, and its seeds: those of the look that decided, else of the last one."""
    tail = row.tail()
    words = np.zeros(len(values), int)
    seeds = np.full(len(values), plan[-1][0])
    left = np.arange(len(values))
    for n, design in plan:
        words[left] = found = row.read(values[left, :n], design, row.region, tail)
        seeds[left[found != 0]] = n
        left = left[found == 0]
    return words, seeds


def drawn(row: Row, sweeps: int, seeds: int) -> np.ndarray:
    return row.draw(np.random.default_rng(zlib.crc32(row.says.encode())), (sweeps, seeds))


def rates(row: Row, plans: Mapping[str, Plan], sweeps: int = SWEEPS) -> dict[str, tuple[float, float]]:
    """Per plan the shares of SUPPORTED and of REFUTED."""
    values = drawn(row, sweeps, max(plan[-1][0] for plan in plans.values()))
    found = {}
    for name, plan in plans.items():
        words, _ = verdicts(row, values, plan)
        found[name] = float((words == 1).mean()), float((words == -1).mean())
    return found


def most(row: Row, sweeps: int = SWEEPS) -> float:
    """The largest rate that may come by chance: three standard errors above what is allowed."""
    return row.tail() + 3 * math.sqrt(row.tail() * (1 - row.tail()) / sweeps)


# Noise of mean 0 and sd 1, and its median. One seed in ten is 10 times as wild, or 10 sd above the others.
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
    "bad seeds": (float(special.ndtri(0.5 / 0.9)) - 1) / _WORSE,  # the tenth seed lies far above
}


def moved(noise: Draw, by: float) -> Draw:
    return lambda draw, shape: noise(draw, shape) + by


def claims(noise: str) -> list[Row]:
    """What is decided by t: a claim that asserts a difference, and tolerances of 1 sd and of 1.65 sd."""
    kinds = (("above", 0.0), ("below", 1.0), ("within", 1.0), ("within", 1.65))
    return [Row(f"{noise}: {word} {m:g} sd", moved(NOISES[noise], m), word, m, by_t) for word, m in kinds]


def solved(ours: float, theirs: float) -> Draw:
    """Pairs of runs that solve a task or do not."""
    return lambda draw, shape: 1.0 * (draw.random(shape) < ours) - (draw.random(shape) < theirs)


def accurate(ours: float, theirs: float) -> Draw:
    """Pairs of accuracies: 0.96 to 0.98 of a run that solves the task, and 0.02 to 0.04 of others."""
    pairs = solved(ours, theirs)
    return lambda draw, shape: 0.94 * pairs(draw, shape) + draw.triangular(-0.02, 0, 0.02, shape)


def failing(chance: float, both: bool = False) -> Draw:
    """Differences of median 0, infinite where the arm (or with `both` either) failed, NaN where both did."""
    inside = 0.5 if both else min(0.5 / (1 - chance), 1 - 1e-9)

    def made(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        found = np.where(draw.random(shape) < chance, math.inf, draw.normal(-special.ndtri(inside), 1, shape))
        theirs = draw.random(shape) < chance * both
        return np.where(theirs, np.where(np.isinf(found), math.nan, -math.inf), found)

    return made


SHARES = (
    Row("both solve it half the time: above 0", solved(0.5, 0.5), "above", 0.0, by_shares),
    Row("both solve it 9 times in 10: above 0", solved(0.9, 0.9), "above", 0.0, by_shares),
    Row("85 % against 95 %: loses at most 0.1", solved(0.85, 0.95), "above", -0.1, by_shares),
    Row("85 % against 95 %: within 0.1", solved(0.85, 0.95), "within", 0.1, by_shares),
    Row("90 % against always: loses at most 0.1", solved(0.9, 1.0), "above", -0.1, by_shares),
    Row("accuracies, likewise: loses at most 0.094", accurate(0.9, 1.0), "above", -0.094, by_shares),
    Row("accuracies, 85 % against 95 %: at most 0.094", accurate(0.85, 0.95), "above", -0.094, by_shares),
)
RANKS = (
    Row("two modes, the median between: above 0", NOISES["two modes"], "above", 0.0, by_ranks),
    *(Row(f"the arm fails {q:.0%}: below 0", failing(q), "below", 0.0, by_ranks) for q in (0.1, 0.3, 0.5)),
    Row("the arm fails 30%: below 1 sd", moved(failing(0.3), 1.0), "below", 1.0, by_ranks),
    Row("the arm fails 30%: within 1 sd", moved(failing(0.3), 1.0), "within", 1.0, by_ranks),
    Row("either arm fails 30%: below 0", failing(0.3, both=True), "below", 0.0, by_ranks),
)


def line(row: Row, plans: Mapping[str, Plan] = PLANS, sweeps: int = SWEEPS) -> str:
    """A row of a table: per plan wrong SUPPORTED and REFUTED in per cent, bold where one is too frequent."""
    cells = []
    for found in rates(row, plans, sweeps).values():
        text = "/".join(f"{100 * rate:.1f}" for rate in found)
        cells.append(f"**{text}**" if max(found) > most(row, sweeps) else text)
    return format_cells(row.says, *cells)


def format_cells(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def format_table(head: Sequence[str], lines: Iterable[str]) -> str:
    return "\n".join([format_cells(*head), format_cells(*("---" for _ in head)), *lines])


def wrong(rows: Iterable[Row]) -> str:
    return format_table(["claim", *PLANS], map(line, rows))


def stopped() -> str:
    """Seeds that are added until a claim is SUPPORTED; and looks that are not quite what they were to be."""
    rows = [replace(row, read=lambda *given: np.maximum(by_t(*given), 0)) for row in claims("normal")[:3]]
    kinds: Mapping[str, Design] = {"t for fixed seeds": FIXED, "anytime": Anytime()}
    plans = {says: [(n, design) for n in (5, *range(8, 31))] for says, design in kinds.items()}
    plans["looks to 24, each a pair short"] = [(n - 1, design) for n, design in PLANS["looks to 24"]]
    found = [rates(row, plans) for row in rows]
    lines = [format_cells(says, *(f"{rate[says][0]:.1%}" for rate in found)) for says in plans]
    return format_table(["interval", *(row.says for row in rows)], lines)


def flips(sweeps: int = 4000) -> str:
    """At 8 seeds, where nothing differs: how often t, and how often sign flips, find a difference at 5 %."""
    lines = []
    for row in [claims(noise)[0] for noise in NOISES]:
        values = drawn(row, sweeps, 8)
        t = verdicts(row, values, PLANS["8"])[0] != 0
        objects = np.array([(sign_flip(sweep).p or 0) > ALPHA for sweep in values])
        shares = t.mean(), 1 - objects.mean(), objects[t].mean()
        lines.append(format_cells(row.says, *(f"{share:.1%}" for share in shares)))
    return format_table(["claim", "t errs", "sign flips err", "sign flips object where t errs"], lines)


def covered() -> list[Row]:
    """Claims to lie above the truth, at its very threshold, are decided where the 95 % interval misses it."""
    t = {f"mean by t: {noise}": draw for noise, draw in NOISES.items()}
    t["ratio by t of logarithms: F"] = lambda draw, shape: np.log(draw.f(8, 8, shape))
    ranks = {f"median by ranks: {noise}": moved(draw, -MEDIANS[noise]) for noise, draw in NOISES.items()}
    ranks["median by ranks: the arm fails 30%"] = failing(0.3)
    return [
        *(Row(says, draw, "above", 0.0, by_t) for says, draw in t.items()),
        *(Row(says, draw, "above", 0.0, by_ranks) for says, draw in ranks.items()),
        Row("share: 95 % against 85 % solve it", solved(0.95, 0.85), "above", 0.1, by_shares),
        Row("share: accuracies, 95 % against 85 %", accurate(0.95, 0.85), "above", 0.094, by_shares),
    ]


TOGETHER: Mapping[str, Plan] = {
    "8 seeds": PLANS["8"],
    "all looks to 24": PLANS["looks to 24"],
    "every number from 2 to 30": [(n, Anytime()) for n in range(2, 31)],
}


def coverage() -> str:
    found = ((row.says, rates(row, TOGETHER).values()) for row in covered())
    lines = [format_cells(says, *(f"{1 - sum(missed):.1%}" for missed in rate)) for says, rate in found]
    lines += [format_cells(f"ratio of medians: {n} blocks", f"{of_times(n):.1%}", "", "") for n in (10, 30)]
    return format_table(["interval", *TOGETHER], lines)


def of_times(blocks: int, sweeps: int = 1000) -> float:
    """How often the bootstrap's interval covers the ratio of two arms timed in turn, under a common drift."""
    draw = np.random.default_rng(blocks)
    held = 0
    for _ in range(sweeps):
        drift, (a, b) = np.exp(draw.normal(0, 0.03, (blocks, 1))), draw.normal(1, 0.02, (2, blocks, 2))
        low, high = ratio_draws(1.2 * drift * a, drift * b, resamples=999).interval(1 - ALPHA) or (0, 0)
        held += low <= 1.2 <= high
    return held / sweeps


def costs() -> str:
    lines = []
    for margin, share in product((1.65, 1.0), (0.0, 0.5, 1.0)):
        row = Row(f"{margin}, {share}", moved(NOISES["normal"], share * margin), "below", margin, by_t)
        found = [verdicts(row, drawn(row, SWEEPS, 24), PLANS[name]) for name in ("8", "24", "looks to 24")]
        shares = [f"{(words == 1).mean():.1%}" for words, _ in found]
        lines.append(
            format_cells(f"{margin:g} sd", f"{share:g} of it", *shares, f"{found[-1][1].mean():.1f}")
        )
    return format_table(
        ["margin", "truth", "8 seeds", "24 seeds", "looks to 24", "mean seeds of the looks"], lines
    )


TABLES: Mapping[str, Callable[[], str]] = {
    "normal": lambda: wrong(claims("normal")),
    "stopped": stopped,
    "free": lambda: wrong([*SHARES, *RANKS]),
    "other": lambda: wrong(row for noise in [*NOISES][1:] for row in claims(noise)[:3]),
    "shares_by_t": lambda: wrong(replace(row, read=by_t) for row in SHARES),
    "either": lambda: wrong(replace(row, read=by_either) for row in RANKS[1:]),
    "flips": flips,
    "coverage": coverage,
    "costs": costs,
}

if __name__ == "__main__":
    page = Path(__file__).with_suffix(".md").read_text("utf-8")
    print(page.format(sweeps=f"{SWEEPS:,}", **{name: table() for name, table in TABLES.items()}), end="")
