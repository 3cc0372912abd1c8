"""What an experiment declares before its first run, as types. In: values of YAML; out: records."""

from attnlab.store.declarations.amounts import (
    AMOUNTS,
    FORMS,
    LESS,
    MARGIN,
    Margin,
    Threshold,
    Training,
    in_nats,
)
from attnlab.store.declarations.experiment import (
    FIGURES,
    SPENT,
    Claim,
    Exchange,
    Experiment,
    Looks,
    Tune,
    canonical,
)
from attnlab.store.declarations.ladder import Ladder, Rates

__all__ = [
    "AMOUNTS", "FIGURES", "FORMS", "LESS", "MARGIN", "SPENT", "Claim", "Exchange", "Experiment", "Ladder",
    "Looks", "Margin", "Rates", "Threshold", "Training", "Tune", "canonical", "in_nats",
]  # fmt: skip
