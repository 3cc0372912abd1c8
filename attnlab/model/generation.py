"""Generation: one prefill over the prompts, then one token at a time through the caches. Without caches, the
whole text each time.

Surprising: a step runs on a lean copy of the model (see `lean`), whose heads read their cache as it is where
they can (`Heads.can_absorb`): the same numbers, much sooner.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, final

import torch
from torch import Tensor

from attnlab.attention.cache import StaticCache, new_caches
from attnlab.attention.contracts import Capabilities, Mask, Unsupported
from attnlab.attention.layer import Attention
from attnlab.attention.masks.combine import TOO_EARLY, answers_too_early
from attnlab.attention.masks.data import reached, real
from attnlab.attention.positions import Positions
from attnlab.attention.slots import Rooms
from attnlab.model.initial import named_generator
from attnlab.model.lean import absorb, laid_out, lean
from attnlab.model.transformer import Transformer

SPAN = 256  # a compiled step reads its cache in multiples of so many slots
AHEAD = 256  # positions, and their rotations, are made for so many steps at once

Prompts = Tensor | Sequence[Sequence[int]]
Advance = Callable[[Tensor], Tensor]  # the newest tokens [B, 1] to the logits [B, vocabulary] of the next


@final
@dataclass(frozen=True)
class Sampling:
    """Temperature 0 takes the most likely token. Else one of the `top_k` most likely is drawn; of those, one
    of the fewest that hold `top_p` of their probability (Holtzman et al. 2020, §3.1). What row b draws
    depends on (seed, b) alone.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature={self.temperature}: it must be a finite number, at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: it must be at least 1")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: it must be above 0 and at most 1")

    def draws(self, rows: int, count: int) -> Tensor | None:
        """[rows, count] numbers in [0, 1), float64; None where nothing is drawn."""
        if self.temperature == 0:
            return None
        generators = [named_generator(self.seed, f"sampling/{row}") for row in range(rows)]
        return torch.stack(
            [torch.rand(count, dtype=torch.float64, generator=generator) for generator in generators]
        )

    def pick(self, logits_BV: Tensor, draw_B1: Tensor | None) -> Tensor:
        """The next tokens [B, 1]: where the cumulative probability, likely ones first, passes `draw_B1`."""
        if draw_B1 is None:
            return logits_BV.argmax(-1, keepdim=True)
        count = min(self.top_k or logits_BV.shape[-1], logits_BV.shape[-1])
        probability, token = (logits_BV.double() / self.temperature).softmax(-1).topk(count)
        total = probability.cumsum(-1)
        if self.top_p < 1:
            before = total - probability
            total = (probability * (before < self.top_p * total[:, -1:])).cumsum(-1)
        last = total[:, -1:]
        place = torch.minimum((total <= draw_B1 * last).sum(-1), (total < last).sum(-1))  # rounding aside
        return token.gather(1, place[:, None])


def generate(
    model: Transformer,
    prompts: Prompts,
    new_tokens: int,
    make_cache: Callable[..., Any] | None,
    sampling: Sampling | None = None,
    stop: Sequence[int] = (),
) -> Tensor:
    """Prompts [B, T], or lists of unequal length, to [B, T + new_tokens]: a `Decoder` for one use."""
    return Decoder(model, make_cache).generate(prompts, new_tokens, sampling, stop)


