"""What the laws are tried on: one resolved attention config, and fresh float64 layers and models made of it.

Every weight is drawn anew, learned logits, gains and bias tables included: a table of zeros would hide what
it does. Layers are copies of one prototype per config, so that a thousand trials build each part once.
"""

import copy
import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from hydra.utils import get_object
from omegaconf import OmegaConf
from torch import Tensor, nn

from attnlab.attention.cache import new_cache
from attnlab.attention.contracts import Cache, Capabilities, Mask
from attnlab.attention.layer import Attention
from attnlab.attention.masks.combine import every, seen
from attnlab.model.build import make, mixer_configs
from attnlab.model.initial import named_generator
from attnlab.model.transformer import Mlp, Transformer
from attnlab.testing.laws.chained import Chained

GROWING = {"_target_": "hydra.utils.get_class", "path": "attnlab.attention.cache.DynamicCache"}
EAGER = {"_target_": "hydra.utils.get_method", "path": "attnlab.attention.kernels.eager.eager"}
VOCABULARY = 23
M = TypeVar("M", bound=nn.Module)
PLACES = {3: ("row", "token"), 4: ("row", "head", "token")}
LONGEST = 160  # tokens at most that a trial is made long, to get past a window


@dataclasses.dataclass(frozen=True)
class Variant:
    """One combination to try the laws on.

    `attention` is a resolved `model.attention` config (or any mixer's), `positions` a `model.positions`
    config or None, `cache` a `decode.cache` config or None for none, `parametrization` a
    `model.parametrization` config or None for the standard one. `batch` and `length` are the sizes of a
    trial; `length` 0 is long enough to get past what the mask shows. `choices` are axis values, where known.
    """

    name: str
    attention: Mapping[str, Any]
    positions: Mapping[str, Any] | None = None
    cache: Mapping[str, Any] | None = dataclasses.field(default_factory=lambda: GROWING)
    choices: frozenset[str] = frozenset()
    parametrization: Mapping[str, Any] | None = None
    batch: int = 2
    length: int = 0

    def __post_init__(self) -> None:
        if not self.length:
            object.__setattr__(self, "length", _long_enough(self))

    @property
    def dim(self) -> int:
        """Width of the input."""
        return _width(self.attention)

    @property
    def is_attention(self) -> bool:
        """Whether the mixer is attnlab's own layer, with its parts to look at."""
        return get_object(self.attention["_target_"]) is Attention

    @functools.cached_property
    def tells_its_mask(self) -> bool:
        """Whether its config says what is seen: other mixers may see less of the past than all."""
        return "masks" in inspect.signature(get_object(self.attention["_target_"])).parameters

    @functools.cached_property
    def mask(self) -> Mask | None:
        """The design mask that the config declares; a mixer that takes none must be causal by itself."""
        if not self.tells_its_mask:
            return get_object("attnlab.attention.masks.causal.causal")
        return every(*_built(self.attention.get("masks") or {}).values())

    def visible(self, positions_T: Tensor) -> Tensor:
        """[T, T]: which positions the design mask lets which see, by any head."""
        heads = self.specimen.heads.n_heads if self.is_attention else 1
        return seen(self.mask, positions_T[None], positions_T[None], heads)[0].any(0)

    def reached(self, positions_T: Tensor) -> Tensor:
        """[T, T]: which tokens may have a say in which outputs: those that are visible, and those that parts
        which look back see beside them.
        """
        reached = self.visible(positions_T)
        layer = self.specimen
        if not self.is_attention or not layer.looks_back:
            return reached
        keys = math.inf if layer.forgetting is not None else layer.heads_look_back
        for back in (keys, layer.epilogue_looks_back):
            near = positions_T[:, None] - positions_T
            near = ((near >= 0) & (near <= back)).to(torch.float32)  # [token, those it is made of]
            reached = (reached.float() @ near if back is keys else near @ reached.float()) > 0
        return reached

    def but(self, **changes: Any) -> "Variant":
        """The same with some of the config's values replaced; `heads__n_kv_heads=1` reaches into `heads`."""
        attention = copy.deepcopy(dict(self.attention))
        for path, value in changes.items():
            *parents, leaf = path.split("__")
            functools.reduce(lambda node, key: node[key], parents, attention)[leaf] = value
        return dataclasses.replace(self, attention=attention)

    def about(self, function: Any) -> list[str]:
        """Names of the masks and scores of this config that are made by `function`."""
        groups = (self.attention.get("masks") or {}, self.attention.get("scores") or {})
        return [name for group in groups for name, node in group.items() if _maker(node) is function]

    @property
    def specimen(self) -> Any:
        """The layer that all are copies of: to look at, not to change."""
        return _prototype(json.dumps(self.attention))

    def layer(self) -> Any:
        """A fresh layer in float64 and evaluation mode; the same weights for the same config, by parameter
        name.
        """
        return copy.deepcopy(self.specimen)

    def model(self, n_layers: int = 2, seed: int | None = None, ffn_width: int | None = None) -> Transformer:
        """A small float64 transformer of such layers, with this variant's position embedding.

        Without a seed its weights are randomised like a layer's; with one it is built and initialised as for
        training.
        """
        model = Transformer(
            make_mixer=lambda layer: self.layer() if seed is None else make(self.attention),
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
            positions=make(self.positions) if self.positions else None,
            parametrization=make(self.parametrization) if self.parametrization else None,
        )
        return (randomised(model) if seed is None else model).double().eval()

    def new_cache(self) -> Cache:
        """An empty cache of one layer."""
        assert self.cache is not None
        cache = make(self.cache)
        return new_cache(cache, self.specimen) if callable(cache) else cache  # a class's config makes a class

    def x(self, batch: int | None = None) -> Tensor:
        """Input [B, T, M], seeded; a shorter trial sees the beginning of a longer one."""
        return _drawn(self.dim)[: batch or self.batch, : self.length].clone()

    def tokens(self) -> Tensor:
        """Token ids [B, T], seeded."""
        drawn = torch.randint(VOCABULARY, (7, LONGEST), generator=named_generator(0, "tokens"))
        return drawn[: self.batch, : self.length].clone()


