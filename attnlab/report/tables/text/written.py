"""What each arm writes after the same prompt: one run of each, of the same seed where there is such one."""

from attnlab.report.schema import Sample
from attnlab.report.verdicts.runs import Sweep


def written(sweep: Sweep) -> list[Sample]:
    """Per arm its `sample` after `prompt`, or `why` there is none; the text itself goes on with `rest`."""
    having = {
        arm: [run for run in sweep.done(arm) if run.record and run.record.written] for arm in sweep.arms
    }
    seeds = [{run.seed for run in runs} for runs in having.values() if runs]
    shared = next((seed for seed in sweep.seeds if seeds and all(seed in some for some in seeds)), None)
    rows = []
    for arm, runs in having.items():
        run = next((run for run in runs if run.seed == shared), next(iter(runs), None))
        if run is not None and run.record is not None:
            rows.append(Sample(arm=arm, seed=run.seed, run=run.id, **run.record.written))
    return rows
