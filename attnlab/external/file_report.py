"""The report of two sets of runs that were trained elsewhere: an experiment of two arms with one claim.

Its parts are plain values until the whole is validated: building a type for each would take most of the time
of `judge`.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab import stats
from attnlab.external.judgment import Judgment
from attnlab.external.noise_floor import ALPHA
from attnlab.external.question import Declaration, Question
from attnlab.external.result_files import TABLE_SUFFIXES, ExternalRun, count_equal_values, digest_runs
from attnlab.report.schema import EffectVerdict, Report, SeedPair
from attnlab.report.verdicts.sensitivity_analyses import compute_margin_p_values, compute_sensitivity
from attnlab.report.verdicts.verdict_rules import count_decimals, decide_claim_verdict, decide_effect_verdict
from attnlab.stats.evidence import CONFIDENCE_LEVEL
from attnlab.store.fingerprint import compute_digest

NOT_DECLARED = "nothing was declared before the runs (--declare)"
PAIRED_TEST = "Student's t for the mean difference of paired seeds"
GROUP_TEST = "Welch's t for the difference of two means"
RANK_TEST = "e-values for the median difference: at least one run diverged, so only the order counts"
BASIS_AND_TEST = {  # (paired, ranked) -> basis of the claim, test
    (True, False): ("t", PAIRED_TEST),
    (True, True): ("ranks", RANK_TEST),
    (False, False): ("groups", GROUP_TEST),
    (False, True): ("random pairs", RANK_TEST),
}
CAVEATS = [
    "Files show numbers alone: not that an arm had more parameters, data or time, that its validation text "
    "differs, that it sees future tokens, or that its learning rate was searched longer.",
    "The intervals assume independent runs: several evaluations of one run are one run.",
]
FAILURE_LABELS = {"diverged": "diverged", "missing": "did not finish"}
MAX_NAME_LENGTH = 36  # of the files in the name of a report
Runs = Mapping[str, Sequence[ExternalRun]]  # by arm, those of A first
Values = dict[str, Any]


def build_file_report(
    runs: Runs,
    files: Sequence[str],
    judgment: Judgment,
    question: Question,
    declaration: Declaration | None,
    command: str,
) -> Report:
    """Build the report of a judgment.

    Args:
        runs: All runs of the two arms as they were read.
        files: Of each arm.

    Raises:
        InvalidConfig: one side holds run directories of several configs.
    """
    against, arm = runs
    every = [run for side in runs.values() for run in side]
    metric, direction = question.metric, question.direction
    unit, own = "", None
    if all(run.result is not None for run in every):
        from attnlab.external.own_runs import check_own_runs  # late: files do without

        own = check_own_runs(dict(zip(runs, judgment.sides, strict=True)), metric)
        definition = every[0].result.get_metric(metric) if every[0].result else None
        unit = definition.unit if definition else ""
    reasons, budget = own or ([], _build_empty_budget(runs))
    early = declaration.list_earlier(every) if declaration else [NOT_DECLARED]
    rows = [row for name, side in runs.items() for row in _build_rows(name, side, question)]
    shared = _collect_shared_numbers(judgment, question, reasons) | {
        "arm": arm, "against": against, "metric": metric, "label": metric, "unit": unit,
    }  # fmt: skip
    claim = _build_claim(judgment, question, shared, reasons, exploratory=bool(early))
    notes = [f"No interval: {judgment.obstacle}."] if judgment.obstacle else []
    if question.reduce == "best":
        notes.append("The best of several evaluations of a run is optimistic (--reduce best).")
    incomparable = {"arm": arm, "against": against, "metric": metric, "reasons": reasons}
    unknown = dict.fromkeys(
        ("replication", "corpora", "leakage", "compute_calibration", "curves", "positions", "heads", "text",
         "timing", "preregistration")
    )  # fmt: skip
    return Report.model_validate(
        unknown
        | {key: [] for key in ("tradeoff", "length", "steps_to_threshold", "warnings")}
        | {
            "experiment": {
                "name": _name_report(runs, question, declaration),
                "question": (
                    f"Is {arm} better than {against}? Better means a {direction} {metric}, by more than "
                    f"{question.margin:g}."
                ),
                "arms": [*runs], "baseline": against, "seeds": sorted({row["seed"] for row in rows}),
                "looks": None if question.looks == "once" else _list_looks(question),
                "metric": metric, "direction": direction, "margin": question.margin, "margin_text": None,
                "margin_reason": "Given on the command line.", "size": None,
                "controlled": ["tokens"] if own else [], "match": "none", "match_by": None, "unmatched": [],
                "leakage": [],
            },
            "verdict": {
                "headline": claim["verdict"], "exploratory": bool(early), "not_preregistered": False,
                "deviations": early, "not_comparable": [incomparable] if reasons else [],
                "run_warnings": notes, "claims": [claim], "planned": len(rows),
                "finished": sum(row["status"] == "done" for row in rows),
            },
            "budget": budget,
            "effects": [_build_effect(judgment, question, shared, reasons)],
            "failures": _build_failures(runs, rows),
            "config": {"arms": [], "rows": [], "layers": [], "baseline_config": {}},
            "axes": {name: {} for name in runs},
            "reproduce": dict.fromkeys(
                ("commit", "dirty", "dirty_diff", "packages", "device", "date", "versions")
            )
            | {
                "command": command, "preregistered": {}, "changed": [], "data": [], "environment": {},
                "mixed": [], "preregistration_sha256": declaration.digest if declaration else None,
            },
            "runs": rows,
            "files": _describe_files(runs, files, judgment, question, declaration),
        }
    )  # fmt: skip


def name_arms(files: Sequence[str]) -> list[str]:
    """Name the arms by the stems of their files where these differ."""
    paths = [Path(file) for file in files]
    stems = [path.stem if path.suffix.lower() in TABLE_SUFFIXES else path.name for path in paths]
    return stems if all(stems) and stems[0] != stems[1] else [*files]


def count_digits(margin: float) -> int:
    """Decimals that show a hundredth of the margin."""
    return max(0, 2 - math.floor(math.log10(margin)))


def _name_report(runs: Runs, question: Question, declaration: Declaration | None) -> str:
    """The name of the report's folder: other runs, and other questions, have others."""
    label = "".join(letter if letter.isalnum() else "_" for letter in "_vs_".join(runs))
    digests = [digest_runs(side) for side in runs.values()]
    terms = [question.to_dict(), digests, declaration.digest if declaration else None]
    return f"judge_{label[:MAX_NAME_LENGTH]}_{compute_digest(terms, 8)}"


