"""Two configs of ours, compared by what they mean: what a default, a name or an order hides is left out."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

from hydra.utils import get_object
from omegaconf import OmegaConf

from attnlab.model.build import mixer_configs
from attnlab.model.huggingface.families.table import BLOCK
from attnlab.model.huggingface.rotation import Config

TRAINING = ("seed", "init_std", "qk_gain", "dropout")
MIXER_TRAINING = ("dropout", "kernel")


def lost(here: Any, there: Any) -> dict[str, tuple[Any, Any]]:
    """Leaf to its value here and there, where these differ by more than rounding."""
    ours = leaves(here)
    theirs = leaves(there)
    pairs = {name: (ours.get(name, "absent"), theirs.get(name, "absent")) for name in ours | theirs}
    return {name: pair for name, pair in pairs.items() if not _alike(*pair)}


def _alike(here: Any, there: Any) -> bool:
    if isinstance(here, float) and isinstance(there, float):
        return math.isclose(here, there, rel_tol=1e-12)
    return bool(here == there)


def canonical(config: Config) -> Config:
    """Without what is empty or for training alone, and with the defaults of every target's signature. What
    mixes is called attention, and `layers` is what it is in each of them.
    """
    apart = ("attention", "mixer", "layers", *TRAINING)
    plain: Config = _filled(
        {"block": BLOCK} | {k: v for k, v in config.items() if k not in apart and v is not None}
    )
    mixers = [_canonical_mixer(OmegaConf.to_container(each)) for each in mixer_configs({"model": config})]
    layers = [mixers[layer % len(mixers)] for layer in range(config["n_layers"] or 0)]
    return plain | {
        "attention": _canonical_mixer(config.get("mixer") or config["attention"]),
        "layers": layers,
    }


def _canonical_mixer(mixer: Any) -> Config:
    plain = {name: value for name, value in _filled(mixer).items() if name not in MIXER_TRAINING}
    heads = plain.get("heads", {})
    if {"dim", "n_heads"} <= heads.keys():
        heads.setdefault("head_dim", heads["dim"] // heads["n_heads"])
    for kind in {"masks", "scores"} & plain.keys():
        plain[kind] = _by_target(plain[kind])
    masks = plain.get("masks", {})
    if masks.get("window"):  # which is causal by itself
        masks.pop("causal", None)
    return plain


def _by_target(parts: Config) -> Config:
    """Parts under the names of what they are, since their own say nothing."""
    found: Config = {}
    for name, part in parts.items():
        kind = (part.get("path") or part["_target_"]).rpartition(".")[2].lower()
        found[name if kind in found else kind] = part
    return found


def _filled(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    defaults: Config = {}
    if "_target_" in node:
        parameters = inspect.signature(get_object(node["_target_"])).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    filled = {name: _filled(value) for name, value in (defaults | dict(node)).items()}
    return {name: value for name, value in filled.items() if value not in (None, {}, [])}


def leaves(node: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(node, Mapping):
        return {path: node}
    inner = [leaves(value, f"{path}.{name}".lstrip(".")) for name, value in node.items()]
    return {name: value for leaves in inner for name, value in leaves.items()}
