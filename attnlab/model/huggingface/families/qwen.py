"""Qwen 2 and 3: Llama with biases or norms of queries and keys, and windows by the layer."""

from dataclasses import replace

from attnlab.model.huggingface import rotation, windows
from attnlab.model.huggingface.families.llama import LLAMA
from attnlab.model.huggingface.families.table import HEADS, LAYERS, Key, Row, keyed, over
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import agreed, number


def _settled(theirs: Config) -> Config:
    theirs = {"num_key_value_heads": 32} | theirs
    window = theirs.get("sliding_window", 4096) if theirs.get("use_sliding_window") else None
    first = agreed({"max_window_layers": theirs.get("max_window_layers", 28)}, number) or 0
    return windows.settled(rotation.settled(theirs), window, lambda n: window is not None and n >= first)


def _spelled(theirs: Config) -> Config:
    theirs = windows.spelled(theirs)
    return theirs | {"use_sliding_window": theirs["sliding_window"] is not None}


QWEN2 = replace(
    LLAMA,
    architecture="Qwen2ForCausalLM",
    model=LLAMA.model | {"bias": False, "attention": windows.unbiased(LLAMA.model["attention"], bias=True)},
    keys=keyed(LLAMA, LAYERS, drop=("attention_bias", "mlp_bias")),
    settled=_settled,
    spelled=_spelled,
)

_NORMED = LLAMA.model["attention"]["heads"] | {"qk_norm": True}
QWEN3 = replace(
    QWEN2,
    architecture="Qwen3ForCausalLM",
    model=LLAMA.model | {"bias": False, "attention": LLAMA.model["attention"] | {"heads": _NORMED}},
    keys=keyed(
        LLAMA,
        LAYERS,
        Key("rms_norm_eps", ("norm.eps", "attention.heads.norm_eps"), 1e-6),
        Key("head_dim", ("attention.heads.head_dim",), 128),
        drop=("mlp_bias",),
    ),
    rows=over(
        LLAMA,
        *(
            Row(HEADS + f"{p}_norm.weight", {f"model.layers.{{n}}.self_attn.{p}_norm.weight": ()})
            for p in "qk"
        ),
    ),
)
