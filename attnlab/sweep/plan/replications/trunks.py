"""Trunks: the steps that runs of several budgets share are trained once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnlab.store.run_schema import RunConfig, Trunk

if TYPE_CHECKING:
    from attnlab.sweep.plan.plan import Plan


def link_trunks(plans: Sequence["Plan"]) -> list["Plan"]:
    """Let each run of a ladder of budgets continue the run of the next smaller one, of its arm and seed.

    The trainer's check says how many steps they have in common, which depends on the schedule.
    """
    linked = {id(plan): plan for plan in plans}
    groups: dict[str, list[Plan]] = {}
    for plan in plans:
        if plan.replication.ladder and plan.replication.ladder.budgets:
            groups.setdefault(plan.group_title, []).append(plan)
    for group in groups.values():
        smaller: dict[tuple[str, int], RunConfig] = {}
        for plan in sorted(group, key=_get_budget):
            runs = []
            for run in plan.runs:
                earlier = smaller.get((run.arm, run.seed))
                shared_steps = earlier.estimate.shared_steps if earlier else None
                trunk = Trunk(id=earlier.id, step=shared_steps) if earlier and shared_steps else None
                keeps_trunk = _get_budget(plan) < max(map(_get_budget, group))
                runs.append(run.with_provenance(trunk=trunk, keeps_trunk=keeps_trunk))
            smaller = {(run.arm, run.seed): run for run in runs}
            linked[id(plan)] = replace(plan, runs=runs)
    return [linked[id(plan)] for plan in plans]


def _get_budget(plan: "Plan") -> float:
    assert plan.replication.ladder is not None
    return plan.replication.ladder.budgets[plan.replication.name]
