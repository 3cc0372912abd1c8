"""Gate before training: an arm that breaks an invariant of attention publishes no numbers.

Results are cached by the config of the layers, blocks, residual stream and parametrization, their source code
and that of the invariants, and the version of torch, so only new or edited ones cost a check (about a second
each).
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store import disk_cache, fingerprint
from attnlab.store.guards.trust import DEFAULT_TRAINER
from attnlab.store.source_digests import hash_sources
from attnlab.sweep.plan.checker import Checker
from attnlab.sweep.plan.plan import Plan
from attnlab.sweep.slow_notice import notify_if_slow

INVARIANTS_MODULE = "attnlab.testing"  # the part of attnlab's own trainer that decides the invariants
_MODEL_KEYS = ("attention", "mixer", "positions", "layers", "block", "residual", "parametrization")


def collect_broken_invariants(plans: Sequence[Plan], checker: Checker) -> dict[str, list[str]]:
    """Map each arm to the invariants that it breaks, each with its smallest failing case; omit sound arms."""
    broken_by_arm: dict[str, list[str]] = {}
    broken_by_key: dict[str, list[str]] = {}
    module = INVARIANTS_MODULE if checker.module == DEFAULT_TRAINER else checker.module
    for plan in plans:
        for arm, runs in plan.group_runs_by_arm().items():
            config = runs[0].config
            key = make_cache_key(config, module)
            if key not in broken_by_key:
                broken_by_key[key] = _load_or_verify_invariants(config, key, checker)
            if broken_by_key[key]:
                broken_by_arm[arm] = broken_by_key[key]
    return broken_by_arm


def reject_broken_arms(broken_by_arm: Mapping[str, Sequence[str]]) -> None:
    """Check the outcome of the invariants."""
    for arm, broken in broken_by_arm.items():
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise InvalidConfig(
            f"arm {arm} breaks an attention invariant: {broken[0]}{more}; fix it (python -m "
            "attnlab check lists all), or set sweep.unchecked=true, which the report will note"
        )


def make_cache_key(config: Mapping[str, Any], module: str) -> str:
    """Return one key per config of the tested parts, source code and version of torch."""
    parts = {key: config["model"].get(key) for key in _MODEL_KEYS}
    cache = (config.get("decode") or {}).get("cache")
    tested = {"parts": parts, "cache": cache}
    sources = hash_sources([module, *fingerprint.find_target_names(tested)])
    files = fingerprint.hash_named_files(tested)
    return fingerprint.compute_digest([parts, cache, sources | files, fingerprint.get_minor_versions()])


def _load_or_verify_invariants(config: Mapping[str, Any], key: str, checker: Checker) -> list[str]:
    cached = disk_cache.read_cache_entry(config, "invariants", key)
    if isinstance(cached, list):
        return cached
    broken = checker.find_broken_invariants(config)
    disk_cache.write_cache_entry(config, "invariants", key, broken)
    return broken


@notify_if_slow("checking the attention invariants of every arm")
def check_invariants(plans: Sequence[Plan], checker: Checker, unchecked: bool) -> None:
    """Reject arms that break an invariant.

    With `unchecked` each plan lists them instead, and a line per broken invariant goes to stderr.
    """
    broken_by_arm = collect_broken_invariants(plans, checker)
    if not unchecked:
        reject_broken_arms(broken_by_arm)
    for plan in plans:
        plan_broken = {arm: broken_by_arm[arm] for arm in plan.group_runs_by_arm() if arm in broken_by_arm}
        plan.unchecked = tuple(
            f"{arm} breaks {invariant}" for arm, names in plan_broken.items() for invariant in names
        )
        for line in plan.unchecked:
            print(f"unchecked: {line}", file=sys.stderr)
