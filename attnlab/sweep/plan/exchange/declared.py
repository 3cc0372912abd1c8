"""Margins and thresholds that are the margin, or a share of the training: which of them do not stand."""

from attnlab.errors import Refused
from attnlab.store.declarations import LESS, MARGIN, Claim, Experiment, canonical
from attnlab.store.experiment_files import Key


def refuse_margin(experiment: Experiment) -> None:
    """Refused where the margin is below 0, or is nothing and a claim lies within it."""
    name = experiment.name
    margin = experiment.margin
    if isinstance(margin, float) and margin < 0:
        raise Refused(f"margin={margin:g} of {name}: no margin is below 0", ("margin",))
    if margin == 0 and any(c.threshold == MARGIN and c.relation.two_sided for c in experiment.claims):
        raise Refused(f"margin=0 of {name}: nothing lies within it, as a claim asks", ("margin",))


def refuse_threshold(claim: Claim, metric: str, what: str, at: Key) -> None:
    """Refused where a threshold that is the margin, or a share of the training, does not fit the claim."""
    asked = f"{what}: is: {claim.relation.name}, threshold: {claim.threshold}"
    if claim.compare == "ratio" or canonical(claim.metric or metric) != canonical(metric):
        raise Refused(
            f"{asked}: that is a difference in {metric}, which this claim is not about; give a number", at
        )
    if claim.relation.two_sided and claim.threshold == LESS:
        raise Refused(f"{asked}: how far from no difference? give margin", at)
