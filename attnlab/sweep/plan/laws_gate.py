"""An arm that breaks a law of attention publishes no numbers: tried before anything is trained.

What was found is kept in the cache, by the config of the layers, the source that it and the laws are made
of, and the version of torch; so only what is new or edited costs its second.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.errors import Refused
from attnlab.store import answers, fingerprint
from attnlab.store.guards.trust import TRAINER
from attnlab.store.source import sources
from attnlab.sweep.plan.checks import Checker
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.waiting import waiting

LAWS = "attnlab.testing"  # what attnlab's own trainer verifies with; the rest of it decides no law
_MADE_OF = ("attention", "mixer", "positions", "layers")


def broken(plans: Sequence[Plan], checker: Checker) -> dict[str, list[str]]:
    """Arm -> the laws that it breaks, each with its smallest failing case; without the arms that obey."""
    by_arm: dict[str, list[str]] = {}
    known: dict[str, list[str]] = {}
    module = LAWS if checker.module == TRAINER else checker.module
    for plan in plans:
        for arm, runs in plan.arms().items():
            config = runs[0].config
            key = name(config, module)
            if key not in known:
                known[key] = _remembered(config, key, checker)
            if known[key]:
                by_arm[arm] = known[key]
    return by_arm


def refuse(by_arm: Mapping[str, Sequence[str]]) -> None:
    """Refused, where there is a broken law."""
    for arm, laws in by_arm.items():
        more = f" (and {len(laws) - 1} more)" if len(laws) > 1 else ""
        raise Refused(
            f"arm {arm} breaks a law of attention: {laws[0]}{more}; mend it (python -m attnlab check shows "
            f"all), or set sweep.unchecked=true and have the report say so"
        )


def name(config: Mapping[str, Any], module: str) -> str:
    """One name per kind of layer, source and version of torch."""
    parts = {key: config["model"].get(key) for key in _MADE_OF}
    cache = (config.get("decode") or {}).get("cache")
    targets = fingerprint.targets({"parts": parts, "cache": cache})
    return fingerprint.digest([parts, cache, sources([module, *targets]), fingerprint.minor_versions()])


def _remembered(config: Mapping[str, Any], key: str, checker: Checker) -> list[str]:
    kept = answers.kept(config, "laws", key)
    if isinstance(kept, list):
        return kept
    laws = checker.broken_laws(config)
    answers.keep(config, "laws", key, laws)
    return laws


@waiting("checking that every arm obeys the laws of attention")
def check(plans: Sequence[Plan], checker: Checker, unchecked: bool) -> None:
    """Refuses arms that break a law; with `unchecked` each plan remembers them, and stderr is told."""
    found = broken(plans, checker)
    if not unchecked:
        refuse(found)
    for plan in plans:
        laws = {arm: found[arm] for arm in plan.arms() if arm in found}
        plan.unchecked = tuple(f"{arm} breaks {law}" for arm, names in laws.items() for law in names)
        for line in plan.unchecked:
            print(f"unchecked: {line}", file=sys.stderr)
