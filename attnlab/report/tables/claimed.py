"""The claims of a stored report beside the experiment file of today: the same question, in words that may
have been mended since, with its source and the reason of its threshold.

Surprising: a claim is known by what it asks (which arms, of what, where the result is to lie), not by its
words, so that words can be mended without training anything again.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from omegaconf import OmegaConf
from pydantic import ValidationError

from attnlab.config import CONF
from attnlab.report.schema import DeclaredClaim, Report
from attnlab.store.declarations import Claim, canonical, in_nats
from attnlab.store.schema import Record

CITED = ("says", "source", "source_says", "other_source", "other_says")
OF_THE_THRESHOLD = ("reason", "identity")
OTHER = "other"  # the axis of arms that set no config group
C = TypeVar("C", bound=DeclaredClaim)


class Citation(Record):
    """The words of a claim with its sources: who says so and what exactly, and who finds otherwise."""

    says: str
    source: str | None = None
    source_says: str | None = None
    other_source: str | None = None
    other_says: str | None = None
    reason: str | None = None
    identity: bool | None = None


class FiledClaim(DeclaredClaim):
    """A claim as an experiment file has it, with what it leaves out filled in."""

    source: str | None
    source_says: str | None
    other_source: str | None
    other_says: str | None


def same(claim: DeclaredClaim, claims: Sequence[C]) -> C | None:
    """The one of `claims` that asks what `claim` asks, else the one in its words; None without one."""
    alike = [other for other in claims if other.question == claim.question]
    worded = [other for other in alike or claims if other.says == claim.says]
    return next(iter([*worded, *alike]), None)


def cited(report: Report) -> list[Citation]:
    """Each claim of a report with its words and sources: from today's experiment file before what the report
    was declared with.
    """
    stored = _declared(report)
    today = _today(report)
    return [
        Citation(**{"says": claim.says} | _cite(claim, stored) | _cite(claim, today))
        for claim in report.verdict.claims
    ]


def declared(report: Report) -> list[Citation]:
    """The same for each claim as it was declared, whatever its file says today."""
    stored = _declared(report)
    return [Citation(**{"says": claim.says} | _cite(claim, stored)) for claim in report.verdict.claims]


def _cite(claim: DeclaredClaim, claims: Sequence[FiledClaim]) -> dict[str, Any]:
    """What is declared with a claim; of its threshold only where that is still the same."""
    twin = same(claim, claims)
    if twin is None:
        return {}
    keys = (*CITED, *OF_THE_THRESHOLD) if twin.question == claim.question else CITED
    return {key: value for key in keys if (value := getattr(twin, key)) is not None}


def _declared(report: Report) -> list[FiledClaim]:
    return _filled(report.reproduce.declared, report)


def _today(report: Report) -> list[FiledClaim]:
    path = CONF / "experiment" / f"{report.experiment.name}.yaml"
    if not path.is_file():
        return []
    declared = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(declared, dict)
    return _filled({str(key): value for key, value in declared.items()}, report)


def _filled(declared: Mapping[str, Any], report: Report) -> list[FiledClaim]:
    """Claims with what they leave out, as the report's rows have it; those that cannot be read are not."""
    slope = report.exchange.slope if report.exchange and not report.exchange.why else None
    filed = list[FiledClaim]()
    for written in declared.get("claims") or []:
        with suppress(ValidationError):
            claim = Claim.model_validate(written)
            threshold = in_nats(claim.threshold, declared.get("margin"), slope.mean if slope else None)
            known = {key: getattr(claim, key) for key in Claim.model_fields}
            known |= {
                "against": claim.against or declared.get("baseline") or report.experiment.baseline,
                "metric": canonical(claim.metric or declared.get("metric") or report.experiment.metric),
                "threshold": threshold,
                "threshold_said": None,
            }
            filed.append(FiledClaim(**known))
    return filed


def axis(report: Report, claim: DeclaredClaim) -> str:
    """The config group that a claim is about: the first that its two arms choose differently, else the first
    that either chooses.
    """
    declared = report.reproduce.declared.get("arm_overrides") or {}
    ours, theirs = (_groups(declared.get(arm) or []) for arm in (claim.arm, claim.against))
    chosen = list(dict.fromkeys([*ours, *theirs]))
    differing = [group for group in chosen if ours.get(group) != theirs.get(group)]
    return next(iter([*differing, *chosen]), OTHER)


def _groups(overrides: Iterable[str]) -> dict[str, str]:
    """Config group -> the option that overrides choose, in their order."""
    words = (str(override).partition("=") for override in overrides)
    chosen = {key.lstrip("+").partition("/")[0]: value for key, _, value in words}
    return {
        key: value for key, value in chosen.items() if re.fullmatch(r"\w+", key) and (CONF / key).is_dir()
    }