def variants_of(config: Mapping[str, Any], name: str = "config") -> list[Variant]:
    """The distinct kinds of layer of a whole resolved run config, with its positions and its cache."""
    model = config["model"]
    layers: list[Any] = [OmegaConf.to_container(layer) for layer in mixer_configs(config)]
    layers = _apart(layers)
    kinds = {json.dumps(layer, sort_keys=True): layer for layer in layers}
    names = [name] if len(kinds) == 1 else [f"{name}, layer kind {n}" for n in range(len(kinds))]
    cache = (config.get("decode") or {}).get("cache")
    scaled = model.get("parametrization")
    return [
        Variant(name, kind, model.get("positions"), cache, parametrization=scaled)
        for name, kind in zip(names, kinds.values(), strict=True)
    ]


def _width(mixer: Mapping[str, Any]) -> int:
    """The `dim` of a mixer or of its heads. ValueError where the config has none."""
    for part in (mixer, mixer.get("heads") or {}):
        if isinstance(part.get("dim"), int):
            return part["dim"]
    raise ValueError(
        "this mixer names no width: give its constructor, or that of its heads, a parameter `dim`"
    )


def _apart(layers: Sequence[Any]) -> list[Any]:
    """Layers that can be tried alone, and each other one with the last of those before it that publishes what
    it reads.
    """
    shared = [_shares(layer) for layer in layers]
    found = {n: layer for n, layer in enumerate(layers)}
    used = set()
    for n, (reads, publishes) in enumerate(shared):
        if missing := reads - publishes:
            lender = next((m for m in range(n - 1, -1, -1) if missing <= shared[m][1]), None)
            if lender is None:  # the model that is built of it tells why
                continue
            chain = [layers[lender], layers[n]]
            found[n] = {"_target_": f"{Chained.__module__}.Chained", "dim": _width(chain[0]), "layers": chain}
            used.add(lender)
    return [layer for n, layer in found.items() if n not in used]


