"""Reports that test the same arms at the same size on the same corpus, with different results.

A pure function of a folder's report.json files. Arms are the same if their configs are equal except for
`TRAINING_KEYS`, whatever their names are.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from attnlab.report.number_format import format_number
from attnlab.report.schema import ClaimResult, Effect, Report
from attnlab.report.tables.claim_sources import find_same_claim
from attnlab.report.tables.wording import DECIDED_VERDICTS, format_effect
from attnlab.report.verdicts.environment import RESULT_PACKAGES
from attnlab.store.fingerprint import flatten_config

TRAINING_KEYS = re.compile(
    r"optim\.(lr|min_lr|warmup)|trainer\.max_steps|data\.(batch_size|val_windows)"
)  # may differ between two reports on the same arms
UNCOMPARED_KEYS = re.compile(  # seeds are compared as a list; classes of data and training get new names
    r"(.+\.)?seed|measure\..+|protocol\..+|data\.(.+\.)?_target_|optim\.(schedule\.)?_target_"
)
Config = dict[str, Any]  # dotted key -> value


@dataclass(frozen=True)
class Difference:
    """A result or a setting in which two reports differ."""

    label: str
    here: str
    there: str

    def swap(self) -> "Difference":
        """Return the difference as the other report sees it."""
        return Difference(self.label, self.there, self.here)


@dataclass(frozen=True)
class Conflict:
    """A report on the same arms with different results, as seen from another report."""

    folder: str
    results: tuple[Difference, ...]
    settings: tuple[Difference, ...]


@dataclass(frozen=True)
class _ArmPair:
    """Two compared arms of a report, with their configs."""

    folder: str
    report: Report
    arms: tuple[str, str]
    configs: tuple[Config, Config]


def find_conflicts(reports: Mapping[str, Report]) -> dict[str, list[Conflict]]:
    """Find the conflicts among reports, by folder: each is listed under both of its reports."""
    same_pairs: dict[Any, list[_ArmPair]] = {}
    for folder, report in reports.items():
        for key, pair in _list_arm_pairs(folder, report):
            same_pairs.setdefault(key, []).append(pair)
    results: dict[tuple[str, str], list[Difference]] = {}
    settings: dict[tuple[str, str], list[tuple[str, Config, Config]]] = {}
    for pairs in same_pairs.values():
        for here, there in combinations(pairs, 2):
            if _are_on_one_ladder(here.report, there.report) or here.folder == there.folder:
                continue
            if differences := _compare_results(here, there):
                folders = (here.folder, there.folder)
                results.setdefault(folders, []).extend(differences)
                settings.setdefault(folders, []).extend(
                    zip(here.arms, here.configs, there.configs, strict=True)
                )
    conflicts: dict[str, list[Conflict]] = {}
    for (here_folder, there_folder), differences in results.items():
        changed = (
            *_compare_configs(settings[here_folder, there_folder]),
            *_compare_protocols(reports[here_folder], reports[there_folder]),
        )
        conflict = Conflict(there_folder, tuple(differences), changed)
        conflicts.setdefault(here_folder, []).append(conflict)
        conflicts.setdefault(there_folder, []).append(
            Conflict(here_folder, tuple(row.swap() for row in differences), tuple(r.swap() for r in changed))
        )
    return conflicts


def _are_on_one_ladder(here: Report, there: Report) -> bool:
    """Whether a ladder's own report compares both."""
    context, other = here.replication, there.replication
    return bool(
        context
        and other
        and context.kind == other.kind == "rung"
        and context.combined_report == other.combined_report
    )


def _list_arm_pairs(folder: str, report: Report) -> Iterator[tuple[Any, _ArmPair]]:
    """List the pairs of arms that a report compares, with a key that the same pair has in every report."""
    configs = {arm: _build_config(report, arm) for arm in report.experiment.arms}
    designs = {
        arm: frozenset(
            (key, repr(value)) for key, value in config.items() if not TRAINING_KEYS.fullmatch(key)
        )
        for arm, config in configs.items()
    }
    compared = [(effect.arm, effect.against) for effect in report.effects]
    compared += [(claim.arm, claim.against) for claim in report.verdict.claims]
    for arm, against in dict.fromkeys(compared):
        if designs.get(arm) and designs.get(against) and designs[arm] != designs[against]:
            corpora = tuple((data.get("name"), data.get("unit")) for data in report.reproduce.data)
            experiment = report.experiment
            key = experiment.size, experiment.metric, corpora, designs[arm], designs[against]
            yield key, _ArmPair(folder, report, (arm, against), (configs[arm], configs[against]))


