"""The claims of a stored report beside the experiment file of today: the same question, in words that may
have been mended since, with its source and the reason of its threshold.

Surprising: a claim is known by what it asks (which arms, of what, where the result is to lie), not by its
words, so that words can be mended without training anything again.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from attnlab.config import CONF
from attnlab.store.declarations import canonical, in_nats

Claim = Mapping[str, Any]  # as a report's row, with `against`, `metric` and `compare` filled in
CITED = ("says", "source", "source_says", "other_source", "other_says")
OF_THE_THRESHOLD = ("reason", "identity")
OTHER = "other"  # the axis of arms that set no config group


def question(claim: Claim) -> tuple[Any, ...]:
    """What a claim asks, without its words."""
    return tuple(claim.get(key) for key in ("arm", "against", "metric", "compare", "is", "threshold"))


def same(claim: Claim, claims: Sequence[Claim]) -> Claim | None:
    """The one of `claims` that asks what `claim` asks, else the one in its words; None without one."""
    alike = [other for other in claims if question(other) == question(claim)]
    worded = [other for other in alike or claims if other.get("says") == claim.get("says")]
    return next(iter([*worded, *alike]), None)


def cited(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each claim of a report its `says`, its sources and what they say, `reason` and `identity`, where
    known: from today's experiment file before what the report was declared with.
    """
    stored = _declared(report)
    today = _today(report)
    return [
        {"says": claim["says"], **_told(claim, stored), **_told(claim, today)}
        for claim in report["verdict"]["claims"]
    ]


def declared(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same for each claim as it was declared, whatever its file says today."""
    stored = _declared(report)
    empty = dict.fromkeys(CITED)
    return [{**empty, **_told(claim, stored)} for claim in report["verdict"]["claims"]]


def _told(claim: Claim, claims: Sequence[Claim]) -> dict[str, Any]:
    """What is declared with a claim; of its threshold only where that is still the same."""
    twin = same(claim, claims) or {}
    keys = (*CITED, *OF_THE_THRESHOLD) if question(twin) == question(claim) else CITED
    return {key: twin[key] for key in keys if twin.get(key) is not None}


def _declared(report: Mapping[str, Any]) -> list[Claim]:
    return _filled(report["reproduce"].get("declared") or {}, report)


def _today(report: Mapping[str, Any]) -> list[Claim]:
    path = CONF / "experiment" / f"{report['experiment']['name']}.yaml"
    if not path.is_file():
        return []
    declared = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(declared, dict)
    return _filled({str(key): value for key, value in declared.items()}, report)


def _filled(declared: Mapping[str, Any], report: Mapping[str, Any]) -> list[Claim]:
    """Claims with what they leave out, as the report's rows have it."""
    whole = {**report["experiment"], **declared}
    told = report.get("exchange") or {"why": "there is none"}
    slope = None if told["why"] else told["slope"]["mean"]
    return [
        {
            **claim,
            "threshold": in_nats(claim.get("threshold"), declared.get("margin"), slope),
            "against": claim.get("against") or whole["baseline"],
            "metric": canonical(claim.get("metric") or whole["metric"]),
            "compare": claim.get("compare") or "difference",
        }
        for claim in declared.get("claims") or []
    ]


def axis(report: Mapping[str, Any], claim: Claim) -> str:
    """The config group that a claim is about: the first that its two arms choose differently, else the first
    that either chooses.
    """
    declared = (report["reproduce"].get("declared") or {}).get("arm_overrides") or {}
    ours, theirs = (_groups(declared.get(claim[side]) or []) for side in ("arm", "against"))
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
