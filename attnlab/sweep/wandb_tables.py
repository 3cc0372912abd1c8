"""Content of a report's W&B run: its summary, and the tables of arms and of interim analyses."""

from typing import Any

from attnlab.report.answer import build_answer
from attnlab.report.schema import Report, Verdict
from attnlab.report.tables.headline import build_headline
from attnlab.report.tables.wording import describe_claim, format_effect, format_training


def build_summary(report: Report) -> dict[str, Any]:
    """Collect the report's sentences and numbers under their W&B summary names; omit missing values."""
    verdict = report.verdict
    figures: dict[str, Any] = {
        "answer": build_answer(report).sentence,
        "verdict": build_headline(report),
        "finished": verdict.finished,
        "planned": verdict.planned,
        "exploratory": verdict.exploratory,
    }
    for n, claim in enumerate(verdict.claims, start=1):
        values = {
            "says": claim.says,
            "verdict": str(claim.verdict),
            "sentence": describe_claim(claim),
            "effect": format_effect(claim),
            "estimate": claim.decision.estimate,
            "low": claim.interval.low if claim.interval else None,
            "high": claim.interval.high if claim.interval else None,
            "p_holm": claim.decision.p_holm,
            "training": format_training(claim.training_equivalent) if claim.training_equivalent else None,
        }
        figures |= {f"claim/{n}/{key}": value for key, value in values.items()}
    for row in report.effects:
        values = {
            "effect": format_effect(row) if row.mean is not None else None,
            "difference": row.mean,
            "low": row.low,
            "high": row.high,
            "n": row.n,
            "verdict": str(row.verdict),
            "p_holm": row.p_holm,
            "training": format_training(row.training_equivalent) if row.training_equivalent else None,
        }
        figures |= {f"effect/{row.arm}/{row.metric}/{key}": value for key, value in values.items()}
    if report.compute_calibration:
        figures |= {
            "margin": report.experiment.margin_text,
            "compute_calibration": report.compute_calibration.summary,
        }
    return {key: value for key, value in figures.items() if value is not None}


def build_comparison_rows(report: Report) -> tuple[list[str], list[list[Any]]]:
    """Build a row per arm and metric: the mean, and the effect against the baseline.

    Returns:
        Column names, and rows of strings, numbers and None.
    """
    columns = ["arm", "metric", "runs", "mean", "effect", "difference", "low", "high", "p_holm", "verdict"]
    columns += ["training"] if report.compute_calibration else []
    effects = {(row.metric, row.arm): row for row in report.effects}
    rows = []
    for metric in dict.fromkeys(row.metric for row in report.effects):
        for arm in report.experiment.arms:
            values = [
                value
                for run in report.runs
                if run.arm == arm and run.is_done and (value := run.metrics.get(metric)) is not None
            ]
            mean = sum(values) / len(values) if values else None
            row = effects.get((metric, arm))
            numbers = [getattr(row, key, None) for key in ("mean", "low", "high", "p_holm")]
            verdict = str(row.verdict) if row else None  # W&B would store an enum as a Python object
            effect = format_effect(row) if row and row.mean is not None else None
            training = format_training(row.training_equivalent) if row and row.training_equivalent else None
            rows.append(
                [
                    arm,
                    metric,
                    len(values),
                    mean,
                    effect,
                    *numbers,
                    verdict,
                    *([training] if report.compute_calibration else []),
                ]
            )
    return columns, rows


def build_interim_rows(report: Report) -> tuple[list[str], list[list[Any]]]:
    """Build a row per completed interim analysis of each claim with a sequential design.

    Returns:
        Column names, and rows of strings, numbers and None.
    """
    keys = ["seeds", "n", "estimate", "low", "high", "level"]
    rows = []
    for number, claim in enumerate(report.verdict.claims, start=1):
        analyses = claim.interim_analyses
        if analyses is None or analyses.design == "fixed":
            continue
        for index, analysis in enumerate(analyses.completed, start=1):
            verdict = claim.verdict if index == analyses.decided_at else Verdict.INCONCLUSIVE
            rows.append([number, claim.says, index, *(getattr(analysis, key) for key in keys), str(verdict)])
    return ["claim", "says", "analysis", *keys, "verdict"], rows
