"""Object construction from a resolved config: Hydra's `instantiate`, the model, and its device."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from attnlab.errors import RENAMED, format_suggestions
from attnlab.model.transformer import Transformer
from attnlab.store.run_schema import RunConfig

MIXER_KEYS = (
    "attention",
    "mixer",
    "layers",
    "n_heads",
    "window",
)  # keys of `model` that define its mixers and are no constructor arguments
WEIGHT_DTYPES = {
    "bf16-true": torch.bfloat16,
    "64-true": torch.float64,
}  # other precisions keep float32 weights


def instantiate_config(config: Mapping[str, Any], /, **overrides: Any) -> Any:
    """Call Hydra's `instantiate` and raise the original error instead of Hydra's wrapper.

    A config with `_partial_` returns a function.

    Raises:
        ValueError: The constructor rejected its arguments, or a `_target_`, nested ones included, returned
            None: the part would be omitted silently.
    """
    if OmegaConf.is_config(config):
        config = cast(dict[str, Any], OmegaConf.to_container(cast(Any, config), resolve=True))
    if "_target_" not in config:
        raise ValueError(
            f"a part has no _target_ (keys: {', '.join(map(str, config)) or 'none'}): it is {{_target_: "
            "package.module.Class, ...}"
        )
    nested = {key: value for key, value in config.items() if _has_target(value)}
    if not config.get("_recursive_", True):
        nested = {}
    plain = {key: value for key, value in config.items() if key not in nested}
    args = _instantiate_nested(nested.pop("_args_", []))
    overrides = {**{key: _instantiate_nested(value) for key, value in nested.items()}, **overrides}
    try:
        factory = instantiate(OmegaConf.create(plain), _partial_=True, _convert_="all")
        if not config.get("_partial_"):
            return _require_value(factory(*args, **overrides), config)
        return (
            partial(factory, *args, **overrides) if args or overrides else factory
        )  # without a second layer, `keywords` stays readable
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ValueError | TypeError):
            raise ValueError(str(cause)) from error
        raise ValueError(" ".join(str(error).split())) from error
    except (TypeError, ArithmeticError) as error:
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        hint = format_suggestions(unexpected[1], plain) if unexpected and unexpected[1] in RENAMED else ""
        raise ValueError(f"{config.get('_target_')}: {error}{hint}") from error


def _has_target(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_has_target, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_target, value))


def _instantiate_nested(value: Any) -> Any:
    """Replace each config with a `_target_` inside a value by its object."""
    if isinstance(value, Mapping):
        return (
            instantiate_config(value)
            if "_target_" in value
            else {key: _instantiate_nested(child) for key, child in value.items()}
        )
    return [_instantiate_nested(child) for child in value] if isinstance(value, list | tuple) else value


def _require_value(value: Any, config: Mapping[str, Any]) -> Any:
    if value is None:
        target = config["path"] if config["_target_"] == "hydra.utils.get_method" else config["_target_"]
        raise ValueError(f"{target} returned None: add a return statement")
    return value


def build_data(run_config: RunConfig) -> Any:
    """Build the data module of a stored run.

    Raises:
        ValueError: Its text is not the one that the run was planned with.
    """
    data = instantiate_config(run_config.config["data"])
    if data.task.fingerprint != run_config.identity["data"]:
        raise ValueError(
            "data.path, or another key of `data` that names files, leads to other text than the run was "
            "planned with: run the experiment's command again"
        )
    return data


def build_model(config: Mapping[str, Any], vocab_size: int) -> Transformer:
    """Build the model of a resolved config.

    Every layer gets its own mixer; the patches in `model.layers` repeat over the layers. Weights are float32,
    or float64 under that `trainer.precision`: float32 would round the weights that are loaded into them.
    """
    mixers = list_mixer_configs(config)
    model = {key: value for key, value in config["model"].items() if key not in MIXER_KEYS}
    transformer: Transformer = instantiate_config(
        model, make_mixer=lambda layer: instantiate_config(mixers[layer % len(mixers)]), vocab_size=vocab_size
    )
    is_float64 = "trainer" in config and WEIGHT_DTYPES.get(config["trainer"]["precision"]) == torch.float64
    return transformer.double() if is_float64 else transformer


def require_layer_per_patch(config: Mapping[str, Any]) -> None:
    """Check that a layer takes each patch of `model.layers`.

    Raises:
        ValueError: there are more patches than layers.
    """
    patches, layers = config["model"].get("layers") or [], config["model"]["n_layers"]
    if len(patches) > layers:
        raise ValueError(
            f"model.layers has {len(patches)} patches for only {layers} layers: raise "
            "model.n_layers, or remove patches"
        )


def list_mixer_configs(config: Mapping[str, Any]) -> list[Any]:
    """List the patched mixer configs of a model; layer n uses config n modulo their number."""
    model = config["model"]
    mixer_config = model.get("mixer") or model.get("attention")
    if not mixer_config:
        raise ValueError("model.attention is missing: set it, or model.mixer")
    mixer = OmegaConf.create(mixer_config)
    patches = OmegaConf.create(list(model.get("layers") or [{}]))
    return [_apply_patch(mixer, patch) for patch in patches]


def _apply_patch(node: Any, patch: Any) -> Any:
    """Merge a patch into a node.

    A part with another `_target_` replaces the old one with all its keys. A null removes a mask or a score.
    """
    if not isinstance(node, DictConfig) or not isinstance(patch, DictConfig):
        return patch
    if patch.get("_target_", node.get("_target_")) != node.get("_target_"):
        return patch
    merged = node.copy()
    for key in patch:
        merged[key] = _apply_patch(node.get(key), patch[key])
    for parts in (merged[key] for key in ("masks", "scores") if isinstance(patch.get(key), DictConfig)):
        for name in [name for name in parts if parts[name] is None]:
            del parts[name]
    return merged


def select_device(config: Mapping[str, Any]) -> str:
    """Return "cpu" or "cuda", as the Trainer will choose; ValueError if the requested device is missing."""
    accelerator = config["trainer"]["accelerator"]
    has_cuda = torch.cuda.is_available()
    if accelerator in ("gpu", "cuda") and not has_cuda:
        raise ValueError(
            f"trainer.accelerator={accelerator} needs a CUDA device, and this machine has none: use "
            "trainer.accelerator=cpu"
        )
    return "cuda" if has_cuda and accelerator != "cpu" else "cpu"


def get_device_kind(device: str) -> str:
    """Return "cpu" or the GPU's name. It is part of a run's identity."""
    return "cpu" if device == "cpu" else torch.cuda.get_device_name()
