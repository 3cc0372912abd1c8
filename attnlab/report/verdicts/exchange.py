"""Differences said as training: what the baseline at half and at twice its steps tells, and every effect so.

`sweep.plan.exchange` plans those runs and decides whether their slope is one to go by; a difference in the
same metric is then so much of a doubling (`stats.trained`).
"""

from attnlab import stats
from attnlab.report.schema import Exchange, Training
from attnlab.report.verdicts.runs import Sweep


def exchange(sweep: Sweep) -> Exchange | None:
    """What was trained and what it tells, with the sentences that say so; None without an exchange."""
    told = sweep.asked.exchange
    if told is None:
        return None
    seeds, (few, steps, many) = ", ".join(map(str, told.seeds)), told.steps
    up = " (half, rounded up)" if steps % 2 else ""
    runs = f"{sweep.baseline} at {few:,}{up} and at {many:,} steps instead of {steps:,}, seeds {seeds}"
    size = f" at size {sweep.experiment.size}" if sweep.experiment.size else ""
    worth = f"A doubling of training is worth {told.worth}{size}"
    return Exchange(
        **dict(told),
        label=sweep.metric(told.metric).words,
        words=f"What training is worth is not known: {told.why}. {runs}" if told.why else f"{worth}: {runs}",
        cost=f"{2 * len(told.seeds)} runs more, of {told.tokens:,} tokens in all, which are in no "
        "arm's figures",
    )


def margin_said(sweep: Sweep) -> str | None:
    """A margin that is declared in training, with what that is in nats; None of one that is a number."""
    words = sweep.experiment.in_words(sweep.experiment.margin)
    margin = sweep.margin
    told = sweep.asked.exchange
    if words is None:
        return None
    if margin is None or told is None:
        return f"{words}, which is not known in nats: {told.why if told else 'there is no exchange'}"
    return f"{words}: {margin:g} nats (a doubling is worth {told.worth})"


def trained(
    sweep: Sweep, metric: str, effect: float | None, interval: tuple[float, float] | None, level: float
) -> Training | None:
    """A difference as training; None where there is no slope for this metric."""
    told = sweep.asked.exchange
    if told is None or told.why or told.metric != metric or effect is None:
        return None
    slope = stats.paired(told.slopes, level)
    found = stats.trained(effect, interval, slope.mean, slope.interval)
    if found is None:
        return None
    # the larger loss is worth the smaller share
    return Training(share=found.share, low=found.high, high=found.low, level=level)