def _list_looks(question: Question) -> str | list[int]:
    return question.looks if isinstance(question.looks, str) else list(question.looks)


def _build_empty_budget(runs: Runs) -> Values:
    return {
        "rows": [], "controlled": [], "match": "none", "match_by": None, "unmatched": [], "tuning": None,
        "lr_tuning": "unknown, as the runs were trained elsewhere",
        "seeds": [
            {"arm": arm, "planned": len(side), "finished": sum(run.status == "done" for run in side)}
            for arm, side in runs.items()
        ],
    }  # fmt: skip


def _collect_shared_numbers(judgment: Judgment, question: Question, reasons: list[str]) -> Values:
    """What a claim and an effect share: digits, and what the seeds show beside the decision."""
    interval = None if reasons else judgment.evidence.interval(CONFIDENCE_LEVEL)
    width = interval[1] - interval[0] if interval else None
    return {
        **dict(compute_sensitivity([] if reasons else _list_pairs(judgment))),
        "digits": count_decimals(width, default=count_digits(question.margin)),
        "training_equivalent": None,
    }


def _list_pairs(judgment: Judgment) -> list[SeedPair]:
    """The seeds for which both runs finished; empty if runs are not paired."""
    if not judgment.paired:
        return []
    return [
        SeedPair(seed=int(run.seed or 0), value=theirs, against=ours, difference=theirs - ours)
        for run, (ours, theirs) in zip(judgment.sides[0], judgment.pairs, strict=True)
        if math.isfinite(ours + theirs)
    ]


