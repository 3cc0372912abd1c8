"""Sources of the claims in a stored report, from the current experiment file.

Surprising: a claim is matched by its arms, metric and region, not by its wording. Its wording can therefore
be corrected without new training.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from omegaconf import OmegaConf
from pydantic import ValidationError

from attnlab.config import CONF
from attnlab.report.schema import PreregisteredClaim, Report
from attnlab.store.experiment_schema import Claim, convert_to_nats, resolve_resource_alias
from attnlab.store.run_schema import FrozenModel

CITATION_KEYS = ("says", "source", "source_says", "other_source", "other_says")
THRESHOLD_KEYS = ("reason", "identity")
OTHER_AXIS = "other"  # axis of arms that set no config group
ClaimT = TypeVar("ClaimT", bound=PreregisteredClaim)


class Citation(FrozenModel):
    """Wording of a claim with its sources: the supporting source and its statement, and a conflicting one."""

    says: str
    source: str | None = None
    source_says: str | None = None
    other_source: str | None = None
    other_says: str | None = None
    reason: str | None = None
    identity: bool | None = None


class SourcedClaim(PreregisteredClaim):
    """A claim of an experiment file with its defaults filled in."""

    source: str | None
    source_says: str | None
    other_source: str | None
    other_says: str | None


def find_same_claim(claim: PreregisteredClaim, claims: Sequence[ClaimT]) -> ClaimT | None:
    """Find the claim in `claims` with the same comparison, else the same wording; None if there is none."""
    same_comparison = [other for other in claims if other.comparison_key == claim.comparison_key]
    same_wording = [other for other in same_comparison or claims if other.says == claim.says]
    return next(iter([*same_wording, *same_comparison]), None)


def build_citations(report: Report) -> list[Citation]:
    """Build a citation for each claim of a report.

    The current experiment file takes precedence over the preregistration.
    """
    preregistered = _load_preregistered_claims(report)
    current = _load_current_claims(report)
    return [
        Citation(
            **{"says": claim.says}
            | _get_citation_fields(claim, preregistered)
            | _get_citation_fields(claim, current)
        )
        for claim in report.verdict.claims
    ]


def build_preregistered_citations(report: Report) -> list[Citation]:
    """Build a citation for each claim from the preregistration alone."""
    preregistered = _load_preregistered_claims(report)
    return [
        Citation(**{"says": claim.says} | _get_citation_fields(claim, preregistered))
        for claim in report.verdict.claims
    ]


def _get_citation_fields(claim: PreregisteredClaim, claims: Sequence[SourcedClaim]) -> dict[str, Any]:
    """Return the citation of a claim; fields about its threshold only if that is unchanged."""
    match = find_same_claim(claim, claims)
    if match is None:
        return {}
    keys = (
        (*CITATION_KEYS, *THRESHOLD_KEYS) if match.comparison_key == claim.comparison_key else CITATION_KEYS
    )
    return {key: value for key in keys if (value := getattr(match, key)) is not None}


def _load_preregistered_claims(report: Report) -> list[SourcedClaim]:
    return _fill_claims(report.reproduce.preregistered, report)


def _load_current_claims(report: Report) -> list[SourcedClaim]:
    return _fill_claims(load_current_experiment(report), report)


def load_current_experiment(report: Report) -> dict[str, Any]:
    """Load the current experiment file of a report; empty if attnlab has none of this name."""
    path = CONF / "experiment" / f"{report.experiment.name}.yaml"
    if not path.is_file():
        return {}
    experiment = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(experiment, dict)
    return {str(key): value for key, value in experiment.items()}


def _fill_claims(declared: Mapping[str, Any], report: Report) -> list[SourcedClaim]:
    """Fill in the defaults of claims from the report; claims that do not validate are skipped."""
    slope = (
        report.compute_calibration.slope
        if report.compute_calibration and not report.compute_calibration.reason
        else None
    )
    sourced_claims = list[SourcedClaim]()
    for entry in declared.get("claims") or []:
        with suppress(ValidationError):
            claim = Claim.model_validate(entry)
            threshold = convert_to_nats(
                claim.threshold, declared.get("margin"), slope.mean if slope else None
            )
            fields = {key: getattr(claim, key) for key in Claim.model_fields}
            fields |= {
                "against": claim.against or declared.get("baseline") or report.experiment.baseline,
                "metric": resolve_resource_alias(
                    claim.metric or declared.get("metric") or report.experiment.metric
                ),
                "threshold": threshold,
                "threshold_text": None,
            }
            sourced_claims.append(SourcedClaim(**fields))
    return sourced_claims


def find_claim_axis(report: Report, claim: PreregisteredClaim) -> str:
    """Find the config group a claim is about.

    That is the first group in which its two arms differ, else the first group that either sets.
    """
    overrides = report.reproduce.preregistered.get("arm_overrides") or {}
    arm_groups, against_groups = (
        _parse_config_groups(overrides.get(arm) or []) for arm in (claim.arm, claim.against)
    )
    groups = list(dict.fromkeys([*arm_groups, *against_groups]))
    differing = [group for group in groups if arm_groups.get(group) != against_groups.get(group)]
    return next(iter([*differing, *groups]), OTHER_AXIS)


def _parse_config_groups(overrides: Iterable[str]) -> dict[str, str]:
    """Return config group -> option, in the order of the overrides."""
    parts = (str(override).partition("=") for override in overrides)
    options = {key.lstrip("+").partition("/")[0]: value for key, _, value in parts}
    return {
        key: value for key, value in options.items() if re.fullmatch(r"\w+", key) and (CONF / key).is_dir()
    }
