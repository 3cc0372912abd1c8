"""Adapters: one interface, from x [B, T, D] to y [B, T, E], for modules of other projects."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attnlab.testing.checks.subject import Adapter

N_HEADS = 3  # of q, k and v, for functions that have no attribute with their sizes
HEAD_DIM = 16
DEFAULT_DIM = 48  # of x, for a module that has no parameters
DIM_ATTRIBUTES = ("embed_dim", "hidden_size", "d_model", "n_embd", "dim")
QKV_NAMES = (("q", "k", "v"), ("query", "key", "value"), ("queries", "keys", "values"))

Parameters = Mapping[str, inspect.Parameter]


class ModuleAdapter(Adapter):
    """A module of another project. `is_causal` is False for one that is declared non-causal."""

    name: ClassVar[str]
    form: ClassVar[str]  # the modules that it fits, for messages and documentation

    def __init__(self, module: Callable[..., Any], is_causal: bool) -> None:
        self.module, self.is_causal = module, is_causal
        self.parameters = read_parameters(module)

    @classmethod
    @abstractmethod
    def fits(cls, module: Callable[..., Any], parameters: Parameters) -> bool:
        """Whether the module's class or signature has the form."""

    @property
    def dim(self) -> int:
        """Channels D of x: an attribute such as `embed_dim`, or the inputs of the first linear layer."""
        for name in DIM_ATTRIBUTES:
            if isinstance(value := getattr(self.module, name, None), int):
                return value
        submodules = self.module.modules() if isinstance(self.module, nn.Module) else ()
        return next((part.in_features for part in submodules if isinstance(part, nn.Linear)), DEFAULT_DIM)


class PlainAdapter(ModuleAdapter):
    """`f(x) -> y`. `start()` and `step(x, state) -> (y, state)`, if it has both, are its cache."""

    name = "plain"
    form = "f(x) -> y"

    def __init__(self, module: Callable[..., Any], is_causal: bool) -> None:
        super().__init__(module, is_causal)
        if hasattr(module, "start") and hasattr(module, "step"):
            self.no_cache = None
        if {"key_padding_mask", "attention_mask"} & {*self.parameters}:
            self.no_padding = None
            self.guesses_padding = (
                "key_padding_mask" not in self.parameters
            )  # others are additive, with 4 axes

    @classmethod
    def fits(cls, module: Callable[..., Any], parameters: Parameters) -> bool:
        return len(list_required(parameters)) == 1 or (
            not list_required(parameters) and next(iter(parameters), "") in ("x", "input", "hidden_states")
        )

    def forward(self, x_BTD: Tensor, is_token_BT: Tensor | None = None) -> Tensor:
        if is_token_BT is None:
            return first_output(self.module(x_BTD))
        if "key_padding_mask" in self.parameters:  # True at padding, as in torch
            return first_output(self.module(x_BTD, key_padding_mask=~is_token_BT))
        return first_output(self.module(x_BTD, attention_mask=is_token_BT))  # True at tokens

    def start(self) -> Any:
        return self.module.start()

    def step(self, x_BTD: Tensor, state: Any, is_token_BS: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.module.step(x_BTD, state)


class QkvAdapter(ModuleAdapter):
    """`f(q, k, v) -> y`, all [B, H, T, D]. x holds q, k and v side by side."""

    name = "qkv"
    layout = "q, k and v [B, H, T, D]"
    form = "f(q, k, v) -> y with tensors [B, H, T, D]"

    @classmethod
    def fits(cls, module: Callable[..., Any], parameters: Parameters) -> bool:
        return tuple(list_required(parameters)) in QKV_NAMES

    @property
    def dim(self) -> int:
        return 3 * N_HEADS * HEAD_DIM

    def forward(self, x_BTD: Tensor, is_token_BT: Tensor | None = None) -> Tensor:
        B, T, _ = x_BTD.shape
        qkv = x_BTD.unflatten(-1, (3, N_HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        if x_BTD.is_contiguous():
            qkv = qkv.contiguous()
        return first_output(self.module(*qkv)).transpose(1, 2).reshape(B, T, -1)


class MultiheadAdapter(ModuleAdapter):
    """`torch.nn.MultiheadAttention` as self-attention, with a causal mask unless declared non-causal."""

    name = "multihead"
    form = "torch.nn.MultiheadAttention"
    no_padding = None

    @classmethod
    def fits(cls, module: Callable[..., Any], parameters: Parameters) -> bool:
        return isinstance(module, nn.MultiheadAttention)

    def forward(self, x_BTD: Tensor, is_token_BT: Tensor | None = None) -> Tensor:
        batch_first = self.module.batch_first
        T = x_BTD.shape[1]
        is_masked_TT = torch.ones(T, T, dtype=torch.bool, device=x_BTD.device).triu(1)
        x = x_BTD if batch_first else x_BTD.transpose(0, 1)
        y, _ = self.module(
            x,
            x,
            x,
            key_padding_mask=None if is_token_BT is None else ~is_token_BT,
            attn_mask=is_masked_TT if self.is_causal else None,
            need_weights=False,
        )
        return y if batch_first else y.transpose(0, 1)


class FlaAdapter(ModuleAdapter):
    """Layers of flash-linear-attention: `f(hidden_states, attention_mask, past_key_values, use_cache)`.

    They return (y, attentions, past_key_values). A layer whose package has no `models.utils.Cache` makes
    its own cache when called with `past_key_values=None`.
    """

    name = "fla"
    pads_cache = True
    form = "f(hidden_states, past_key_values=None, use_cache=False), as in flash-linear-attention"
    no_cache = None

    def __init__(self, module: Callable[..., Any], is_causal: bool) -> None:
        super().__init__(module, is_causal)
        if "attention_mask" in self.parameters:
            self.no_padding = None

    @classmethod
    def fits(cls, module: Callable[..., Any], parameters: Parameters) -> bool:
        return {"hidden_states", "past_key_values", "use_cache"} <= {*parameters} and [
            *list_required(parameters)
        ] == ["hidden_states"]

    def forward(self, x_BTD: Tensor, is_token_BT: Tensor | None = None) -> Tensor:
        if is_token_BT is None:
            return first_output(self.module(hidden_states=x_BTD))
        return first_output(self.module(hidden_states=x_BTD, attention_mask=is_token_BT.long()))

    def start(self) -> Any:
        if type(self.module).__module__.partition(".")[0] != "fla":
            return None
        from importlib import import_module

        return import_module("fla.models.utils").Cache()

    def step(self, x_BTD: Tensor, state: Any, is_token_BS: Tensor | None = None) -> tuple[Tensor, Any]:
        padding = {} if is_token_BS is None else {"attention_mask": is_token_BS.long()}
        y, *_, state = self.module(hidden_states=x_BTD, past_key_values=state, use_cache=True, **padding)
        return y, state


def read_parameters(module: Callable[..., Any]) -> Parameters:
    """Read the signature of a module's forward, or of a function; empty if Python has none for it."""
    try:
        function = module.forward if isinstance(module, nn.Module) else module
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def list_required(parameters: Parameters) -> list[str]:
    """List the names of the parameters that have no default."""
    return [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]


def first_output(output: Any) -> Tensor:
    """Return y of an output that may be a tuple."""
    return output[0] if isinstance(output, tuple) else output
