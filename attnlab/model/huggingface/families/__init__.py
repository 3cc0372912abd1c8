"""How checkpoints are laid out: a table per family, by its `model_type`."""

from collections.abc import Mapping

from attnlab.model.huggingface.families.deepseek import DEEPSEEK_V3
from attnlab.model.huggingface.families.diffllama import DIFFLLAMA
from attnlab.model.huggingface.families.falcon import FALCON, MPT
from attnlab.model.huggingface.families.gemma import GEMMA2, GEMMA3
from attnlab.model.huggingface.families.gpt2 import GPT2
from attnlab.model.huggingface.families.gpt_neox import GPT_NEOX
from attnlab.model.huggingface.families.gpt_oss import GPT_OSS
from attnlab.model.huggingface.families.llama import LLAMA, MISTRAL, PHI3
from attnlab.model.huggingface.families.olmo import OLMO2
from attnlab.model.huggingface.families.qwen import QWEN2, QWEN3
from attnlab.model.huggingface.families.smollm import SMOLLM3
from attnlab.model.huggingface.families.table import REQUIRED, Config, Family, Key, Layout, Row

__all__ = ["FAMILIES", "LLAMA", "REQUIRED", "Config", "Family", "Key", "Layout", "Row"]

FAMILIES: Mapping[str, Family] = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "mistral": MISTRAL,
    "phi3": PHI3,
    "gpt_neox": GPT_NEOX,
    "smollm3": SMOLLM3,
    "olmo2": OLMO2,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gpt_oss": GPT_OSS,
    "deepseek_v3": DEEPSEEK_V3,
    "mpt": MPT,
    "falcon": FALCON,
    "diffllama": DIFFLLAMA,
}
