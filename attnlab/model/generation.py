"""Generation: one prefill over the prompts, then one token at a time through the caches.

Without caches, each step computes the full sequence. A step runs on a lean copy of the model (`lean_copy`).
Heads with `can_absorb` read their cache unexpanded there: the same numbers in much less time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, final

import torch
from torch import Tensor

from attnlab.attention.cache import StaticCache, create_layer_caches
from attnlab.attention.contracts import Capabilities, Mask, Unsupported
from attnlab.attention.layer import Attention
from attnlab.attention.masks.conjunction import MISSED_KEYS_ERROR, can_decoding_miss_keys
from attnlab.attention.masks.data_masks import non_padding, written_slots
from attnlab.attention.slot_cache import DecodeCaches
from attnlab.attention.token_positions import TokenPositions
from attnlab.model.initialization import make_named_generator
from attnlab.model.lean_copy import absorb_heads, lay_out_by_columns, make_lean_copy
from attnlab.model.transformer import Transformer

SPAN = 256  # a compiled step reads its cache in multiples of this many slots
POSITION_CHUNK = 256  # number of steps whose positions and rotations are computed at once

Prompts = Tensor | Sequence[Sequence[int]]
StepFunction = Callable[[Tensor], Tensor]  # newest tokens [B, 1] -> logits [B, vocabulary] of the next


@final
@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; temperature 0 is greedy decoding.

    Otherwise a token is drawn from the `top_k` most likely ones, restricted to the smallest set with
    probability `top_p` among them (Holtzman et al. 2020, §3.1). The draws of row b depend on (seed, b) alone.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature={self.temperature}: must be a finite number of at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: must be at least 1")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must be above 0 and at most 1")

    def draw_uniform(self, rows: int, count: int) -> Tensor | None:
        """Draw float64 numbers in [0, 1) of shape [rows, count]; None for greedy decoding."""
        if self.temperature == 0:
            return None
        generators = [make_named_generator(self.seed, f"sampling/{row}") for row in range(rows)]
        return torch.stack(
            [torch.rand(count, dtype=torch.float64, generator=generator) for generator in generators]
        )

    def sample_tokens(self, logits_BV: Tensor, draw_B1: Tensor | None) -> Tensor:
        """Return tokens [B, 1]: where the cumulative probability, in descending order, exceeds `draw_B1`."""
        if draw_B1 is None:
            return logits_BV.argmax(-1, keepdim=True)
        count = min(self.top_k or logits_BV.shape[-1], logits_BV.shape[-1])
        probability, token = (logits_BV.double() / self.temperature).softmax(-1).topk(count)
        total = probability.cumsum(-1)
        if self.top_p < 1:
            before = total - probability
            total = (probability * (before < self.top_p * total[:, -1:])).cumsum(-1)
        last = total[:, -1:]
        rank = torch.minimum((total <= draw_B1 * last).sum(-1), (total < last).sum(-1))  # against rounding
        return token.gather(1, rank[:, None])


def generate(
    model: Transformer,
    prompts: Prompts,
    new_tokens: int,
    make_cache: Callable[..., Any] | None,
    sampling: Sampling | None = None,
    stop: Sequence[int] = (),
) -> Tensor:
    """Extend prompts [B, T], or lists of unequal length, to [B, T + new_tokens] by a temporary `Decoder`."""
    return Decoder(model, make_cache).generate(prompts, new_tokens, sampling, stop)


@final
class Decoder:
    """Generator for one model and one kind of cache; `make_cache` None recomputes the sequence at every step.

    `compile` compiles the step of one new token over a static cache, with CUDA graphs on a GPU; the first
    generation takes the compilation time. Dropout is off in any mode of the model. On a CPU the decoder
    copies the matrices (`lay_out_by_columns`): make another decoder after the weights change.
    """

    prefill_chunk: int | None = None  # tokens per prefill pass through a cache, to save memory; None: all

    def __init__(
        self, model: Transformer, make_cache: Callable[..., Any] | None, compile: bool = False
    ) -> None:
        if compile and not (make_cache and self._has_static_caches(model, make_cache)):
            raise ValueError("decode.compile=true needs a cache of fixed size: use decode=static")
        if compile and any(getattr(block.mixer, "selection", None) for block in model.blocks):
            raise ValueError(
                "decode.compile=true needs a mask with a constant number of blocks: use another mask"
            )
        on_gpu = model.embedding.weight.is_cuda
        copies = dict[int, Tensor]()
        self.model, self.step_model = (
            make_lean_copy(model) if on_gpu else lay_out_by_columns(make_lean_copy(model), copies)
            for _ in range(2)
        )
        self.make_cache = make_cache
        self.future_layers = [
            layer for layer in model.modules() if isinstance(layer, Attention) and layer.sees_future
        ]
        if make_cache is not None:
            absorb_heads(self.step_model)
        compile_options = {"mode": "reduce-overhead"} if on_gpu else {"options": {"cpp_wrapper": True}}
        # torch keeps at most eight graphs per code object, so each decoder's step gets its own code object
        step_code = FunctionType(
            _compute_next_logits.__code__.replace(), globals(), _compute_next_logits.__name__
        )
        self.compiled_step = torch.compile(step_code, fullgraph=True, **compile_options) if compile else None
        self._reusable_caches = dict[tuple[int, bool], DecodeCaches]()

    def generate(
        self,
        prompts: Prompts,
        new_tokens: int,
        sampling: Sampling | None = None,
        stop: Sequence[int] = (),
    ) -> Tensor:
        """Return [B, T + new_tokens], left-padded like the prompts; shorter if every row stops early."""
        tokens = prompts if isinstance(prompts, Tensor) else pad_left(prompts)[0]
        new = list(self.stream_tokens(prompts, new_tokens, sampling, stop))
        return torch.cat((tokens.to(new[0].device), *new), dim=1)

    @torch.inference_mode()
    def stream_tokens(
        self, prompts: Prompts, new_tokens: int, sampling: Sampling | None = None, stop: Sequence[int] = ()
    ) -> Iterator[Tensor]:
        """Yield the next token of every row [B, 1] until all rows have reached a token in `stop`.

        A row that has stopped repeats its stop token.

        Raises:
            ValueError: Empty prompts, or too few learned positions or cache slots.
        """
        device = self.model.embedding.weight.device
        sampling = sampling or Sampling()
        tokens, positions = (prompts, None) if isinstance(prompts, Tensor) else pad_left(prompts)
        self._validate_prompts(tokens, new_tokens)
        draws = sampling.draw_uniform(len(tokens), new_tokens)
        draws = draws if draws is None else draws.to(device)
        positions = positions if positions is None else positions.to(device)
        with self._acquire_caches(len(tokens), positions is not None) as decode_caches:
            logits, run_step = self._prefill(tokens.to(device), positions, new_tokens, decode_caches)
            newest = None
            stops = torch.tensor(list(stop), device=device)
            has_stopped: Any = False  # [B, 1] after the first token
            for n in range(new_tokens):
                next_tokens = sampling.sample_tokens(logits, None if draws is None else draws[:, n : n + 1])
                if stop:
                    next_tokens = (
                        next_tokens if newest is None else torch.where(has_stopped, newest, next_tokens)
                    )
                    has_stopped = torch.isin(next_tokens, stops)
                newest = next_tokens
                yield newest
                if n + 1 == new_tokens or (stop and has_stopped.all()):
                    return
                logits = run_step(newest)

    @contextmanager
    def _acquire_caches(self, rows: int, padded: bool) -> Iterator[DecodeCaches]:
        """Yield empty caches; a compiled step reuses its own in the next generation of equal batch size."""
        mixers = [block.mixer for block in self.model.blocks]
        empty_caches = [] if self.make_cache is None else create_layer_caches(self.make_cache, mixers)
        decode_caches = self._reusable_caches.pop((rows, padded), None) or DecodeCaches(empty_caches)
        try:
            yield decode_caches
        finally:
            if self.compiled_step is not None:
                decode_caches.reset_caches()
                self._reusable_caches = {(rows, padded): decode_caches}

    @staticmethod
    def _has_static_caches(model: Transformer, make_cache: Callable[..., Any]) -> bool:
        """Return whether every layer's cache has a fixed memory address."""
        caches = create_layer_caches(make_cache, [block.mixer for block in model.blocks])
        return all(isinstance(cache, StaticCache) for cache in caches)

    def _validate_prompts(self, tokens: Tensor, new_tokens: int) -> None:
        """Raise ValueError for prompts that would fail in a later step."""
        length = tokens.shape[1] + new_tokens
        vocabulary = self.model.embedding.num_embeddings
        if tokens.numel() < 1:
            raise ValueError("the prompt is empty: give at least one token")
        if new_tokens < 1:
            raise ValueError(f"new_tokens={new_tokens}: must be at least 1")
        if not 0 <= tokens.min() <= tokens.max() < vocabulary:
            raise ValueError(f"the prompt contains a token outside the vocabulary of {vocabulary}")
        longest = getattr(self.model.positions, "length", None)
        if longest is not None and length - 1 > longest:
            raise ValueError(
                f"prompts of {tokens.shape[1]} tokens and {new_tokens} new tokens need {length - 1} "
                "positions, "
                f"but the model has {longest} learned positions: generate fewer tokens, or train with "
                "another "
                "position"
            )

    def _prefill(
        self, tokens: Tensor, positions: Tensor | None, new_tokens: int, decode_caches: DecodeCaches
    ) -> tuple[Tensor, StepFunction]:
        """Return the logits after the prompts and the step function."""
        mask = None if positions is None else non_padding
        if self.make_cache is None:
            return _compute_next_logits(
                self.step_model, tokens, positions, mask, None
            ), self._make_uncached_step(tokens, positions, mask)
        self._require_no_missed_keys(tokens.shape[1], positions, new_tokens)
        caches = decode_caches.caches
        capacity = Capabilities.from_part(caches[0]).capacity
        if capacity is not None and tokens.shape[1] + new_tokens - 1 > capacity:
            raise ValueError(
                f"prompts of {tokens.shape[1]} tokens and {new_tokens} new tokens do not fit into a static "
                f"cache of {capacity} tokens: raise decode.cache.length"
            )
        chunk = self.prefill_chunk or tokens.shape[1]
        for n in range(0, tokens.shape[1], chunk):
            chunk_positions = positions if positions is None else positions[:, n : n + chunk]
            logits = _compute_next_logits(self.model, tokens[:, n : n + chunk], chunk_positions, mask, caches)
        if self.compiled_step is not None:
            return logits, self._make_compiled_step(tokens.shape[1], positions, mask, decode_caches)
        return logits, self._make_cached_step(tokens.shape[1], positions, mask, caches)

    def _require_no_missed_keys(self, longest: int, positions: Tensor | None, new_tokens: int) -> None:
        """Raise Unsupported if a non-causal mask shows a generated token to earlier queries."""
        lengths = {longest} if positions is None else set((positions[:, -1] + 1).tolist())
        for layer in self.future_layers:
            if any(
                can_decoding_miss_keys(layer.mask, length, length + new_tokens - 1, layer.heads.n_heads)
                for length in lengths
            ):
                raise Unsupported(MISSED_KEYS_ERROR)

    def _make_uncached_step(
        self, tokens: Tensor, positions: Tensor | None, mask: Mask | None
    ) -> StepFunction:
        def advance(newest: Tensor) -> Tensor:
            nonlocal tokens, positions
            tokens = torch.cat((tokens, newest), dim=1)
            if positions is not None:
                positions = torch.cat((positions, positions[:, -1:] + 1), dim=1)
            return _compute_next_logits(self.step_model, tokens, positions, mask, None)

        return advance

    def _make_cached_step(
        self, n_past: int, positions: Tensor | None, mask: Mask | None, caches: Sequence[Any]
    ) -> StepFunction:
        position_ids = torch.arange(POSITION_CHUNK, device=self.model.embedding.weight.device)[None]
        position_ids = position_ids + (n_past if positions is None else positions[:, -1:] + 1)
        chunk_positions = TokenPositions(position_ids, is_consecutive=positions is None)
        n = 0

        def advance(newest: Tensor) -> Tensor:
            nonlocal chunk_positions, n
            if n == POSITION_CHUNK:
                chunk_positions = TokenPositions(
                    chunk_positions.position_ids + POSITION_CHUNK, chunk_positions.is_consecutive
                )
                n = 0
            n += 1
            return _compute_next_logits(
                self.step_model, newest, chunk_positions.select_position(n - 1), mask, caches
            )

        return advance

    def _make_compiled_step(
        self, n_used: int, positions: Tensor | None, mask: Mask | None, decode_caches: DecodeCaches
    ) -> StepFunction:
        step = self.compiled_step
        device = self.model.embedding.weight.device
        assert step is not None
        if self.future_layers:
            mask = written_slots  # a non-causal mask alone would show unwritten slots
        next_positions = (
            torch.full((1, 1), n_used, device=device) if positions is None else positions[:, -1:] + 1
        )
        decode_caches.prepare_layers(n_used, next_positions)

        def advance(newest: Tensor) -> Tensor:
            nonlocal n_used
            n_used += 1
            decode_caches.set_span(min(decode_caches.caches[0].length, SPAN * math.ceil(n_used / SPAN)))
            logits = step(self.step_model, newest, decode_caches.position, mask, decode_caches.layers)
            decode_caches.slot.add_(1)
            decode_caches.position.add_(1)
            return logits

        return advance


def pad_left(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
    """Pad prompts on the left with zeros.

    Returns:
        Tokens [B, T], and positions [B, T] that are negative in the padding, or None for equal lengths.
    """
    longest = max((len(prompt) for prompt in prompts), default=0)
    if not longest or not all(len(prompt) for prompt in prompts):
        raise ValueError("the prompt is empty: give at least one token")
    tokens = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    pads = torch.tensor([longest - len(prompt) for prompt in prompts])
    return tokens, torch.arange(longest) - pads[:, None] if pads.any() else None


def _compute_next_logits(
    model: Transformer,
    tokens: Tensor,
    positions: Tensor | TokenPositions | None,
    mask: Mask | None,
    caches: Sequence[Any] | None,
) -> Tensor:
    hidden = model.compute_hidden(tokens, positions=positions, mask=mask, caches=caches)
    return model.compute_logits(hidden[:, -1])
