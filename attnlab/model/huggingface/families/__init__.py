"""Checkpoint formats: a table of model families, by their `model_type`."""

from attnlab.model.huggingface.families.checkpoint_family import (
    REQUIRED,
    Config,
    ConfigKey,
    Family,
    Layout,
    TensorRow,
)
from attnlab.model.huggingface.families.family_table import FAMILIES, LLAMA

__all__ = ["FAMILIES", "LLAMA", "REQUIRED", "Config", "ConfigKey", "Family", "Layout", "TensorRow"]