@final
class Decoder:
    """A model ready to generate with one kind of cache; `make_cache` None computes every step anew.

    `compile` compiles the step of one new token (with CUDA graphs on a GPU), over a static cache; the first
    generation pays for it. Dropout is off, whatever the model's mode. The model is taken as it is now: on a
    CPU its matrices are copied (see `laid_out`), so once they have changed, make another decoder.
    """

    piece: int | None = None  # tokens of a prefill at a time, through a cache: less memory; None: all

    def __init__(
        self, model: Transformer, make_cache: Callable[..., Any] | None, compile: bool = False
    ) -> None:
        if compile and not (make_cache and self._stays(model, make_cache)):
            raise ValueError("decode.compile=true needs a cache that stays where it is: use decode=static")
        if compile and any(getattr(block.mixer, "selection", None) for block in model.blocks):
            raise ValueError("decode.compile=true: the number of blocks is no constant: use another mask")
        on_gpu = model.embedding.weight.is_cuda
        copies = dict[int, Tensor]()
        self.model, self.stepper = (
            lean(model) if on_gpu else laid_out(lean(model), copies) for _ in range(2)
        )
        self.make_cache = make_cache
        self.ahead = [each for each in model.modules() if isinstance(each, Attention) and each.looks_ahead]
        if make_cache is not None:
            absorb(self.stepper)
        how = {"mode": "reduce-overhead"} if on_gpu else {"options": {"cpp_wrapper": True}}
        # torch keeps eight graphs of a piece of code: each decoder's step is a piece of its own
        own = FunctionType(_logits.__code__.replace(), globals(), _logits.__name__)
        self.compiled = torch.compile(own, fullgraph=True, **how) if compile else None
        self._held = dict[tuple[int, bool], Rooms]()

    def generate(
        self,
        prompts: Prompts,
        new_tokens: int,
        sampling: Sampling | None = None,
        stop: Sequence[int] = (),
    ) -> Tensor:
        """[B, T + new_tokens], padded on the left like the prompts; shorter where every row has stopped."""
        tokens = prompts if isinstance(prompts, Tensor) else left_padded(prompts)[0]
        new = list(self.stream(prompts, new_tokens, sampling, stop))
        return torch.cat((tokens.to(new[0].device), *new), dim=1)

    @torch.inference_mode()
    def stream(
        self, prompts: Prompts, new_tokens: int, sampling: Sampling | None = None, stop: Sequence[int] = ()
    ) -> Iterator[Tensor]:
        """Yields the next token of every row [B, 1], until all rows have reached one of `stop`; one that has
        repeats it. ValueError where the prompts are empty, or the positions or the cache end too early.
        """
        device = self.model.embedding.weight.device
        sampling = sampling or Sampling()
        tokens, positions = (prompts, None) if isinstance(prompts, Tensor) else left_padded(prompts)
        self._check(tokens, new_tokens)
        draws = sampling.draws(len(tokens), new_tokens)
        draws = draws if draws is None else draws.to(device)
        positions = positions if positions is None else positions.to(device)
        with self._rooms(len(tokens), positions is not None) as rooms:
            logits, advance = self._begin(tokens.to(device), positions, new_tokens, rooms)
            newest = None
            stops = torch.tensor(list(stop), device=device)
            ended: Any = False  # by row, once there is a token
            for n in range(new_tokens):
                picked = sampling.pick(logits, None if draws is None else draws[:, n : n + 1])
                if stop:
                    picked = picked if newest is None else torch.where(ended, newest, picked)
                    ended = torch.isin(picked, stops)
                newest = picked
                yield newest
                if n + 1 == new_tokens or (stop and ended.all()):
                    return
                logits = advance(newest)

    @contextmanager
    def _rooms(self, rows: int, padded: bool) -> Iterator[Rooms]:
        """Empty caches; a compiled step keeps its own for the next generation of as many rows."""
        mixers = [block.mixer for block in self.model.blocks]
        fresh = [] if self.make_cache is None else new_caches(self.make_cache, mixers)
        rooms = self._held.pop((rows, padded), None) or Rooms(fresh)
        try:
            yield rooms
        finally:
            if self.compiled is not None:
                rooms.empty()
                self._held = {(rows, padded): rooms}

    @staticmethod
    def _stays(model: Transformer, make_cache: Callable[..., Any]) -> bool:
        """Whether every layer's cache stays where it is."""
        caches = new_caches(make_cache, [block.mixer for block in model.blocks])
        return all(isinstance(cache, StaticCache) for cache in caches)

    def _check(self, tokens: Tensor, new_tokens: int) -> None:
        """ValueError for what can be known to fail before the first step."""
        length = tokens.shape[1] + new_tokens
        vocabulary = self.model.embedding.num_embeddings
        if tokens.numel() < 1:
            raise ValueError("the prompt is empty: generation goes on from at least one token")
        if new_tokens < 1:
            raise ValueError(f"new_tokens={new_tokens}: it must be at least 1")
        if not 0 <= tokens.min() <= tokens.max() < vocabulary:
            raise ValueError(f"the prompt holds a token outside the vocabulary of {vocabulary}")
        longest = getattr(self.model.positions, "length", None)
        if longest is not None and length - 1 > longest:
            raise ValueError(
                f"prompts of {tokens.shape[1]} tokens and {new_tokens} new ones need {length - 1} positions; "
                f"the model has learned {longest}: ask for fewer, or train with another position"
            )

    def _begin(
        self, tokens: Tensor, positions: Tensor | None, new_tokens: int, rooms: Rooms
    ) -> tuple[Tensor, Advance]:
        """The logits after the prompts, and the function that goes on."""
        mask = None if positions is None else real
        if self.make_cache is None:
            return _logits(self.stepper, tokens, positions, mask, None), self._anew(tokens, positions, mask)
        self._refuse_answers_too_early(tokens.shape[1], positions, new_tokens)
        caches = rooms.caches
        room = Capabilities.of(caches[0]).room
        if room is not None and tokens.shape[1] + new_tokens - 1 > room:
            raise ValueError(
                f"prompts of {tokens.shape[1]} tokens and {new_tokens} new ones do not fit into a static "
                f"cache of {room}: raise decode.cache.length"
            )
        piece = self.piece or tokens.shape[1]
        for n in range(0, tokens.shape[1], piece):
            where = positions if positions is None else positions[:, n : n + piece]
            logits = _logits(self.model, tokens[:, n : n + piece], where, mask, caches)
        if self.compiled is not None:
            return logits, self._in_slots(tokens.shape[1], positions, mask, rooms)
        return logits, self._through(tokens.shape[1], positions, mask, caches)

    def _refuse_answers_too_early(self, longest: int, positions: Tensor | None, new_tokens: int) -> None:
        """Unsupported where a mask that looks ahead would show a token to those before it."""
        lengths = {longest} if positions is None else set((positions[:, -1] + 1).tolist())
        for layer in self.ahead:
            if any(
                answers_too_early(layer.mask, length, length + new_tokens - 1, layer.heads.n_heads)
                for length in lengths
            ):
                raise Unsupported(TOO_EARLY)

    def _anew(self, tokens: Tensor, positions: Tensor | None, mask: Mask | None) -> Advance:
        def advance(newest: Tensor) -> Tensor:
            nonlocal tokens, positions
            tokens = torch.cat((tokens, newest), dim=1)
            if positions is not None:
                positions = torch.cat((positions, positions[:, -1:] + 1), dim=1)
            return _logits(self.stepper, tokens, positions, mask, None)

        return advance

    def _through(
        self, past: int, positions: Tensor | None, mask: Mask | None, caches: Sequence[Any]
    ) -> Advance:
        following = torch.arange(AHEAD, device=self.model.embedding.weight.device)[None]
        following = following + (past if positions is None else positions[:, -1:] + 1)
        ahead = Positions(following, consecutive=positions is None)
        n = 0

        def advance(newest: Tensor) -> Tensor:
            nonlocal ahead, n
            if n == AHEAD:
                ahead = Positions(ahead.of + AHEAD, ahead.consecutive)
                n = 0
            n += 1
            return _logits(self.stepper, newest, ahead.at(n - 1), mask, caches)

        return advance

    def _in_slots(self, used: int, positions: Tensor | None, mask: Mask | None, rooms: Rooms) -> Advance:
        step = self.compiled
        device = self.model.embedding.weight.device
        assert step is not None
        if self.ahead:
            mask = reached  # the mask alone would show slots that are not written yet
        at = torch.full((1, 1), used, device=device) if positions is None else positions[:, -1:] + 1
        rooms.open(used, at)

        def advance(newest: Tensor) -> Tensor:
            nonlocal used
            used += 1
            rooms.span(min(rooms.caches[0].length, SPAN * math.ceil(used / SPAN)))
            logits = step(self.stepper, newest, rooms.at, mask, rooms.layers)
            rooms.slot.add_(1)
            rooms.at.add_(1)
            return logits

        return advance


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
    """Tokens [B, T], zeros before the shorter prompts; positions [B, T], negative there, or None where all
    are equally long.
    """
    longest = max((len(prompt) for prompt in prompts), default=0)
    if not longest or not all(len(prompt) for prompt in prompts):
        raise ValueError("the prompt is empty: generation goes on from at least one token")
    tokens = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    pads = torch.tensor([longest - len(prompt) for prompt in prompts])
    return tokens, torch.arange(longest) - pads[:, None] if pads.any() else None


def _logits(
    model: Transformer,
    tokens: Tensor,
    positions: Tensor | Positions | None,
    mask: Mask | None,
    caches: Sequence[Any] | None,
) -> Tensor:
    hidden = model.hidden(tokens, positions=positions, mask=mask, caches=caches)
    return model.logits(hidden[:, -1])
