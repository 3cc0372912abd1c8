"""Sliding-window layers: layer types in their configs, patches of layers in ours."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnlab.model.huggingface.config_values import require_number
from attnlab.model.huggingface.rope_config import Config
from attnlab.store.config_groups import MAX_LAYERS

LAYER_TYPES = ("full_attention", "sliding_attention")


def make_window_mask(size: Any) -> Config:
    """Make our mask config of a window of `size` tokens, including the query's own."""
    return {"_target_": "attnlab.attention.masks.window.window", "size": require_number(size)}


def get_mask_size(mask: Any) -> Any:
    """Return the window size of a mask config, or None."""
    return mask.get("size") if isinstance(mask, Mapping) else None


def get_window_size(mixer: Config) -> Any:
    """Return the window size of a mixer config, or None."""
    return get_mask_size((mixer.get("masks") or {}).get("window"))


def count_layers(theirs: Config) -> int:
    """Return the number of layers; 0 for an invalid value, which its own key rejects."""
    count = theirs.get("num_hidden_layers")
    return count if isinstance(count, int) and 0 < count <= MAX_LAYERS else 0


def normalize_windows(
    theirs: Config, window: Any, is_sliding: Callable[[int], bool], extra_patches: Sequence[Any] = ()
) -> Config:
    """Add `layers` to `theirs`, a patch per layer that gives sliding layers their window.

    Sliding layers follow from `layer_types`, or in its absence from `is_sliding`. `extra_patches` has one
    patch per layer to extend.

    Raises:
        ValueError: Unknown layer types, too few of them, or a window without a size.
    """
    count = count_layers(theirs)
    kinds = theirs.get("layer_types")
    kinds = [LAYER_TYPES[is_sliding(layer)] for layer in range(count)] if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) < count or any(kind not in LAYER_TYPES for kind in kinds):
        raise ValueError(
            f"layer_types = {kinds!r} is not supported (only {count} of {', '.join(LAYER_TYPES)})"
        )
    patches: list[Config] = [dict(extra_patches[layer]) if extra_patches else {} for layer in range(count)]
    for patch, kind in zip(patches, kinds, strict=False):
        if kind == LAYER_TYPES[1]:
            if window is None:
                raise ValueError("sliding_window is missing, and a layer of layer_types needs it")
            patch["masks"] = {"window": make_window_mask(window)}
    return theirs | {"layers": patches if any(patches) else None}


def denormalize_windows(theirs: Config) -> Config:
    """Replace the mixers in `layers` by `layer_types` and `sliding_window`, the first of all windows."""
    sizes = [get_window_size(mixer) for mixer in theirs.get("layers") or ()]
    window_sizes = [n for n in sizes if n is not None]
    plain = {key: value for key, value in theirs.items() if key != "layers"}
    types = [LAYER_TYPES[n is not None] for n in sizes]
    return plain | {"sliding_window": window_sizes[0] if window_sizes else None, "layer_types": types}


def list_rotary_flags(theirs: Config) -> list[int]:
    """Return 1 for each mixer in `layers` with RoPE and 0 for each other one."""
    return [int(mixer.get("rotary") is not None) for mixer in theirs.get("layers") or ()]
