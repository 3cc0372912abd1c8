"""What the W&B run of a report holds: its summary, and the tables of arms and of interim analyses."""

from typing import Any

from attnlab.report.answer import answer
from attnlab.report.schema import Report, Verdict
from attnlab.report.tables.wording import describe_claim, format_effect, format_training


def summary(report: Report) -> dict[str, Any]:
    """The report's words and figures, under the names that they have in the W&B summary."""
    verdict = report.verdict
    figures: dict[str, Any] = {
        "answer": answer(report).sentence,
        "verdict": verdict.headline,
        "finished": verdict.finished,
        "planned": verdict.planned,
        "exploratory": verdict.exploratory,
    }
    for n, claim in enumerate(verdict.claims, start=1):
        about = {
            "says": claim.says,
            "verdict": str(claim.verdict),
            "sentence": describe_claim(claim),
            "effect": format_effect(claim),
            "estimate": claim.decision.estimate,
            "low": claim.interval.low if claim.interval else None,
            "high": claim.interval.high if claim.interval else None,
            "p_holm": claim.decision.p_holm,
            "training": format_training(claim.training) if claim.training else None,
        }
        figures |= {f"claim/{n}/{key}": value for key, value in about.items()}
    for row in report.effects:
        about = {
            "effect": format_effect(row) if row.mean is not None else None,
            "difference": row.mean,
            "low": row.low,
            "high": row.high,
            "n": row.n,
            "word": str(row.word),
            "p_holm": row.p_holm,
            "training": format_training(row.training) if row.training else None,
        }
        figures |= {f"effect/{row.arm}/{row.metric}/{key}": value for key, value in about.items()}
    if report.exchange:
        figures |= {"margin": report.experiment.margin_said, "exchange": report.exchange.words}
    return {key: value for key, value in figures.items() if value is not None}


def comparison(report: Report) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: every arm on every metric, its mean, and its effect against the baseline."""
    columns = ["arm", "metric", "runs", "mean", "effect", "difference", "low", "high", "p_holm", "word"]
    columns += ["training"] if report.exchange else []
    effects = {(row.metric, row.arm): row for row in report.effects}
    rows = []
    for metric in dict.fromkeys(row.metric for row in report.effects):
        for arm in report.experiment.arms:
            found = [run.metrics.get(metric) for run in report.runs if run.arm == arm and run.done]
            values = [value for value in found if value is not None]
            mean = sum(values) / len(values) if values else None
            row = effects.get((metric, arm))
            shown = [getattr(row, key, None) for key in ("mean", "low", "high", "p_holm")]
            word = str(row.word) if row else None  # W&B takes an enum for a Python object
            effect = format_effect(row) if row and row.mean is not None else None
            training = format_training(row.training) if row and row.training else None
            rows.append(
                [
                    arm,
                    metric,
                    len(values),
                    mean,
                    effect,
                    *shown,
                    word,
                    *([training] if report.exchange else []),
                ]
            )
    return columns, rows


def paths(report: Report) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: every interim analysis that was made of a claim, where there are some."""
    seen = ["seeds", "n", "estimate", "low", "high", "level"]
    rows = []
    for number, claim in enumerate(report.verdict.claims, start=1):
        looks = claim.looks
        if looks is None or looks.design == "fixed":
            continue
        for look, made in enumerate(looks.made, start=1):
            word = claim.verdict if look == looks.decided else Verdict.INCONCLUSIVE
            rows.append([number, claim.says, look, *(getattr(made, key) for key in seen), str(word)])
    return ["claim", "says", "look", *seen, "word"], rows