def _shares(mixer: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """What it reads of other layers, and what it publishes for them."""
    try:
        layer = make(mixer)
    except ValueError:  # the law that builds it tells why
        return set(), set()
    declared = Capabilities.of(layer)
    return set(declared.reads), set(declared.publishes)


def randomised(module: M) -> M:
    """Draws every parameter: matrices N(0, 1 / fan in), all else (gains, logits, biases) moved by N(0,
    1/4).
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=named_generator(1, name))
            if parameter.ndim < 2:
                parameter.add_(drawn / 2)
            else:
                parameter.copy_(drawn / parameter.shape[-1] ** 0.5)
    return module


def same(actual: Tensor, expected: Tensor, what: str, tolerance: float = 1e-12) -> None:
    """Asserts equality up to float64 rounding, or another tolerance relative to the largest value."""
    assert actual.shape == expected.shape, f"{what}: shapes {tuple(actual.shape)} and {tuple(expected.shape)}"
    assert actual.isfinite().all(), f"{what}: not finite"
    assert expected.isfinite().all(), f"{what}: the reference is not finite"
    if not actual.numel():
        return
    off = (actual - expected).abs()
    bound = tolerance * max(1.0, expected.abs().max().item())
    assert off.max() <= bound, f"{what}: off by {off.max().item():.2g} at {place(off)}"


def place(off: Tensor) -> str:
    """Where a difference [B, T, M], or by head [B, H, T, V], is largest."""
    index = dict(zip(PLACES.get(off.ndim, ()), torch.unravel_index(off.argmax(), off.shape), strict=False))
    return ", ".join(f"{name} {int(value)}" for name, value in index.items()) or "one place"


def differs(actual: Tensor, other: Tensor, what: str) -> None:
    """Asserts that two results are not the same by far more than rounding."""
    assert (actual - other).abs().max() > 1e-6, f"{what}: no difference"


@functools.lru_cache(maxsize=2)
def _drawn(dim: int) -> Tensor:
    return torch.randn(7, LONGEST, dim, dtype=torch.float64, generator=named_generator(0, "x"))


def _maker(node: Any) -> Any:
    if not isinstance(node, Mapping) or "_target_" not in node:
        return None
    return get_object(node["path"] if "path" in node else node["_target_"])


def _built(nodes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(_part(json.dumps(node))) for name, node in nodes.items()}


@functools.lru_cache(maxsize=4096)
def _part(node: str) -> Any:
    return make(json.loads(node))


@functools.lru_cache(maxsize=64)
def _prototype(attention: str) -> nn.Module:
    config = json.loads(attention)
    if get_object(config["_target_"]) is not Attention:
        return randomised(make(config)).double().eval()
    own = {}
    parts = {}
    for key, value in config.items():
        if isinstance(value, dict):
            parts[key] = _part(json.dumps(value)) if "_target_" in value else _built(value)
        else:
            own[key] = value
    return randomised(copy.deepcopy(make(own, **parts))).double().eval()


def _long_enough(variant: Variant) -> int:
    """11 tokens, or a few more than the mask needs before it hides the first key that it hides of the
    past.
    """
    try:
        visible = variant.visible(torch.arange(LONGEST))
    except Exception:  # the law that builds the variant will tell
        return 11
    hidden = (~visible & torch.ones_like(visible).tril()).any(-1).nonzero()
    ahead = (visible & torch.ones_like(visible).triu(1)).any(-1).logical_not().nonzero()
    first = int(hidden[0]) if len(hidden) else 0
    free = int(ahead[0]) if len(ahead) else 0
    return min(LONGEST - 1, max(11, first + 4, free + 4 if free < LONGEST - 1 else 0))