def _build_config(report: Report, arm: str) -> Config:
    """Build the flat config of an arm; empty if no run has one, or if the arm continues another's runs."""
    overrides = (report.reproduce.preregistered.get("arm_overrides") or {}).get(arm) or []
    if arm not in report.config.arms or any(str(override).startswith("parent=") for override in overrides):
        return {}
    config = dict(flatten_config(report.config.baseline_config))
    cells = {row.key: cell for row in report.config.rows for cell in row.cells if cell.arm == arm}
    config |= {key: cell.value for key, cell in cells.items()}
    config["schedule"] = report.axes.get(arm, {}).get("schedule", "cosine")  # older reports name none
    return {
        key: value
        for key, value in config.items()
        if not UNCOMPARED_KEYS.fullmatch(key) and (key not in cells or cells[key].present)
    }


def _compare_results(here: _ArmPair, there: _ArmPair) -> list[Difference]:
    """Compare effects, which differ if their intervals are disjoint, and the verdicts of the same claims."""
    label = " vs ".join(here.arms)
    differences = []
    effect, other_effect = _find_effect(here), _find_effect(there)
    if effect and other_effect and _are_disjoint(effect, other_effect):
        differences.append(Difference(label, _format_effect(effect), _format_effect(other_effect)))
    other_claims = _list_claims(there)
    for claim in _list_claims(here):
        other = find_same_claim(claim, other_claims)
        if other and other.verdict != claim.verdict:
            differences.append(Difference(f"claim on {label}", str(claim.verdict), str(other.verdict)))
    return differences


def _find_effect(pair: _ArmPair) -> Effect | None:
    rows = (row for row in pair.report.effects if row.primary and row.verdict.is_judgment)
    return next((row for row in rows if (row.arm, row.against) == pair.arms), None)


def _list_claims(pair: _ArmPair) -> list[ClaimResult]:
    return [
        claim
        for claim in pair.report.verdict.claims
        if (claim.arm, claim.against) == pair.arms
        and claim.verdict in DECIDED_VERDICTS
        and not claim.decision.exact
    ]


def _are_disjoint(effect: Effect, other: Effect) -> bool:
    if effect.low is None or effect.high is None or other.low is None or other.high is None:
        return False
    return effect.high < other.low or other.high < effect.low


def _format_effect(effect: Effect) -> str:
    return f"{format_effect(effect)} ({effect.verdict})"


def _compare_configs(configs_by_arm: list[tuple[str, Config, Config]]) -> list[Difference]:
    """Compare the configs of each arm in two reports: one row where a key differs alike in all arms."""
    rows: dict[str, dict[str, tuple[str, str]]] = {}
    arms = dict.fromkeys(arm for arm, _, _ in configs_by_arm)
    for arm, here, there in configs_by_arm:
        for key in here.keys() | there.keys():
            if here.get(key) != there.get(key):
                rows.setdefault(key, {})[arm] = (_format_value(here.get(key)), _format_value(there.get(key)))
    differences = []
    for key in sorted(rows, key=lambda key: (not key.startswith("optim."), key)):
        values = set(rows[key].values())
        if len(rows[key]) == len(arms) and len(values) == 1:
            differences.append(Difference(key, *values.pop()))
        else:
            differences += [Difference(f"{key} of {arm}", *values) for arm, values in rows[key].items()]
    return differences


def _compare_protocols(here: Report, there: Report) -> list[Difference]:
    protocols = [_describe_protocol(report) for report in (here, there)]
    keys = dict.fromkeys(key for protocol in protocols for key in protocol)
    values = [(key, *(protocol.get(key, _format_value(None)) for protocol in protocols)) for key in keys]
    return [Difference(*row) for row in values if row[1] != row[2]]


def _describe_protocol(report: Report) -> dict[str, str]:
    """Describe the settings of a comparison that no arm's config has."""
    experiment, provenance = report.experiment, report.reproduce
    tune = report.preregistration.content.tune if report.preregistration else None
    protocol: Config = {f"tune.{key}": value for key, value in dict(tune or {}).items()}
    seeds = sorted(experiment.seeds)
    protocol |= {
        "seeds": f"{len(seeds)} ({seeds[0]} to {seeds[-1]})" if len(seeds) > 1 else seeds,
        "looks": experiment.looks,
        "margin": experiment.margin,
    }
    protocol |= {name: [*(provenance.versions or {}).get(name, {})] for name in RESULT_PACKAGES}
    protocol |= {"device": provenance.device, "commit": (provenance.commit or "")[:10] or None}
    return {key: _format_value(value) for key, value in protocol.items()}


def _format_value(value: Any) -> str:
    if value is None:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else format_number(value)
