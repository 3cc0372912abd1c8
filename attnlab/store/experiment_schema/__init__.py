"""Typed schema of an experiment file: arms, seeds, margin, claims, tuning and ladder."""

from attnlab.store.experiment_schema.amounts import (
    AMOUNT_FORMS,
    AMOUNT_KEYS,
    MARGIN,
    NEGATIVE_MARGIN,
    ComputeProportion,
    Margin,
    Threshold,
    convert_to_nats,
    describe_training_amount,
)
from attnlab.store.experiment_schema.claim_forms import FORMS, ExpandedClaims, expand_claims
from attnlab.store.experiment_schema.experiment_config import (
    RESOURCE_ALIASES,
    TUNING_TOKENS,
    Claim,
    ComputeCalibrationConfig,
    Experiment,
    InterimSchedule,
    TuningConfig,
    format_sides,
    resolve_resource_alias,
)
from attnlab.store.experiment_schema.ladder_config import LadderConfig, LearningRateScaling
from attnlab.store.experiment_schema.relations import RELATIONS, Relation, RelationField
from attnlab.store.experiment_schema.swept_grid import SweptGrid

__all__ = [
    "AMOUNT_FORMS",
    "AMOUNT_KEYS",
    "FORMS",
    "MARGIN",
    "NEGATIVE_MARGIN",
    "RELATIONS",
    "RESOURCE_ALIASES",
    "TUNING_TOKENS",
    "Claim",
    "ComputeCalibrationConfig",
    "ComputeProportion",
    "ExpandedClaims",
    "Experiment",
    "InterimSchedule",
    "LadderConfig",
    "LearningRateScaling",
    "Margin",
    "Relation",
    "RelationField",
    "SweptGrid",
    "Threshold",
    "TuningConfig",
    "convert_to_nats",
    "describe_training_amount",
    "expand_claims",
    "format_sides",
    "resolve_resource_alias",
]  # fmt: skip
