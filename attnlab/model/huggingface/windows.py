"""Layers that see a window of the past: by their type in a config of theirs, by patches in ours."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnlab.model.huggingface.rotation import Config
from attnlab.model.huggingface.values import number
from attnlab.store.values import MOST_LAYERS

TYPES = ("full_attention", "sliding_attention")


def mask(size: Any) -> Config:
    """Our mask of so many tokens, the own one among them."""
    return {"_target_": "attnlab.attention.masks.window.window", "size": number(size)}


def size(mask: Any) -> Any:
    """The size of such a mask; None where it is none."""
    return mask.get("size") if isinstance(mask, Mapping) else None


def of(mixer: Config) -> Any:
    """The size of a mixer's window, or None."""
    return size((mixer.get("masks") or {}).get("window"))


def layers(theirs: Config) -> int:
    """How many there are; 0 for a number that is refused where it is read."""
    count = theirs.get("num_hidden_layers")
    return count if isinstance(count, int) and 0 < count <= MOST_LAYERS else 0


def settled(theirs: Config, window: Any, slides: Callable[[int], bool], beside: Sequence[Any] = ()) -> Config:
    """`theirs` with `layers`, a patch for each: those slide that `layer_types` says, or without it `slides`.
    `beside` are further patches, one a layer.

    ValueError for types that are unknown or too few, and for a window without a size.
    """
    count = layers(theirs)
    kinds = theirs.get("layer_types") or [TYPES[slides(layer)] for layer in range(count)]
    if not isinstance(kinds, list) or len(kinds) < count or any(kind not in TYPES for kind in kinds):
        raise ValueError(f"layer_types = {kinds!r} is not supported (only {count} of {', '.join(TYPES)})")
    patches: list[Config] = [dict(beside[layer]) if beside else {} for layer in range(count)]
    for patch, kind in zip(patches, kinds, strict=False):
        if kind == TYPES[1]:
            if window is None:
                raise ValueError("sliding_window is missing, and a layer of layer_types needs it")
            patch["masks"] = {"window": mask(window)}
    return theirs | {"layers": patches if any(patches) else None}


def spelled(theirs: Config) -> Config:
    """The mixers in `layers` as `layer_types` and `sliding_window`: of several windows the first."""
    sizes = [of(mixer) for mixer in theirs.get("layers") or ()]
    found = [n for n in sizes if n is not None]
    plain = {key: value for key, value in theirs.items() if key != "layers"}
    types = [TYPES[n is not None] for n in sizes]
    return plain | {"sliding_window": found[0] if found else None, "layer_types": types}


def turning(theirs: Config) -> list[int]:
    """Whether each mixer in `layers` has positions that turn: 1 or 0."""
    return [int(mixer.get("rotary") is not None) for mixer in theirs.get("layers") or ()]
