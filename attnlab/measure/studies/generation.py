"""Generation with a cache beside generation without: the same logits, and how much sooner.

Surprising: `offset` puts every cached token at a wrong position, the classic mistake with rotary positions
and a cache. It is here to show that the comparison sees it.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.cache import new_caches
from attnlab.attention.contracts import Cache, Capabilities
from attnlab.measure.measurement import Measured
from attnlab.measure.studies.fits import exponent, increasing, positive
from attnlab.measure.timing import interleave, timed
from attnlab.model.generation import Decoder
from attnlab.model.transformer import Transformer
from attnlab.store.schema import Metric

AGREEMENT = (
    Metric("cache/logit_difference", "largest difference of a logit", "", "lower"),
    Metric("cache/tokens_differing", "number of tokens that differ", "", "lower"),
)
TIMES = (
    Metric("speedup/share", "largest share of a speed-up of (N + 1) / 2", "", "higher", "time"),
    Metric("exponent/cached", "exponent of the time with a cache", kind="time"),
    Metric("exponent/uncached", "exponent of the time without a cache", kind="time"),
    Metric("exponent/gap", "exponent of the speed-up", "", "higher", "time"),
)


class Generation:
    """Metrics, over `compared` greedy tokens after `prompt` ones: `cache/logit_difference`, the largest
    between cached and uncached logits, and `cache/tokens_differing`, how many greedy tokens are not the
    same.

    Then, where `lengths` names numbers N of new tokens, times of both ways interleaved A B B A:
    `speedup/<n-th>`, `speedup/share` (the largest share of the (N + 1) / 2 that counting projections
    promises), and `exponent/cached`, `exponent/uncached`, `exponent/gap`: of time over N, and their
    difference.
    """

    def __init__(
        self,
        make_cache: Callable[..., Cache] | None,
        compared: int,
        lengths: Sequence[int] = (),
        rounds: int = 1,
        prompt: int = 16,
        offset: int = 0,
    ) -> None:
        positive(compared=compared, rounds=rounds, prompt=prompt)
        if make_cache is None:
            raise ValueError("measurement.make_cache is null: compare a cache, as with decode=growing")
        if type(offset) is not int:
            raise ValueError(f"measurement.offset={offset}: give a whole number of positions")
        self.make_cache = make_cache
        self.compared = compared
        self.offset = offset
        self.lengths = increasing(lengths, "measurement.lengths") if lengths else []
        self.rounds = rounds
        self.prompt = prompt

    def check(self, model: Transformer, data: Any) -> None:
        """ValueError where the model cannot be cached, or does not reach that far."""
        if any(Capabilities.of(block.mixer).changes_with_length for block in model.blocks):
            raise ValueError("measurement: a rotation that changes with the length cannot be cached")
        longest = getattr(model.positions, "length", math.inf)
        wanted = self.prompt + max([self.compared, *self.lengths])
        if wanted > longest:
            raise ValueError(f"measurement needs {wanted} positions, the model has learned {longest}")
        rooms = [Capabilities.of(cache).room for cache in self._caches(model)]
        if any(room is not None and wanted > room for room in rooms):
            raise ValueError(f"measurement needs a cache of {wanted} tokens: raise decode.cache.length")

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return [metric.name for metric in (*AGREEMENT, *(TIMES if self.lengths else ()))] + [
            f"speedup/{n}" for n in range(len(self.lengths))
        ]

    @torch.no_grad()
    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """Compares, then times."""
        prompt = data.probe(1)[:, : self.prompt].to(device)
        metrics = self._agreement(module.model, prompt)
        if not self.lengths:
            return Measured(metrics, declared=AGREEMENT)
        times = self._times(module.model, prompt, device)
        speedups = {n: times["uncached"][n] / times["cached"][n] for n in self.lengths}
        exponents = {way: exponent(by_length) for way, by_length in times.items()}
        each = [Metric(f"speedup/{n}", "", "", "higher", "time") for n in range(len(speedups))]
        timings = {metric.name: value for metric, value in zip(each, speedups.values(), strict=True)}
        timings["speedup/share"] = max(value / ((n + 1) / 2) for n, value in speedups.items())
        timings |= {f"exponent/{way}": value for way, value in exponents.items()}
        timings["exponent/gap"] = exponents["uncached"] - exponents["cached"]
        series = {"speedup": speedups} | {
            f"generation_ms/{way}": by_length for way, by_length in times.items()
        }
        return Measured(metrics | timings, declared=[*AGREEMENT, *each, *TIMES], series=series)

    def _caches(self, model: Transformer) -> list[Cache]:
        return new_caches(self.make_cache, [block.mixer for block in model.blocks])

    def _agreement(self, model: Transformer, tokens: Tensor) -> dict[str, float]:
        """Both ways read the same text, the uncached greedy one, so one wrong token is not counted twice."""
        caches = self._caches(model)
        cached = model(tokens, caches=caches)[:, -1]
        largest = 0.0
        differing = 0
        for n in range(self.compared):
            plain = model(tokens)[:, -1]
            largest = max(largest, (plain - cached).abs().max().item())
            differing += int((plain.argmax(-1) != cached.argmax(-1)).sum())
            newest = plain.argmax(-1, keepdim=True)
            positions = None
            if self.offset:
                positions = torch.full_like(newest, max(0, tokens.shape[1] + self.offset))
            tokens = torch.cat((tokens, newest), dim=1)
            if n + 1 < self.compared:
                cached = model(newest, positions=positions, caches=caches)[:, -1]
        return {"cache/logit_difference": largest, "cache/tokens_differing": float(differing)}

    def _times(self, model: Transformer, prompt: Tensor, device: str) -> dict[str, dict[int, float]]:
        """Milliseconds of a whole generation, by way and number of new tokens."""
        decoders = {"cached": Decoder(model, self.make_cache), "uncached": Decoder(model, None)}
        works = {
            (way, n): timed(partial(decoder.generate, prompt, n), 1, device)
            for n in self.lengths
            for way, decoder in decoders.items()
        }
        for way in decoders:
            works[way, self.lengths[0]]()  # warm
        samples = interleave(works, self.rounds, warm_up=False)
        return {way: {n: median(samples[way, n]) for n in self.lengths} for way in decoders}
