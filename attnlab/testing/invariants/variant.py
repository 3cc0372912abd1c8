"""Variants under test: one resolved attention config, and fresh float64 layers and models built from it.

Every weight is drawn anew, learned logits, gains and bias tables included: a table of zeros would hide its
effect. Layers are copies of one prototype per config, so a thousand trials build each part once.
"""

import copy
import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from hydra.utils import get_object
from omegaconf import OmegaConf
from torch import Tensor, nn

from attnlab.attention.cache import create_layer_cache
from attnlab.attention.contracts import Cache, Capabilities, Mask
from attnlab.attention.layer import Attention
from attnlab.attention.masks.conjunction import combine_masks, compute_visibility
from attnlab.model.build import instantiate_config, list_mixer_configs
from attnlab.model.initialization import make_named_generator
from attnlab.model.transformer import Mlp, Transformer
from attnlab.testing.checks.deviation import Deviation
from attnlab.testing.invariants.layer_chain import LayerChain

DYNAMIC_CACHE = {"_target_": "hydra.utils.get_class", "path": "attnlab.attention.cache.DynamicCache"}
EAGER_KERNEL = {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.kernels.eager.eager"}
VOCABULARY = 23
ModuleT = TypeVar("ModuleT", bound=nn.Module)
MAX_LENGTH = 160  # longest trial in tokens, chosen to get past a window


@dataclasses.dataclass(frozen=True)
class Variant:
    """One combination of parts on which invariants are checked.

    Attributes:
        name: Label of the variant.
        attention: A resolved `model.attention` config, or that of any mixer.
        positions: A `model.positions` config, or None.
        cache: A `decode.cache` config, or None for no cache.
        choices: Axis values, if known.
        parametrization: A `model.parametrization` config, or None for the standard one.
        batch: Rows of a trial.
        length: Tokens of a trial; 0 chooses a length at which the mask hides a past key.
        block: A `model.block` config, or None for the plain one.
        residual: A `model.residual` config, or None for the sum.
        make_larger: Makes this variant with more and wider heads; None if its sizes are fixed.
    """

    name: str
    attention: Mapping[str, Any]
    positions: Mapping[str, Any] | None = None
    cache: Mapping[str, Any] | None = dataclasses.field(default_factory=lambda: DYNAMIC_CACHE)
    choices: frozenset[str] = frozenset()
    parametrization: Mapping[str, Any] | None = None
    batch: int = 2
    length: int = 0
    block: Mapping[str, Any] | None = None
    residual: Mapping[str, Any] | None = None
    make_larger: Callable[[], "Variant | None"] | None = None

    def __post_init__(self) -> None:
        if not self.length:
            object.__setattr__(self, "length", _choose_length(self))

    @property
    def dim(self) -> int:
        """Hidden size of the input."""
        return _find_dim(self.attention)

    @property
    def is_attention(self) -> bool:
        """Whether the mixer is attnlab's own layer, whose parts can be inspected."""
        return get_object(self.attention["_target_"]) is Attention

    @functools.cached_property
    def larger(self) -> "Variant | None":
        """This variant with more and wider heads, or None if it has no such sizes."""
        return self.make_larger() if self.make_larger else None

    @functools.cached_property
    def has_declared_mask(self) -> bool:
        """Whether the config declares what is visible; other mixers may see only part of the past."""
        return "masks" in inspect.signature(get_object(self.attention["_target_"])).parameters

    @functools.cached_property
    def mask(self) -> Mask | None:
        """The declared mask; a mixer that takes no mask must be causal by itself."""
        if not self.has_declared_mask:
            return get_object("attnlab.attention.masks.causal.causal")
        return combine_masks(*_build_parts(self.attention.get("masks") or {}).values())

    def compute_visibility(self, positions_T: Tensor) -> Tensor:
        """Return [T, T]: whether the mask lets any head of a query position see a key position."""
        heads = self.prototype.heads.n_heads if self.is_attention else 1
        return compute_visibility(self.mask, positions_T[None], positions_T[None], heads)[0].any(0)

    def compute_reachability(self, positions_T: Tensor) -> Tensor:
        """Return [T, T]: whether an output may depend on a token.

        An output may depend on visible tokens, and on those that stateful parts read in addition.
        """
        reachable = self.compute_visibility(positions_T)
        layer = self.prototype
        if not self.is_attention or not layer.lookback:
            return reachable
        sums_past = layer.forgetting is not None or layer.score_map_has_state
        keys_lookback = math.inf if sums_past else layer.heads_are_stateful
        distance = positions_T[:, None] - positions_T
        queries = (distance >= 0) & (distance <= layer.query_lookback)
        for lookback in (keys_lookback, layer.epilogue_is_stateful):
            is_recent = ((distance >= 0) & (distance <= lookback)).to(
                torch.float32
            )  # [token, tokens it mixes]
            reachable = (
                reachable.float() @ is_recent if lookback is keys_lookback else is_recent @ reachable.float()
            ) > 0
            reachable = reachable | queries if lookback is keys_lookback else reachable
        return reachable

    def with_changes(self, **changes: Any) -> "Variant":
        """Return a copy with some config values replaced; `heads__n_kv_heads=1` reaches into `heads`.

        The copy has no larger sizes.
        """
        attention = copy.deepcopy(dict(self.attention))
        for path, value in changes.items():
            *parents, leaf = path.split("__")
            functools.reduce(lambda node, key: node[key], parents, attention)[leaf] = value
        return dataclasses.replace(self, attention=attention, make_larger=None)

    def find_part_names(self, function: Any) -> list[str]:
        """Find the names of the masks and scores that `function` makes."""
        part_groups = (self.attention.get("masks") or {}, self.attention.get("scores") or {})
        return [
            name
            for part_group in part_groups
            for name, node in part_group.items()
            if _get_factory(node) is function
        ]

    @property
    def prototype(self) -> Any:
        """The layer that all layers of this variant copy; read-only."""
        return _build_prototype(json.dumps(self.attention))

    def make_layer(self) -> Any:
        """Make a fresh float64 layer in evaluation mode; weights depend on the config and parameter names
        only.
        """
        return copy.deepcopy(self.prototype)

    def make_model(
        self, n_layers: int = 2, seed: int | None = None, ffn_width: int | None = None
    ) -> Transformer:
        """Make a small float64 transformer of such layers, with this variant's block and position embedding.

        Without a seed its weights are randomized like a layer's. With one it is built and initialized as for
        training.
        """
        model = Transformer(
            make_mixer=lambda layer: (
                self.make_layer() if seed is None else instantiate_config(self.attention)
            ),
            vocab_size=VOCABULARY,
            dim=self.dim,
            n_layers=n_layers,
            ffn_width=ffn_width or self.dim + 5,
            ffn=Mlp,
            norm=nn.LayerNorm,
            bias=False,
            tie=False,
            dropout=0.0,
            init_std=0.02,
            qk_gain=None,
            seed=seed or 0,
            positions=instantiate_config(self.positions) if self.positions else None,
            parametrization=instantiate_config(self.parametrization) if self.parametrization else None,
            block=instantiate_config(self.block) if self.block else None,
            residual=instantiate_config(self.residual) if self.residual else None,
        )
        return (randomize(model) if seed is None else model).double().eval()

    def make_cache(self) -> Cache:
        """Make an empty cache for one layer."""
        assert self.cache is not None
        cache = instantiate_config(self.cache)
        return (
            create_layer_cache(cache, self.prototype) if callable(cache) else cache
        )  # the config of a class resolves to the class

    def make_input(self, batch: int | None = None) -> Tensor:
        """Make a seeded input [B, T, M]; a shorter trial gets the beginning of a longer one."""
        return _draw_input(self.dim)[: batch or self.batch, : self.length].clone()

    def make_tokens(self) -> Tensor:
        """Make seeded token ids [B, T]."""
        tokens = torch.randint(VOCABULARY, (7, MAX_LENGTH), generator=make_named_generator(0, "tokens"))
        return tokens[: self.batch, : self.length].clone()


def make_variants(config: Mapping[str, Any], name: str = "config") -> list[Variant]:
    """Make one variant per distinct kind of layer of a resolved run config, with its positions and cache."""
    model = config["model"]
    layers: list[Any] = [OmegaConf.to_container(layer) for layer in list_mixer_configs(config)]
    layers = _group_dependent_layers(layers)
    distinct_layers = {json.dumps(layer, sort_keys=True): layer for layer in layers}
    n_kinds = len(distinct_layers)
    labels = [name] if n_kinds == 1 else [f"{name}, layer kind {n}" for n in range(n_kinds)]
    cache = (config.get("decode") or {}).get("cache")
    parametrization = model.get("parametrization")
    return [
        Variant(
            label,
            layer,
            model.get("positions"),
            cache,
            parametrization=parametrization,
            block=model.get("block"),
            residual=model.get("residual"),
        )
        for label, layer in zip(labels, distinct_layers.values(), strict=True)
    ]


def _find_dim(mixer: Mapping[str, Any]) -> int:
    """Find the `dim` of a mixer or of its heads.

    Raises:
        ValueError: Neither has one.
    """
    for part in (mixer, mixer.get("heads") or {}):
        if isinstance(part.get("dim"), int):
            return part["dim"]
    raise ValueError(
        "this mixer has no known width: add a parameter `dim` to its constructor, or to that of its heads"
    )


def _group_dependent_layers(layers: Sequence[Any]) -> list[Any]:
    """Return layers that can be tested alone, and chains for the others.

    A chain joins a layer with the nearest earlier layer that publishes the tensors it reads.
    """
    shared_names = [_find_shared_tensors(layer) for layer in layers]
    grouped = {index: layer for index, layer in enumerate(layers)}
    chained = set()
    for index, (reads, publishes) in enumerate(shared_names):
        if missing := reads - publishes:
            publisher = next(
                (earlier for earlier in range(index - 1, -1, -1) if missing <= shared_names[earlier][1]), None
            )
            if publisher is None:  # building the model reports the reason
                continue
            chain = [layers[publisher], layers[index]]
            grouped[index] = {
                "_target_": f"{LayerChain.__module__}.LayerChain",
                "dim": _find_dim(chain[0]),
                "layers": chain,
            }
            chained.add(publisher)
    return [layer for index, layer in grouped.items() if index not in chained]


def _find_shared_tensors(mixer: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the names of the tensors that a mixer reads from other layers and those that it publishes."""
    try:
        layer = instantiate_config(mixer)
    except ValueError:  # check_builds reports the reason
        return set(), set()
    capabilities = Capabilities.from_part(layer)
    return set(capabilities.reads_shared), set(capabilities.writes_shared)


def randomize(module: ModuleT, seed: int = 0) -> ModuleT:
    """Draw every parameter: matrices from N(0, 1 / fan in); others (gains, logits, biases) are shifted by
    N(0, 1/4).
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=make_named_generator(1 + seed, name))
            if parameter.ndim < 2:
                parameter.add_(noise / 2)
            else:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
    return module


def assert_close(actual: Tensor, expected: Tensor, label: str, tolerance: float = 1e-12) -> None:
    """Assert equality up to float64 rounding, or to a tolerance relative to the largest value."""
    Deviation(tolerance, smallest_scale=1.0).compare(actual, expected, label)


def assert_different(actual: Tensor, other: Tensor, label: str) -> None:
    """Assert that two results differ by far more than rounding."""
    assert (actual - other).abs().max() > 1e-6, f"{label}: no difference"


@functools.lru_cache(maxsize=2)
def _draw_input(dim: int) -> Tensor:
    return torch.randn(7, MAX_LENGTH, dim, dtype=torch.float64, generator=make_named_generator(0, "x"))


def _get_factory(node: Any) -> Any:
    if not isinstance(node, Mapping) or "_target_" not in node:
        return None
    return get_object(node["path"] if "path" in node else node["_target_"])


def _build_parts(nodes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(_build_part(json.dumps(node))) for name, node in nodes.items()}


@functools.lru_cache(maxsize=4096)
def _build_part(node: str) -> Any:
    return instantiate_config(json.loads(node))


@functools.lru_cache(maxsize=64)
def _build_prototype(attention: str) -> nn.Module:
    config = json.loads(attention)
    if get_object(config["_target_"]) is not Attention:
        return randomize(instantiate_config(config)).double().eval()
    plain_values = {}
    parts = {}
    for key, value in config.items():
        if isinstance(value, dict):
            parts[key] = _build_part(json.dumps(value)) if "_target_" in value else _build_parts(value)
        else:
            plain_values[key] = value
    return randomize(copy.deepcopy(instantiate_config(plain_values, **parts))).double().eval()


def _choose_length(variant: Variant) -> int:
    """Choose 11 tokens, or a few more than the mask needs before it hides its first past key."""
    try:
        visible = variant.compute_visibility(torch.arange(MAX_LENGTH))
    except Exception:  # check_builds reports the error
        return 11
    hidden = (~visible & torch.ones_like(visible).tril()).any(-1).nonzero()
    no_future = (visible & torch.ones_like(visible).triu(1)).any(-1).logical_not().nonzero()
    first_hidden = int(hidden[0]) if len(hidden) else 0
    first_without_future = int(no_future[0]) if len(no_future) else 0
    return min(
        MAX_LENGTH - 1,
        max(11, first_hidden + 4, first_without_future + 4 if first_without_future < MAX_LENGTH - 1 else 0),
    )