def _build_claim(
    judgment: Judgment, question: Question, shared: Values, reasons: list[str], *, exploratory: bool
) -> Values:
    decision = judgment.decision
    numbers: Values = {key: value for key, value in asdict(decision).items() if key != "holds"}
    if reasons:
        numbers |= dict.fromkeys(("estimate", "low", "high", "p", "p_holm"))
    elif not math.isfinite(decision.estimate or 0.0):  # a median, if half of the pairs diverged
        numbers["estimate"] = None
    interval = None if reasons else judgment.evidence.interval(CONFIDENCE_LEVEL)
    unknown = ("threshold_text", "reason", "untrained_reason", "unknown_threshold_reason", "required_seeds",
               "threshold_sign_flip")  # fmt: skip
    return (
        shared
        | dict.fromkeys(unknown)
        | {
            "says": f"{shared['arm']} is better than {shared['against']} by more than the margin",
            "compare": "difference", "is": "below" if question.lower_is_better else "above",
            "threshold": -question.margin if question.lower_is_better else question.margin,
            "direction": question.direction, "identity": False, "timed": False, "exploratory": exploratory,
            "basis": BASIS_AND_TEST[judgment.paired, judgment.is_ranked][0], "not_comparable": reasons,
            "verdict": decide_claim_verdict(decision.holds, n=decision.n, comparable=not reasons),
            "leaking_by_design": [], "planned": decision.n if judgment.paired else None,
            "interim_analyses": None if reasons else _build_interim_analyses(judgment, question, numbers),
            "decision": numbers,
            "interval": interval
            and {"low": interval[0], "high": interval[1], "level": CONFIDENCE_LEVEL},
        }
    )  # fmt: skip


def _build_interim_analyses(judgment: Judgment, question: Question, numbers: Values) -> Values | None:
    """The declared analyses; the files do not show the results of those before this one."""
    if question.looks == "once" or (judgment.is_ranked and not judgment.paired):
        return None
    keys = ("estimate", "low", "high", "level")
    count = len(judgment.values[0])
    planned = [count] if isinstance(question.looks, str) else [*question.looks]
    completed = [
        {"seeds": look, "n": 0} | dict.fromkeys(keys) for look in planned[: judgment.earlier_analyses]
    ]
    completed.append({"seeds": count, "n": numbers["n"]} | {key: numbers[key] for key in keys})
    return {
        "design": "anytime" if isinstance(question.looks, str) else "looks", "planned": planned,
        "decided_at": None if judgment.decision.holds is None else len(completed), "completed": completed,
    }  # fmt: skip


def _build_effect(judgment: Judgment, question: Question, shared: Values, reasons: list[str]) -> Values:
    """The difference between the arms; where a run diverged, that of the runs that finished."""
    margin, direction = question.margin, question.direction
    pairs = _list_pairs(judgment)
    numbers: Values = dict.fromkeys(("mean", "sd", "low", "high", "p", "p_equivalent", "p_noninferior"))
    verdict, n = EffectVerdict.NOT_COMPARABLE, judgment.decision.n
    if not reasons:
        evidence = judgment.evidence
        if judgment.is_ranked:
            a, b = ([value for value in side if math.isfinite(value)] for side in judgment.values)
            differences = [pair.value - pair.against for pair in pairs]
            evidence = (
                stats.PairedDifferences(differences) if judgment.paired else stats.GroupDifferences(b, a)
            )
        low, high = evidence.interval(CONFIDENCE_LEVEL) or (None, None)
        equivalent, noninferior = compute_margin_p_values(evidence, margin, direction)
        numbers = {
            "mean": evidence.estimate, "sd": getattr(evidence, "sd", None), "low": low, "high": high,
            "p": stats.compute_two_sided_p_value(evidence), "p_equivalent": equivalent,
            "p_noninferior": noninferior,
        }  # fmt: skip
        outer, inner = (judgment.evidence.interval(level) for level in (1 - ALPHA, 1 - 2 * ALPHA))
        verdict, n = decide_effect_verdict(outer, inner, margin, direction), evidence.n
    return (
        shared
        | numbers
        | {
            "primary": True, "margin": margin, "n": n, "planned": n, "level": CONFIDENCE_LEVEL,
            "alpha": ALPHA, "p_holm": numbers["p"], "verdict": verdict, "reasons": reasons,
            "pairs": [pair.model_copy(update={"difference": None}) for pair in pairs] if reasons else pairs,
        }
    )  # fmt: skip


