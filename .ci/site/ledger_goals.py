"""Options by goal: what the reports say about each arm that is an option for a goal of a reader.

`goals.yaml` lists the goals of each experiment.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from attnlab import stats
from attnlab.inference_cost.count_format import format_byte_count
from attnlab.report.number_format import NONE, TIMES, format_number, format_percent
from attnlab.report.schema import Effect, Report
from attnlab.report.tables.wording import DELTA, format_effect, format_effect_verdict, format_exact_number
from attnlab.stats.evidence import CONFIDENCE_LEVEL

GOALS_NOTE = (
    "Each option is an arm of an experiment, compared with that experiment's baseline. Options of different "
    "experiments are not comparable with each other, because baseline, budget and corpus differ. Losses are "
    "at the trained length unless the effect names another; length/excess/4 is the loss at four times the "
    "trained length minus that at the trained length. Arms have equal training tokens; their training "
    "FLOPs per token may differ, so a lower loss may cost more compute. KV cache (bytes per token), FLOPs "
    "and throughput (training tokens per second) are ratios to the baseline. 0× is a cache that does not "
    "grow with the text; a state of fixed size, which may exceed the cache of a short text, is listed beside "
    "it. Windows save cache beyond their ratio. Accuracy is that on generated data."
)
GOAL_TITLES = {
    "cache": "I want a smaller KV cache",
    "context": "I want a longer context",
    "loss": "I want a lower loss at equal compute",
    "recall": "I want recall of earlier tokens",
    "state": "I want to track a state",
}
GOALS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("goals.yaml").read_text("utf-8"))
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
    margin: str  # of the verdict
    accuracy: str  # of the arm and of the baseline, on generated data
    cache: str  # KV cache per token, as a ratio to the baseline's, and the bytes of a fixed-size state
    flops: str  # training FLOPs per token, as a ratio to the baseline's
    throughput: str  # training throughput, as a ratio to the baseline's
    # size and corpora, with the effects on further corpora, the verdict across sizes or budgets, and a
    # learning rate other than the baseline's
    tested: str
    verdict: str


@dataclass(frozen=True)
class GoalTable:
    """The options for a goal, by experiment; in each, the smallest cache or the best effect comes first."""

    goal: str
    title: str
    options: list[GoalOption]

    @property
    def columns(self) -> list[tuple[str, list[str]]]:
        """The header and values of each column beside the option; those without a value are left out."""
        columns = {
            f"effect, {format_percent(CONFIDENCE_LEVEL)}% CI": [option.effect for option in self.options],
            "margin": [option.margin for option in self.options],
            "accuracy": [option.accuracy for option in self.options],
            "KV cache": [option.cache for option in self.options],
            "FLOPs per token": [option.flops for option in self.options],
            "throughput": [option.throughput for option in self.options],
            "tested": [option.tested for option in self.options],
            "verdict": [option.verdict for option in self.options],
        }
        return [(header, values) for header, values in columns.items() if {*values} != {NONE}]


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
            _build_option(goal, folder, report, effect, corpus_reports, ladder_verdicts)
            for folder, report in reports.items()
            for effect in sorted(
                _select_effects(report, goal),
                key=partial(_get_cache_ratio, report) if goal == "cache" else partial(_get_rank, report),
            )
        ]
        if options:
            tables.append(GoalTable(goal, title, options))
    return tables


def _select_effects(report: Report, goal: str) -> list[Effect]:
    """Select the effects that show the options of an experiment for a goal; none if it has other goals.

    A report from before a metric was measured shows the experiment's metric.
    """
    settings = GOALS.get(report.experiment.name, {"goals": []})
    goals = settings["goals"]
    if goal not in goals:
        return []
    arms = settings.get("arms", report.experiment.arms)
    effects = [effect for effect in report.effects if effect.arm in arms]
    metric = goals[goal] if isinstance(goals, dict) else report.experiment.metric
    return [effect for effect in effects if effect.metric == metric] or [
        effect for effect in effects if effect.primary
    ]


def _build_option(
    goal: str,
    folder: str,
    report: Report,
    effect: Effect,
    corpus_reports: Sequence[Report],
    ladder_verdicts: LadderVerdicts,
) -> GoalOption:
    experiment = report.experiment
    margin = effect.margin
    return GoalOption(
        folder=folder,
        experiment=experiment.name,
        question=experiment.question or NONE,
        arm=effect.arm,
        against=effect.against,
        effect=f"{DELTA} {effect.label} {format_effect(effect)}",
        margin=NONE if margin is None else format_exact_number(float(f"{margin:.2g}")),
        accuracy=NONE if goal in ("cache", "loss") else _format_accuracy(report, effect),
        cache=_format_cache(report, effect),
        flops=_format_ratio(_get_ratio(report, "flops_per_token", effect.arm)),
        throughput=_format_throughput(report, effect),
        tested=_format_tested(report, effect, corpus_reports, ladder_verdicts),
        verdict=_format_verdict(report, effect),
    )


def _format_verdict(report: Report, effect: Effect) -> str:
    """Format the verdict on an effect; in another metric than the experiment's, that on its claim."""
    claims = [
        f"claim {claim.verdict}"
        for claim in report.verdict.claims
        if (claim.arm, claim.against, claim.metric) == (effect.arm, effect.against, effect.metric)
    ]
    return "; ".join(claims) if claims and not effect.primary else format_effect_verdict(effect)


