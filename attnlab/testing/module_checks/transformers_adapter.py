"""Adapter of attention classes of `transformers`, such as LlamaAttention, as their models call them.

Positions, masks and the cache are built from the module's config with the functions that the models use.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.testing.module_checks.adapters import ModuleAdapter, Parameters, first_output, list_required

CACHE_NAMES = ("past_key_values", "layer_past")
KNOWN = {"hidden_states", "position_embeddings", "attention_mask", "position_ids", *CACHE_NAMES}


class TransformersAdapter(ModuleAdapter):
    """An attention class with a `config`, called with `hidden_states` and the arguments of its model."""

    name = "transformers"
    form = "an attention class of transformers with a config, as LlamaAttention"
    no_padding = None
    pads_cache = True

    def __init__(self, module: Callable[..., Any], is_causal: bool) -> None:
        super().__init__(module, is_causal)
        self.config = _with_implementation(self.module.config)
        layer_idx = getattr(module, "layer_idx", None)
        self.layer_idx = layer_idx or 0
        layer_types = getattr(self.config, "layer_types", None)
        self.layer_type = layer_types[self.layer_idx] if layer_types else None
        self.cache_name = next((name for name in CACHE_NAMES if name in self.parameters), None)
        if self.cache_name:
            self.no_cache = "built without layer_idx, which the cache needs" if layer_idx is None else None
        self.rotary = self._build_rotary() if "position_embeddings" in self.parameters else None

    @classmethod
    def fits(cls, module: Callable[..., Any], parameters: Parameters) -> bool:
        return (
            {"hidden_states", "attention_mask"} <= {*parameters}
            and {*list_required(parameters)} <= KNOWN
            and hasattr(getattr(module, "config", None), "hidden_size")
        )

    @property
    def dim(self) -> int:
        return self.config.hidden_size

    def forward(self, x_BTD: Tensor, is_token_BT: Tensor | None = None) -> Tensor:
        return self._call(x_BTD, is_token_BT, None)

    def start(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self.config)

    def step(self, x_BTD: Tensor, state: Any, is_token_BS: Tensor | None = None) -> tuple[Tensor, Any]:
        return self._call(x_BTD, is_token_BS, state), state

    def _call(self, x_BTD: Tensor, is_token_BS: Tensor | None, cache: Any) -> Tensor:
        T = x_BTD.shape[1]
        n_seen = 0 if cache is None else cache.get_seq_length(self.layer_idx)
        if is_token_BS is None:
            position_ids = torch.arange(n_seen, n_seen + T, device=x_BTD.device)[None]
        else:
            position_ids = (is_token_BS.long().cumsum(-1) - 1).clamp(min=0)[:, -T:]
        arguments: dict[str, Any] = {
            "attention_mask": self._build_mask(x_BTD, is_token_BS, cache, position_ids)
        }
        if self.rotary is not None:
            is_by_type = "layer_type" in inspect.signature(self.rotary.forward).parameters
            options = {"layer_type": self.layer_type} if is_by_type else {}
            arguments["position_embeddings"] = self.rotary(x_BTD, position_ids, **options)
        if "position_ids" in self.parameters:
            arguments["position_ids"] = position_ids
        if self.cache_name:
            arguments[self.cache_name] = cache
        return first_output(self.module(x_BTD, **arguments))

    def _build_mask(self, x_BTD: Tensor, is_token_BS: Tensor | None, cache: Any, position_ids: Tensor) -> Any:
        """Build the mask of the layer's type: full, sliding window or chunked; bidirectional if declared."""
        from transformers import masking_utils

        if not self.is_causal:
            return masking_utils.create_bidirectional_mask(self.config, x_BTD, is_token_BS)
        is_sliding = self.layer_type == "sliding_attention" or (
            self.layer_type is None and getattr(self.config, "sliding_window", None) is not None
        )
        if is_sliding:
            create_mask = masking_utils.create_sliding_window_causal_mask
        elif self.layer_type == "chunked_attention":
            create_mask = masking_utils.create_chunked_causal_mask
        else:
            create_mask = masking_utils.create_causal_mask
        return create_mask(
            config=self.config,
            inputs_embeds=x_BTD,
            attention_mask=is_token_BS,
            past_key_values=cache,
            position_ids=position_ids,
            layer_idx=self.layer_idx,
        )

    def _build_rotary(self) -> nn.Module:
        """Build the rotary embedding that is defined beside the attention class or a class it extends."""
        for base in type(self.module).__mro__:
            candidates = [
                value
                for name, value in vars(sys.modules[base.__module__]).items()
                if name.endswith("RotaryEmbedding") and isinstance(value, type)
            ]
            prefix = base.__name__.partition("Attention")[0]
            candidates.sort(key=lambda candidate: not candidate.__name__.startswith(prefix))
            if candidates:
                return candidates[0](config=self.config)
        raise ValueError(f"no class *RotaryEmbedding beside {type(self.module).__name__}")


def _with_implementation(config: Any) -> Any:
    """Return the config, with `eager` if it names no implementation: the module runs that, masks need it."""
    if getattr(config, "_attn_implementation", None) is not None:
        return config
    return type(config).from_dict(config.to_dict(), attn_implementation="eager")
