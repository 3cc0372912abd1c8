"""Options by goal: what the reports say about each arm that is an option for a goal of a reader.

The goals of an experiment come from its current file (`goals:`), if attnlab has one of its name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from attnlab.report.number_format import NONE, TIMES
from attnlab.report.schema import Effect, Report
from attnlab.report.tables.claim_sources import load_current_experiment
from attnlab.report.tables.effective_speedup import compute_speedup, compute_throughput, format_factor
from attnlab.report.tables.wording import DELTA, format_effect, format_effect_verdict
from attnlab.store.experiment_schema import GOAL_TITLES, Goal

GOALS_NOTE = (
    "Each option is an arm of an experiment, compared with that experiment's baseline. Options of different "
    "experiments are not comparable with each other, because baseline, budget and corpus differ. KV cache "
    "(bytes per token) and throughput (training tokens per second) are ratios to the baseline; windows and "
    "lossy caches save cache beyond that ratio."
)
CACHE_KEY = "kv_bytes_per_token"
LadderVerdicts = Mapping[tuple[str, str, str], str]  # (experiment, arm, against) -> scaling verdict


@dataclass(frozen=True)
class GoalOption:
    """An arm that is an option for a goal, against the baseline of its experiment."""

    folder: str  # URL-quoted
    experiment: str
    question: str
    arm: str
    against: str
    effect: str  # with the metric
    cache: str  # KV cache per token, as a ratio to the baseline's
    throughput: str  # training throughput, as a ratio to the baseline's
    speedup: str  # effective speed-up over the baseline
    # size and corpora, with the effects on further corpora and the verdict across sizes or budgets
    tested: str
    verdict: str


@dataclass(frozen=True)
class GoalTable:
    """The options for a goal, by experiment; in each, the smallest cache or the best effect comes first."""

    goal: Goal
    title: str
    options: list[GoalOption]

    @property
    def has_speedups(self) -> bool:
        """Whether any option has an effective speed-up."""
        return any(option.speedup != NONE for option in self.options)


def build_goal_tables(
    reports: Mapping[str, Report], corpus_reports: Sequence[Report], ladder_verdicts: LadderVerdicts
) -> list[GoalTable]:
    """Build a table per goal that any report has options for.

    Args:
        reports: the main report of each experiment, by URL-quoted folder.
        corpus_reports: reports of the experiments' further corpora.
        ladder_verdicts: verdicts across the sizes or budgets of a ladder.
    """
    tables = []
    for goal, title in GOAL_TITLES.items():
        options = [
            _build_option(folder, report, effect, corpus_reports, ladder_verdicts)
            for folder, report in reports.items()
            if goal in _list_goals(report)
            for effect in sorted(
                (effect for effect in report.effects if effect.primary),
                key=partial(_get_cache_ratio, report) if goal == "cache" else partial(_get_rank, report),
            )
        ]
        if options:
            tables.append(GoalTable(goal, title, options))
    return tables


def _list_goals(report: Report) -> list[str]:
    """List the goals of an experiment: of its current file, else as preregistered."""
    settings = load_current_experiment(report) or report.reproduce.preregistered
    return settings.get("goals") or []


def _build_option(
    folder: str,
    report: Report,
    effect: Effect,
    corpus_reports: Sequence[Report],
    ladder_verdicts: LadderVerdicts,
) -> GoalOption:
    experiment = report.experiment
    speedup = compute_speedup(report, effect)
    throughput = compute_throughput(report, effect)
    cache = _get_cache_ratio(report, effect)
    return GoalOption(
        folder=folder,
        experiment=experiment.name,
        question=experiment.question or NONE,
        arm=effect.arm,
        against=effect.against,
        effect=f"{DELTA} {effect.label} {format_effect(effect)}",
        cache=NONE if cache == float("inf") else f"{cache:.3g}{TIMES}",
        throughput=format_factor(throughput) if throughput else NONE,
        speedup=format_factor(speedup.effective) if speedup else NONE,
        tested=_format_tested(report, effect, corpus_reports, ladder_verdicts),
        verdict=format_effect_verdict(effect),
    )


def _get_cache_ratio(report: Report, effect: Effect) -> float:
    """Return the KV cache per token of an arm as a ratio to the baseline's; infinite if it is not counted."""
    row = report.budget.find_row(CACHE_KEY)
    ratio = row.get_cell(effect.arm).ratio if row else None
    return float("inf") if ratio is None else ratio


def _get_rank(report: Report, effect: Effect) -> float:
    """Return a number by which the better of two effects comes first; those without an estimate come last."""
    sign = 1.0 if report.experiment.direction == "lower" else -1.0
    return float("inf") if effect.mean is None else sign * effect.mean


def _format_tested(
    report: Report, effect: Effect, corpus_reports: Sequence[Report], ladder_verdicts: LadderVerdicts
) -> str:
    """Format `size S on pydocs; on code +0.01 nats, 95% CI [...]: WORSE; across sizes or budgets: HOLDS`."""
    experiment, context = report.experiment, report.replication
    parts = [
        " ".join(
            [
                *([f"size {experiment.size}"] if experiment.size else []),
                *([f"on {context.name}"] if context and report.corpora else []),
            ]
        )
    ]
    for other in corpus_reports:
        if other.replication and context and other.replication.combined_report == context.combined_report:
            parts += [
                f"on {other.replication.name} {format_effect(row)}: {format_effect_verdict(row)}"
                for row in other.effects
                if (row.primary, row.arm, row.against) == (True, effect.arm, effect.against)
            ]
    if verdict := ladder_verdicts.get((experiment.name, effect.arm, effect.against)):
        parts.append(f"across sizes or budgets: {verdict}")
    return "; ".join(filter(None, parts)) or NONE
