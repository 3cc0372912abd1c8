"""How checkpoints are laid out: a table of families, by their `model_type`."""

from attnlab.model.huggingface.families.parts import REQUIRED, Config, Family, Key, Layout, Row
from attnlab.model.huggingface.families.table import FAMILIES, LLAMA

__all__ = ["FAMILIES", "LLAMA", "REQUIRED", "Config", "Family", "Key", "Layout", "Row"]
