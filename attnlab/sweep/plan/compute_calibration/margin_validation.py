"""Validation of margins, and of thresholds that refer to the margin or to training compute."""

from attnlab.errors import InvalidConfig
from attnlab.store.experiment_files import KeyPath
from attnlab.store.experiment_schema import MARGIN, NEGATIVE_MARGIN, Claim, Experiment, resolve_resource_alias


def validate_margin(experiment: Experiment) -> None:
    """Check the margin of an experiment.

    Raises:
        InvalidConfig: The margin is negative, or it is 0 and a claim asserts equivalence within it.
    """
    name = experiment.name
    margin = experiment.margin
    if isinstance(margin, float) and margin < 0:
        raise InvalidConfig(
            f"margin={margin:g} of {name}: a margin must not be negative; give a number above 0", ("margin",)
        )
    if margin == 0 and any(
        claim.threshold == MARGIN and claim.relation.is_two_sided for claim in experiment.claims
    ):
        raise InvalidConfig(
            f"margin=0 of {name}: no effect can satisfy the claim with is: within; give a number above 0",
            ("margin",),
        )


def validate_margin_threshold(claim: Claim, metric: str, what: str, key_path: KeyPath) -> None:
    """Check a threshold that is the margin or a proportion of training compute.

    Raises:
        InvalidConfig: The claim is a ratio or about another metric, or is two-sided with a negative margin.
    """
    condition = f"{what}: is: {claim.relation.name}, threshold: {claim.threshold}"
    if claim.compare == "ratio" or resolve_resource_alias(claim.metric or metric) != resolve_resource_alias(
        metric
    ):
        raise InvalidConfig(
            f"{condition}: this threshold is a difference in {metric}, but the claim uses another "
            "metric or a ratio; give a number",
            key_path,
        )
    if claim.relation.is_two_sided and claim.threshold == NEGATIVE_MARGIN:
        raise InvalidConfig(f"{condition}: an equivalence bound must not be negative; use margin", key_path)
