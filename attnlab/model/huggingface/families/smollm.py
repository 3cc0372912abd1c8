"""SmolLM 3: Llama with layers that do not turn, every fourth one."""

from dataclasses import replace

from attnlab.model.huggingface import rotation, windows
from attnlab.model.huggingface.families.llama import LLAMA
from attnlab.model.huggingface.families.table import LAYERS, Key, keyed
from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import agreed, number, truth


def _settled(theirs: Config) -> Config:
    theirs = rotation.settled({"num_key_value_heads": 4} | theirs, base=2e6)
    every = agreed({"no_rope_layer_interval": theirs.get("no_rope_layer_interval")}, number) or 4
    turns = theirs.get("no_rope_layers")  # 1 for those that turn
    count = windows.layers(theirs)
    turns = [(layer + 1) % every for layer in range(count)] if turns is None else turns
    if not isinstance(turns, list) or len(turns) < count:
        raise ValueError(f"no_rope_layers = {turns!r} is not supported (only a list of {count})")
    window = theirs.get("sliding_window") if theirs.get("use_sliding_window") else None
    beside = [{} if each else {"rotary": None} for each in turns]
    return windows.settled(theirs, window, lambda n: window is not None and not turns[n], beside)


def _spelled(theirs: Config) -> Config:
    turns = windows.turning(theirs)
    theirs = windows.spelled(theirs)
    return theirs | {
        "no_rope_layers": turns,
        "use_sliding_window": theirs["sliding_window"] is not None,
        "rope_theta": theirs["rope_theta"] or 2e6,  # they make its tables, used or not
    }


SMOLLM3 = replace(
    LLAMA,
    architecture="SmolLM3ForCausalLM",
    keys=keyed(LLAMA, LAYERS, Key("tie_word_embeddings", ("tie",), True, truth)),
    settled=_settled,
    spelled=_spelled,
)
