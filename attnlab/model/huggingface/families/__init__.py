"""How checkpoints are laid out: a table per family, by its `model_type`."""

from collections.abc import Mapping

from attnlab.model.huggingface.families.gpt2 import GPT2
from attnlab.model.huggingface.families.llama import LLAMA, MISTRAL, PHI3
from attnlab.model.huggingface.families.qwen import QWEN2, QWEN3
from attnlab.model.huggingface.families.table import REQUIRED, Config, Family, Key, Layout, Row

__all__ = ["FAMILIES", "LLAMA", "REQUIRED", "Config", "Family", "Key", "Layout", "Row"]

FAMILIES: Mapping[str, Family] = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "mistral": MISTRAL,
    "phi3": PHI3,
}
