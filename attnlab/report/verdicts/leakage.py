"""Arms that see tokens which they are to predict: their losses compare with nothing, unless the experiment
preregisters that they do.
"""

from attnlab.report.schema import Leakage
from attnlab.report.verdicts.runs import Reason, Sweep
from attnlab.store.schema import RunRecord

BY_DESIGN = "sees future tokens (by design)"


def leaking(sweep: Sweep, arm: str) -> list[RunRecord]:
    """The finished runs of an arm whose predictions of next tokens depend on later ones, or on other rows."""
    records = [run.record for run in sweep.done(arm) if run.record]
    return [record for record in records if _leaks(record)]


def is_by_design(sweep: Sweep, arm: str) -> bool:
    """Whether an arm sees future tokens and the experiment preregisters it under `leakage`."""
    return arm in sweep.experiment.leakage and bool(leaking(sweep, arm))


def reasons(sweep: Sweep, *arms: str) -> list[Reason]:
    """Why these arms cannot be compared: a run of one sees tokens that it is to predict, and the experiment
    does not preregister that.
    """
    found = []
    for arm in dict.fromkeys(arms):
        records = leaking(sweep, arm)
        if not records or is_by_design(sweep, arm):
            continue
        count = f"in {len(records)} of {len(sweep.done(arm))} runs"
        ahead = [record.leakage for record in records if record.leakage.get("sees_future")]
        if ahead:
            text = f"{arm} sees future tokens {count}"
            known = [seen for seen in ahead if seen.get("without_future") is not None]
            if known:
                true, other = (
                    sum(float(seen[key] or 0) for seen in known) / len(known)
                    for key in ("with_future", "without_future")
                )
                text += f": a token costs {true:.3g} nats before its own future, {other:.3g} before another"
        else:
            text = f"the predictions of {arm} depend on the other texts of their batch {count}"
        found.append(Reason("future tokens", text))
    return found


def notes(sweep: Sweep) -> list[str]:
    """A sentence for each arm that sees future tokens, with what that does to its numbers; and for each that
    the experiment says to see them and that does not.
    """
    out = [f"{reason.text}; it is not ranked." for arm in sweep.arms for reason in reasons(sweep, arm)]
    for arm in sweep.arms:
        records = [run.record for run in sweep.done(arm) if run.record]
        if is_by_design(sweep, arm):
            out.append(f"{arm} {BY_DESIGN}: its losses are not those of a model that predicts.")
        elif any(r.leakage.get("sees_future") and not r.leakage.get("next_token", 1) for r in records):
            out.append(f"{arm} sees later tokens, which are not the targets of this task.")
        elif arm in sweep.experiment.leakage and records:
            out.append(f"{arm} is preregistered under leakage, and sees no future tokens.")
    if sweep.left_out:
        prefixes = [arm for arm in sweep.arms if sweep.prefix(arm) == sweep.left_out + 1]
        out.append(
            f"The first {sweep.left_out} targets of each window are left out of every arm's loss: they "
            f"lie in the prefix that {', '.join(prefixes)} sees whole."
        )
    return out


def summary(sweep: Sweep) -> Leakage:
    """What a report keeps of it: the arms that see future tokens, those that do by design, those that were
    checked, how many first targets count in no arm, and the notes.
    """
    return Leakage(
        arms=[arm for arm in sweep.arms if leaking(sweep, arm)],
        by_design=[arm for arm in sweep.arms if is_by_design(sweep, arm)],
        checked=[
            arm for arm in sweep.arms if any(run.record and run.record.leakage for run in sweep.done(arm))
        ],
        left_out=sweep.left_out,
        notes=notes(sweep),
    )


def _leaks(record: RunRecord) -> bool:
    seen = record.leakage
    return bool(seen.get("sees_rows") or (seen.get("sees_future") and seen.get("next_token", 1)))
