"""Arms that look at what they are to predict: their losses compare with nothing, unless they say so."""

from attnlab.report.verdicts.runs import Sweep


def reasons(sweep: Sweep, *arms: str) -> list[dict[str, str]]:
    """Why a claim about these arms cannot be decided: a run of one sees tokens that it is to predict."""
    found = []
    for arm in arms:
        runs = [run.record.foresight for run in sweep.done(arm) if run.record]
        flagged = [seen for seen in runs if seen.get("flagged")]
        if flagged:
            full, prefix = (sum(seen[key] for seen in flagged) / len(flagged) for key in ("full", "prefix"))
            text = (
                f"{arm} sees what it is to predict: a token costs {full:.3g} nats where later ones stand "
                f"beside it and {prefix:.3g} where they do not, in {len(flagged)} of {len(runs)} runs"
            )
            found.append({"label": "sight of the targets", "text": text})
    return found


def caveats(sweep: Sweep) -> list[str]:
    """A sentence for each arm whose mask looks ahead and says so."""
    return [
        f"{arm} sees later tokens, as its mask declares: its losses are not those of a model that predicts."
        for arm in sweep.arms
        if any(run.record and run.record.foresight.get("declared") for run in sweep.done(arm))
    ]
