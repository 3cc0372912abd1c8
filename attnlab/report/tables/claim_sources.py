"""Wording and sources of a stored report, from the current experiment file.

Surprising: a claim is matched by its arms, metric and region, not by its wording. Its wording can therefore
be corrected without new training. The preregistration in the report keeps its original words.
"""

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from pydantic import ValidationError

from attnlab.config import CONF
from attnlab.errors import InvalidConfig
from attnlab.report.ladder_schema import LadderReport, load_ladder
from attnlab.report.schema import PreregisteredClaim, Report, load_report
from attnlab.report.tables.wording import format_exact_number
from attnlab.report.verdicts.claim_results import remove_margin
from attnlab.store.experiment_schema import (
    MARGIN,
    NEGATIVE_MARGIN,
    Claim,
    ComputeProportion,
    convert_to_nats,
    describe_training_amount,
    expand_claims,
    format_sides,
    resolve_resource_alias,
)
from attnlab.store.run_schema import FrozenModel
from attnlab.store.safe_paths import resolve_below

CITATION_KEYS = ("source", "source_says", "other_source", "other_says")
EXPERIMENT_KEYS = ("question", "margin_reason")
ClaimT = TypeVar("ClaimT", bound=PreregisteredClaim)


class Citation(FrozenModel):
    """Sources of a claim: the supporting source and its statement, and a conflicting one."""

    source: str | None = None
    source_says: str | None = None
    other_source: str | None = None
    other_says: str | None = None
    reason: str | None = None


class SourcedClaim(PreregisteredClaim):
    """A claim of an experiment file with its defaults filled in."""

    source: str | None
    source_says: str | None
    other_source: str | None
    other_says: str | None


def find_same_claim(claim: PreregisteredClaim, claims: Sequence[ClaimT]) -> ClaimT | None:
    """Find the claim in `claims` with the same comparison, else the same wording; None if there is none.

    The wording is compared without a margin, which the command line may have replaced.
    """
    same_comparison = [other for other in claims if other.comparison_key == claim.comparison_key]
    words = remove_margin(claim.says)
    same_wording = [other for other in same_comparison or claims if remove_margin(other.says) == words]
    return next(iter([*same_wording, *same_comparison]), None)


def load_reworded_report(path: Path) -> Report:
    """Read a report.json as `reword_report` words it.

    Raises:
        ValueError: as `load_report`.
    """
    return reword_report(load_report(path))


def reword_report(report: Report) -> Report:
    """Take the question, the rationale of the margin, and the claims' wording and reasons from current files.

    A text is replaced only if the preregistration has it too, and a claim only if its comparison is the same:
    all others keep their words. Numbers, arms and thresholds are those of the report.
    """
    file = _load_current_settings(report)
    if not file:
        return report
    current = _fill_claims(file, report)
    claims = []
    for claim in report.verdict.claims:
        match = find_same_claim(claim, current)
        if match and match.comparison_key == claim.comparison_key:
            claim = claim.model_copy(update={"says": match.says, "reason": match.reason})
        claims.append(claim)
    says = {old.says: new.says for old, new in zip(report.verdict.claims, claims, strict=True)}
    preregistered = report.reproduce.preregistered
    texts = {
        key: file[key]
        for key in EXPERIMENT_KEYS
        if file.get(key) and preregistered.get(key) == getattr(report.experiment, key)
    }
    update: dict[str, Any] = {
        "experiment": report.experiment.model_copy(update=texts),
        "verdict": report.verdict.model_copy(update={"claims": claims}),
    }
    if report.corpora:
        rows = [
            row.model_copy(update={"says": says.get(row.says, row.says)}) for row in report.corpora.claims
        ]
        update["corpora"] = report.corpora.model_copy(update={"claims": rows})
    return report.model_copy(update=update)


def load_reworded_ladder(folder: Path) -> LadderReport:
    """Read a ladder.json with the current wording of the first report of a size that lies beside it.

    Raises:
        ValueError: as `load_ladder`, or a report beside it cannot be read.
    """
    ladder = load_ladder(folder)
    stored = _load_ladder_size(folder, ladder)
    if stored is None:
        return ladder
    current = reword_report(stored)
    pairs = zip(stored.verdict.claims, current.verdict.claims, strict=True)
    says = {old.says: new.says for old, new in pairs}
    texts = {
        key: getattr(current.experiment, key)
        for key in EXPERIMENT_KEYS
        if getattr(ladder, key) == getattr(stored.experiment, key)
    }
    claims = [claim.model_copy(update={"says": says.get(claim.says, claim.says)}) for claim in ladder.claims]
    return ladder.model_copy(update={"claims": claims, **texts})


def _load_ladder_size(folder: Path, ladder: LadderReport) -> Report | None:
    """Load the first report of a size that lies beside a ladder; None if there is none."""
    names = (f"{ladder.name}.{size.name}/report.json" for size in ladder.sizes)
    source = next((file for name in names if (file := resolve_below(folder.parent, name)).is_file()), None)
    return load_report(source) if source else None


