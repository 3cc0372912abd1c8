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
from attnlab.store.declarations.relations import RELATIONS, Is, Relation

__all__ = [
    "AMOUNTS", "FIGURES", "FORMS", "LESS", "MARGIN", "RELATIONS", "SPENT", "Claim", "Exchange", "Experiment",
    "Is", "Ladder", "Looks", "Margin", "Rates", "Relation", "Threshold", "Training", "Tune", "canonical",
    "in_nats",
]  # fmt: skip
