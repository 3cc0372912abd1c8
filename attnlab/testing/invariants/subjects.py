"""Variants as subjects of the checks of `attnlab.testing.checks`: a layer, its heads, or a small model."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Capabilities, Unsupported
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data_masks import make_padding_mask, non_padding
from attnlab.model.build import instantiate_config
from attnlab.testing.checks import Check, check_cache, check_causality
from attnlab.testing.checks.deviation import CheckFailed, CheckSkipped
from attnlab.testing.checks.subject import SEED, Adapter, Subject
from attnlab.testing.invariants.masks_and_scores import MAX_LONG_LENGTH, find_constants
from attnlab.testing.invariants.variant import Variant, randomize

MAX_CONSTANTS = 6  # constants around which a long sequence is cut


class LayerAdapter(Adapter):
    """A layer of a variant."""

    pads_cache = True

    def __init__(self, variant: Variant, module: Any) -> None:
        self.variant, self.module = variant, module
        self.no_cache = None if variant.cache is not None else "the variant has no cache"
        self.changes_with_length = Capabilities.from_part(variant.prototype).changes_with_length
        self.no_padding = "outputs depend on the longest row" if self.changes_with_length else None
        self.has_other_losses = bool(Capabilities.from_part(variant.prototype).auxiliary_losses)
        constants = sorted(find_constants([variant.attention, variant.cache]))
        self.borders = (*Adapter.borders, *[n for n in constants if n <= MAX_LONG_LENGTH][-MAX_CONSTANTS:])

    @property
    def dim(self) -> int:
        return self.variant.dim

    @property
    def max_cached(self) -> int | None:
        return Capabilities.from_part(self.variant.make_cache()).capacity if self.variant.cache else None

    def compute(self, x_BTM: Tensor, cache: Any = None, **context: Any) -> Tensor:
        """Compute outputs [B, T, ...] of the module."""
        return self.module(x_BTM, cache=cache, **context)

    def forward(self, x_BTD: Tensor, is_token_BT: Tensor | None = None) -> Tensor:
        return self.compute(x_BTD, **({} if is_token_BT is None else _describe_padding(is_token_BT)))

    def start(self) -> Any:
        return self.variant.make_cache()

    def step(self, x_BTD: Tensor, state: Any, is_token_BS: Tensor | None = None) -> tuple[Tensor, Any]:
        if is_token_BS is None:
            return self.compute(x_BTD, state), state
        context = _describe_padding(is_token_BS)
        context["positions"] = context["positions"][:, -x_BTD.shape[1] :]
        return self.compute(x_BTD, state, **context), state

    def compute_reachability(self, length: int) -> Tensor:
        itself = torch.eye(length, dtype=torch.bool)
        return self.variant.compute_reachability(torch.arange(length)) | itself

    def compute_visibility(self, length: int) -> Tensor:
        layer = self.variant.prototype
        if not self.variant.has_declared_mask:
            return super().compute_visibility(length)
        visible = self.variant.compute_visibility(torch.arange(length))
        # other normalizers and selections may give visible keys a weight of exactly zero
        is_exact = not self.variant.is_attention or (layer.normalizer is None and layer.selection is None)
        return visible if is_exact else torch.zeros_like(visible)

    def may_refuse(self, split: Sequence[int]) -> bool:
        visible = self.variant.compute_visibility(torch.arange(sum(split)))
        is_fixed = self.variant.is_attention and not self.variant.prototype.changes_with_length
        return not is_fixed or any(bool(visible[:cut, cut:].any()) for cut in list(accumulate(split))[:-1])

    def list_state(self) -> dict[str, Tensor]:
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}


class HeadsAdapter(LayerAdapter):
    """A layer whose outputs are those of its heads, [B, T, H, V]."""

    def compute(self, x_BTM: Tensor, cache: Any = None, **context: Any) -> Tensor:
        return self.module.attend(x_BTM, cache=cache, **context).out.transpose(1, 2)


class ModelAdapter(LayerAdapter):
    """A model of two such layers, with x in place of the embedded tokens."""

    def start(self) -> Any:
        return [self.variant.make_cache() for _ in self.module.blocks]

    def compute(self, x_BTM: Tensor, cache: Any = None, **context: Any) -> Tensor:
        return self.module.compute_hidden(x_BTM, caches=cache, **context)

    def compute_reachability(self, length: int) -> Tensor:
        one_layer = super().compute_reachability(length).float()
        return one_layer @ one_layer > 0


class LayerSubject(Subject):
    """Layers of a variant, in float64; the adapter's class says which outputs are compared."""

    tolerance = 1e-11
    zero_gradient = 1e3 * torch.finfo(torch.float64).eps
    gradient_tolerance = 1e-3
    rounding_ratio = 3.0

    def __init__(self, variant: Variant, adapter: type[LayerAdapter] = LayerAdapter) -> None:
        self.variant, self.adapter = variant, adapter

    def build(self, dtype: torch.dtype | None = None, seed: int = SEED) -> LayerAdapter:
        """Build a layer; one of another seed is also constructed in another random state."""
        module = self.variant.make_layer() if seed == SEED else self._build_anew(seed)
        return self.adapter(self.variant, _disable_attention_dropout(module).to(dtype or self.dtype))

    def construct(self) -> Any:
        return instantiate_config(self.variant.attention)

    def _build_anew(self, seed: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return randomize(self.construct(), seed).double().eval()


class ModelSubject(LayerSubject):
    """Small models of a variant."""

    def __init__(self, variant: Variant) -> None:
        super().__init__(variant, ModelAdapter)

    def build(self, dtype: torch.dtype | None = None, seed: int = SEED) -> LayerAdapter:
        model = self.variant.make_model()
        model.set_submodule("embedding", nn.Identity())
        return self.adapter(self.variant, _disable_attention_dropout(model).to(dtype or self.dtype))

    def construct(self) -> Any:
        return self.variant.make_model()


class InitializedSubject(ModelSubject):
    """Small models of a variant, initialized as for training."""

    def build(self, dtype: torch.dtype | None = None, seed: int = SEED) -> LayerAdapter:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # as a run does: some modules draw their weights on construction
            model = self.variant.make_model(n_layers=1, seed=seed)
        model.set_submodule("embedding", nn.Identity())
        return self.adapter(self.variant, model)


def run_check(check: Check, subject: LayerSubject, batch: int, length: int) -> None:
    """Run a check; a leak or a wrong cache of a layer is named by head if its heads fail too.

    Raises:
        CheckFailed: it fails.
        Unsupported: it cannot apply.
    """
    try:
        check(subject, batch, length)
    except CheckSkipped as reason:
        raise Unsupported(str(reason)) from None
    except CheckFailed:
        is_layer = subject.adapter is LayerAdapter and subject.variant.is_attention
        if is_layer and check in (check_cache, check_causality):
            check(LayerSubject(subject.variant, HeadsAdapter), batch, length)
        raise


def _describe_padding(is_token_BT: Tensor) -> dict[str, Any]:
    """Positions below zero for padding on the left, a data mask for that on the right.

    Raises:
        Unsupported: padding is between tokens.
    """
    positions = torch.arange(is_token_BT.shape[1])[None]
    if (is_token_BT[:, 1:] >= is_token_BT[:, :-1]).all():
        return {"positions": positions - (~is_token_BT).sum(1, keepdim=True), "mask": non_padding}
    if (is_token_BT[:, 1:] <= is_token_BT[:, :-1]).all():
        return {"positions": positions, "mask": make_padding_mask(is_token_BT.sum(1))}
    raise Unsupported("padding between tokens has no data mask")


def _disable_attention_dropout(module: Any) -> Any:
    for part in module.modules():
        if isinstance(part, Attention):
            part.dropout = 0.0
    return module