def _build_rows(arm: str, side: Sequence[ExternalRun], question: Question) -> list[Values]:
    """A row per run, by seed; runs are numbered if one has none."""
    has_seeds = _has_seeds(side)
    return [
        {
            "arm": arm, "seed": int(run.seed or number) if has_seeds else number,
            "id": run.id or run.name or run.place, "status": run.status, "seconds": None,
            "started": None if run.started is None else datetime.fromtimestamp(run.started, UTC).isoformat(),
            "metrics": {question.metric: question.get_value(run) if run.status == "done" else None},
            "budget": {}, "memory": {}, "speed": {}, "head_scores": {},
        }
        for number, run in enumerate(side, 1)
    ]  # fmt: skip


def _has_seeds(side: Sequence[ExternalRun]) -> bool:
    return all(run.seed is not None for run in side)


def _build_failures(runs: Runs, rows: Sequence[Values]) -> Values:
    failed = [
        {key: row[key] for key in ("arm", "seed", "id", "status")}
        | {"status_label": FAILURE_LABELS[row["status"]], "message": None, "step": None, "tail": []}
        for row in rows
        if row["status"] != "done"
    ]
    labels = [row["status_label"] for row in failed]
    kinds = {"failed": "diverged", "lost": "missing"}
    return {
        "runs": failed, "caveats": CAVEATS,
        "counts": [
            {"arm": arm, "planned": len(side)} | {key: _count(side, word) for key, word in kinds.items()}
            for arm, side in runs.items()
        ],
        "status_counts": [(label, labels.count(label)) for label in dict.fromkeys(labels)],
    }  # fmt: skip


def _count(side: Sequence[ExternalRun], status: str) -> int:
    return sum(run.status == status for run in side)


def _describe_files(
    runs: Runs,
    files: Sequence[str],
    judgment: Judgment,
    question: Question,
    declaration: Declaration | None,
) -> Values:
    every = [run for side in runs.values() for run in side]
    timeless = sum(run.started is None for run in every)
    arms = [
        {
            "arm": arm, "name": file, "digest": digest_runs(side), "rows_read": sum(run.rows for run in side),
            "runs_found": len(side), "runs": len(used), "diverged": (diverged := _count(used, "diverged")),
            "missing": _count(side, "missing"), "has_seeds": _has_seeds(side),
            "mean": None if diverged else statistics.mean(values),
            "sd": None if diverged else statistics.stdev(values),
        }
        for (arm, side), file, used, values in zip(
            runs.items(), files, judgment.sides, judgment.values, strict=True
        )
    ]  # fmt: skip
    return {
        "arms": arms, "paired": judgment.paired, "pairing": judgment.pairing, "reduce": question.reduce,
        "test": BASIS_AND_TEST[judgment.paired, judgment.is_ranked][1],
        "equal_values": count_equal_values(every), "required_runs_per_side": judgment.required_runs,
        "run_times": f"{timeless} of {len(every)} runs do not say when they began" if timeless else "known",
        "declared": declaration.declared if declaration else None,
        "declaration_digest": declaration.digest if declaration else None,
    }  # fmt: skip
