"""Head scores by layer, pooled over seeds, with chance levels, and the patterns they match.

Head indices correspond neither across seeds nor across arms. Scores are therefore compared as distributions,
maps are only shown side by side, and nothing averages "head 3". The maps are in attention.npz (`head_maps`).
"""

from itertools import chain

import numpy as np

from attnlab.measure.head_patterns import PATTERN_RULES, match_head_patterns
from attnlab.measure.pattern_scores import HEAD_SCORES, ScoreInfo
from attnlab.report.schema import (
    ArmHeadScore,
    HeadScore,
    HeadsSection,
    KernelAgreement,
    MissingScore,
    Pattern,
    PatternCount,
)
from attnlab.report.verdicts.results import SweepResults, get_common_value


def _build_head_scores(sweep: SweepResults) -> list[HeadScore]:
    names = {name for run in sweep.planned_runs for name in run.head_scores}
    scores = []
    for name in sorted(
        names, key=lambda name: (list(HEAD_SCORES).index(name) if name in HEAD_SCORES else 99, name)
    ):
        score = HEAD_SCORES.get(name, ScoreInfo(name))
        counts = []
        for arm in sweep.arms:
            tables: list[np.ndarray] = [
                np.array([*chain.from_iterable(run.head_scores[name])], float)
                for run in sweep.get_finished_runs(arm)
                if name in run.head_scores
            ]
            if tables:  # an arm may have its own corpus or length, and so its own chance level
                chance = get_common_value(run.chance_scores.get(name) for run in sweep.get_finished_runs(arm))
                counts.append(_summarize_arm_scores(arm, tables, score.threshold, chance))
        scores.append(
            HeadScore(
                name=name,
                label=score.label,
                about=score.description,
                threshold=score.threshold,
                chance=get_common_value(count.chance for count in counts),
                counts=counts,
            )
        )
    return scores


def _summarize_arm_scores(
    arm: str, tables: list[np.ndarray], threshold: float | None, chance: float | None
) -> ArmHeadScore:
    counts = [int((table > threshold).sum()) for table in tables] if threshold is not None else []
    return ArmHeadScore(
        arm=arm,
        chance=chance,
        heads=int(tables[0].size),
        seeds=len(tables),
        mean=float(np.mean(np.concatenate(tables))),
        mean_low=float(min(table.mean() for table in tables)),
        mean_high=float(max(table.mean() for table in tables)),
        above_threshold=float(np.mean(counts)) if counts else None,
        above_threshold_low=min(counts, default=None),
        above_threshold_high=max(counts, default=None),
    )


def _count_patterns(sweep: SweepResults) -> list[Pattern]:
    """Count the heads of an arm that match each pattern: mean and range over seeds."""
    patterns_by_arm = {
        arm: [
            patterns_of_run
            for run in sweep.get_finished_runs(arm)
            if (patterns_of_run := match_head_patterns(run.head_scores, run.chance_scores))
        ]
        for arm in sweep.arms
    }
    patterns = []
    for name, rule in PATTERN_RULES.items():
        counts = []
        for arm, runs in patterns_by_arm.items():
            head_counts = [sum(name in head for layer in run for head in layer) for run in runs]
            if head_counts:
                heads = sum(map(len, runs[0]))
                mean = float(np.mean(head_counts))
                counts.append(
                    PatternCount(
                        arm=arm,
                        heads=heads,
                        seeds=len(head_counts),
                        mean=mean,
                        low=min(head_counts),
                        high=max(head_counts),
                    )
                )
        if counts:
            patterns.append(Pattern(name=name, rule=rule.description, counts=counts))
    return patterns


def build_heads_section(sweep: SweepResults) -> HeadsSection | None:
    """Build scores, patterns, max|eager − fused| per arm, and the number of layers with maps.

    None if nothing was measured.
    """
    scores = _build_head_scores(sweep)
    layers = max(
        (run.maps["maps"].shape[1] for run in sweep.planned_runs if run.is_done and run.maps), default=0
    )
    if not scores and not layers:
        return None
    agreement = []
    for arm in sweep.arms:
        kernels = [result.kernels for result in sweep.get_finished_results(arm) if result.kernels]
        errors = [
            kernel["max_abs_eager_fused"]
            for kernel in kernels
            if kernel.get("max_abs_eager_fused") is not None
        ]
        notes = sorted({kernel["note"] for kernel in kernels if kernel.get("note")})
        agreement.append(
            KernelAgreement(arm=arm, max_abs=max(errors, default=None), runs=len(errors), notes=notes)
        )
    return HeadsSection(
        scores=scores,
        absent=_list_missing_scores(sweep),
        patterns=_count_patterns(sweep),
        agreement=agreement,
        layers=layers,
    )


def _list_missing_scores(sweep: SweepResults) -> list[MissingScore]:
    """List the scores that an arm lacks, with reasons."""
    missing = {}
    for run in sweep.planned_runs:
        for name, reason in ((run.result.head_scores.get("notes") if run.result else None) or {}).items():
            missing[run.arm, name] = MissingScore(
                arm=run.arm, label=HEAD_SCORES.get(name, ScoreInfo(name)).label, reason=reason
            )
    return list(missing.values())
