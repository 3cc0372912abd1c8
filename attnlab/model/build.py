"""From a resolved config to objects: Hydra's `instantiate`, a model with a mixer of its own in every layer,
and the device.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from attnlab.model.transformer import Transformer

MIXERS = ("attention", "mixer", "layers", "n_heads")  # of `model`: what its layers mix with, and no argument
WEIGHTS = {"bf16-true": torch.bfloat16, "64-true": torch.float64}  # other precisions keep float32 weights


def make(config: Mapping[str, Any], /, **given: Any) -> Any:
    """Hydra's `instantiate`, with the reason of a refusal instead of the wrapping of it. A config that asks
    for `_partial_` makes a function. ValueError where a `_target_`, nested ones included, returns None: a
    part without a value would be left out silently.
    """
    if OmegaConf.is_config(config):
        config = cast(dict[str, Any], OmegaConf.to_container(cast(Any, config), resolve=True))
    nested = {key: value for key, value in config.items() if _has_target(value)}
    if not config.get("_recursive_", True):
        nested = {}
    plain = {key: value for key, value in config.items() if key not in nested}
    args = _make_nested(nested.pop("_args_", []))
    given = {**{key: _make_nested(value) for key, value in nested.items()}, **given}
    try:
        factory = instantiate(OmegaConf.create(plain), _partial_=True, _convert_="all")
        if not config.get("_partial_"):
            return _require_value(factory(*args, **given), config)
        return partial(factory, *args, **given) if args or given else factory  # its keywords stay in sight
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ValueError | TypeError):
            raise ValueError(str(cause)) from error
        raise ValueError(" ".join(str(error).split())) from error
    except TypeError as error:
        raise ValueError(f"{config.get('_target_')}: {error}") from error


def _has_target(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_has_target, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_target, value))


def _make_nested(value: Any) -> Any:
    """The value of a key, each config with a `_target_` in it replaced by the object that it makes."""
    if isinstance(value, Mapping):
        return (
            make(value) if "_target_" in value else {key: _make_nested(child) for key, child in value.items()}
        )
    return [_make_nested(child) for child in value] if isinstance(value, list | tuple) else value


def _require_value(made: Any, config: Mapping[str, Any]) -> Any:
    if made is None:
        where = config["path"] if config["_target_"] == "hydra.utils.get_method" else config["_target_"]
        raise ValueError(f"{where} returned None: does it end without a return statement?")
    return made


def build_model(config: Mapping[str, Any], vocab_size: int) -> Transformer:
    """The model of a resolved config; every layer gets a mixer of its own, `model.layers` patching them in
    turn.
    """
    mixers = mixer_configs(config)
    model = {key: value for key, value in config["model"].items() if key not in MIXERS}
    return make(model, make_mixer=lambda layer: make(mixers[layer % len(mixers)]), vocab_size=vocab_size)


def mixer_configs(config: Mapping[str, Any]) -> list[Any]:
    """The different mixers of a model, in the order in which its layers take them in turn."""
    model = config["model"]
    mixer = OmegaConf.create(model.get("mixer") or model["attention"])
    patches = OmegaConf.create(list(model.get("layers") or [{}]))
    return [_patched(mixer, patch) for patch in patches]


def _patched(node: Any, patch: Any) -> Any:
    """The node with a patch merged into it. A part of another `_target_` takes the place of the one that was
    there: none of its keys stay. A null removes a mask or a score.
    """
    if not isinstance(node, DictConfig) or not isinstance(patch, DictConfig):
        return patch
    if patch.get("_target_", node.get("_target_")) != node.get("_target_"):
        return patch
    merged = node.copy()
    for key in patch:
        merged[key] = _patched(node.get(key), patch[key])
    for parts in (merged[key] for key in ("masks", "scores") if isinstance(patch.get(key), DictConfig)):
        for name in [name for name in parts if parts[name] is None]:
            del parts[name]
    return merged


def device_of(config: Mapping[str, Any]) -> str:
    """ "cpu" or "cuda", as the trainer will choose. ValueError where the device asked for is not there."""
    wanted = config["trainer"]["accelerator"]
    here = torch.cuda.is_available()
    if wanted in ("gpu", "cuda") and not here:
        raise ValueError(
            f"trainer.accelerator={wanted}: there is no CUDA device here; use trainer.accelerator=cpu"
        )
    return "cuda" if here and wanted != "cpu" else "cpu"


def device_kind(device: str) -> str:
    """ "cpu", or the card's name: runs on different kinds are different runs."""
    return "cpu" if device == "cpu" else torch.cuda.get_device_name()
