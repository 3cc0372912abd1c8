"""Trunks: the steps that runs of several budgets share are trained once."""

from collections.abc import Sequence

from attnlab.store.run_schema import RunConfig, Trunk


def link_trunks(runs_by_budget: Sequence[tuple[float, Sequence[RunConfig]]]) -> list[list[RunConfig]]:
    """Let each run continue the run of the next smaller budget, of its arm and seed.

    The trainer's check says how many steps they have in common, which depends on the schedule.

    Args:
        runs_by_budget: the runs of each budget, the smallest first.
    """
    linked = list[list[RunConfig]]()
    smaller: dict[tuple[str, int], RunConfig] = {}
    for budget, runs in runs_by_budget:
        linked.append([])
        for run in runs:
            earlier = smaller.get((run.arm, run.seed))
            shared_steps = earlier.estimate.shared_steps if earlier else None
            trunk = Trunk(id=earlier.id, step=shared_steps) if earlier and shared_steps else None
            keeps_trunk = budget < runs_by_budget[-1][0]
            linked[-1].append(run.with_provenance(trunk=trunk, keeps_trunk=keeps_trunk))
        smaller = {(run.arm, run.seed): run for run in linked[-1]}
    return linked