def _get_ratio(report: Report, resource: str, arm: str) -> float | None:
    """Return a resource of an arm as a ratio to the baseline's; None if it is not counted."""
    row = report.budget.find_row(resource)
    return row.get_cell(arm).ratio if row else None


def _format_ratio(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.3g}{TIMES}"


def _format_throughput(report: Report, effect: Effect) -> str:
    """Format the throughput as a ratio to the baseline's, `1.05× [1.03×, 1.08×]`; timed in alternation."""
    timing = report.timing
    times = [
        timing.get_time(arm, "train_tokens_per_s") if timing else None for arm in (effect.arm, effect.against)
    ]
    blocks = [time.blocks for time in times if time and time.blocks]
    if len(blocks) < len(times):
        return NONE
    ratio = stats.estimate_ratio_of_medians(*blocks, effect.level)
    estimate, low, high = (
        f"{format_number(value, max(2, 1 - math.floor(math.log10(value))))}{TIMES}"
        for value in (ratio.estimate, ratio.low, ratio.high)
    )
    return f"{estimate} [{low}, {high}]"


def _get_cache_ratio(report: Report, effect: Effect) -> float:
    """Return the KV cache of an arm as a ratio to the baseline's; infinite if it is not counted."""
    ratio = _get_ratio(report, CACHE_KEY, effect.arm)
    return float("inf") if ratio is None else ratio


def _format_cache(report: Report, effect: Effect) -> str:
    """Format `0.25× + 18.75 KiB state`."""
    ratio = _get_cache_ratio(report, effect)
    states = {run.memory.get("carried_bytes") for run in report.runs if run.is_done and run.arm == effect.arm}
    state = next((count for count in states if count), None)
    parts = [_format_ratio(ratio)] if ratio != float("inf") else []
    parts += [f"{format_byte_count(state)} state"] if state else []
    return " + ".join(parts) or NONE


def _average_runs(report: Report, arm: str, metric: str) -> float | None:
    """Average a metric over an arm's finished runs; None if none has it."""
    values = [run.metrics.get(metric) for run in report.runs if run.is_done and run.arm == arm]
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _format_accuracy(report: Report, effect: Effect) -> str:
    """Format `0.67 against 0.74`: a loss past the trained length may rise while more answers are right."""
    family, _, condition = effect.metric.partition("/")
    metric = f"{family}/accuracy" if condition == "loss" else f"recall/{condition}"
    means = [_average_runs(report, arm, metric) for arm in (effect.arm, effect.against)]
    if "loss" not in (family, condition) or None in means:
        return NONE
    return " against ".join(format_number(mean, 2) for mean in means)


def _get_rank(report: Report, effect: Effect) -> float:
    """Return a number by which the better of two effects comes first; those without an estimate come last."""
    higher_is_better = report.experiment.direction == "higher" if effect.primary else effect.is_proportion
    return float("inf") if effect.mean is None else effect.mean * (-1.0 if higher_is_better else 1.0)


def _format_tested(
    report: Report, effect: Effect, corpus_reports: Sequence[Report], ladder_verdicts: LadderVerdicts
) -> str:
    """Format `size S on pydocs; on code +0.01 nats, 95% CI [...]: WORSE; 49k to 623k parameters: HOLDS`."""
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
                if (row.metric, row.arm, row.against) == (effect.metric, effect.arm, effect.against)
            ]
    verdict = ladder_verdicts.get((experiment.name, effect.arm, effect.against))
    if verdict and effect.primary:
        parts.append(verdict)
    rate = _get_ratio(report, "lr", effect.arm)
    if rate is not None and rate != 1:
        parts.append(f"at {rate:.3g}{TIMES} the learning rate of {effect.against}")
    return "; ".join(filter(None, parts)) or NONE