def load_ladder_citations(folder: Path, ladder: LadderReport) -> list[Citation]:
    """Load a citation for each claim of a ladder, as `load_reworded_ladder` words it.

    It is that of the first report of a size beside the ladder, and empty without one.
    """
    stored = _load_ladder_size(folder, ladder)
    report = reword_report(stored) if stored else None
    by_words = (
        dict(zip((claim.says for claim in report.verdict.claims), build_citations(report), strict=True))
        if report
        else {}
    )
    return [by_words.get(claim.says, Citation()) for claim in ladder.claims]


def build_citations(report: Report) -> list[Citation]:
    """Build a citation for each claim of a report.

    The current experiment file takes precedence over the preregistration.
    """
    preregistered = _fill_claims(report.reproduce.preregistered, report)
    current = _fill_claims(_load_current_settings(report), report)
    return [
        Citation(**_get_citation_fields(claim, preregistered) | _get_citation_fields(claim, current))
        for claim in report.verdict.claims
    ]


def _get_citation_fields(claim: PreregisteredClaim, claims: Sequence[SourcedClaim]) -> dict[str, Any]:
    """Return the citation of a claim; the reason of its threshold only if that is unchanged."""
    match = find_same_claim(claim, claims)
    if match is None:
        return {}
    keys = (*CITATION_KEYS, "reason") if match.comparison_key == claim.comparison_key else CITATION_KEYS
    return {key: value for key in keys if (value := getattr(match, key)) is not None}


def _load_current_settings(report: Report) -> dict[str, Any]:
    """Return the current experiment file, for a ladder size with the ladder's margin; {} without a file."""
    settings = load_current_experiment(report)
    ladder = report.replication.ladder if report.replication else None
    if settings and ladder:
        file = _load_settings(CONF / "ladder" / f"{ladder.name}.yaml")
        margin_reason = file.get("margin_reason", ladder.margin_reason)
        claims = [
            _state_margin(claim, settings.get("margin"), ladder.margin)
            for claim in settings.get("claims") or []
        ]
        settings = {**settings, "claims": claims, "margin": ladder.margin, "margin_reason": margin_reason}
    return settings


def load_current_experiment(report: Report) -> dict[str, Any]:
    """Load the current experiment file of a report; {} if attnlab has none of this name."""
    return _load_settings(CONF / "experiment" / f"{report.experiment.name}.yaml")


def _state_margin(settings: dict[str, Any], margin: Any, ladder_margin: float) -> dict[str, Any]:
    """Replace the margin in a claim's wording by that of a ladder; its reason is about the former."""
    if settings.get("threshold") not in (MARGIN, NEGATIVE_MARGIN) or not isinstance(margin, dict):
        return settings
    amount = f"{100 * ComputeProportion.model_validate(margin).training:g}% of training compute"
    return {
        **settings,
        "says": settings["says"].replace(amount, f"{format_exact_number(ladder_margin)} nats"),
        "reason": None,
    }


def _load_settings(path: Path) -> dict[str, Any]:
    """Load an experiment or a ladder; {} if there is no such file."""
    return _load_settings_once(path, path.stat().st_mtime_ns) if path.is_file() else {}


@functools.cache
def _load_settings_once(path: Path, mtime: int) -> dict[str, Any]:
    settings = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(settings, dict)
    return {str(key): value for key, value in settings.items()}


def _fill_claims(declared: Mapping[str, Any], report: Report) -> list[SourcedClaim]:
    """Fill in the defaults of claims from the report; claims that do not validate are skipped."""
    calibration = report.compute_calibration
    nats_per_doubling = calibration.nats_per_doubling if calibration else None
    sourced_claims = list[SourcedClaim]()
    for entry in _expand_claims(declared):
        with suppress(ValidationError):
            claim = Claim.model_validate(entry)
            arm, against = format_sides(claim.contrast) if claim.contrast else (claim.arm, claim.against)
            margin = declared.get("margin")
            fields = {key: getattr(claim, key) for key in Claim.model_fields if key != "leave_one_out"}
            fields |= {
                "arm": arm,
                "parts_of": claim.leave_one_out,
                "against": against or declared.get("baseline") or report.experiment.baseline,
                "metric": resolve_resource_alias(
                    claim.metric or declared.get("metric") or report.experiment.metric
                ),
                "threshold": convert_to_nats(claim.threshold, margin, nats_per_doubling),
                "threshold_text": describe_training_amount(claim.threshold, margin),
            }
            sourced_claims.append(SourcedClaim(**fields))
    return sourced_claims


def _expand_claims(declared: Mapping[str, Any]) -> list[Any]:
    """Write out the short forms of claims; [] if that is not possible."""
    with suppress(InvalidConfig):
        return expand_claims(
            declared.get("claims") or [],
            declared.get("arms") or [],
            {arm: lines or [] for arm, lines in (declared.get("arm_overrides") or {}).items()},
            declared.get("baseline") or "",
        ).claims
    return []
