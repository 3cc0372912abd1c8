"""Generation with and without a cache: difference of logits, and speed-up.

`offset` shifts every cached token to a wrong position, the classic mistake with rotary positions and a cache.
It shows that the comparison detects such a mistake.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.cache import create_layer_caches
from attnlab.attention.contracts import Cache, Capabilities
from attnlab.measure.measurement import MeasurementResult
from attnlab.measure.step_timing import interleave_calls, make_timer
from attnlab.measure.studies.fits import fit_exponent, validate_increasing, validate_positive
from attnlab.model.generation import Decoder
from attnlab.model.transformer import Transformer
from attnlab.store.run_schema import Metric

AGREEMENT_METRICS = (
    Metric("cache/logit_difference", "largest logit difference", "", "lower"),
    Metric("cache/tokens_differing", "number of tokens that differ", "", "lower"),
)
TIME_METRICS = (
    Metric("speedup/share", "largest proportion of the speed-up (N + 1) / 2", "", "higher", "time"),
    Metric("exponent/cached", "exponent of the time with a cache", kind="time"),
    Metric("exponent/uncached", "exponent of the time without a cache", kind="time"),
    Metric("exponent/gap", "exponent of the speed-up", "", "higher", "time"),
)


class CachedGeneration:
    """Compares generation with a cache to generation without.

    Metrics, over `compared` greedy tokens after `prompt` tokens: `cache/logit_difference`, the largest
    difference between cached and uncached logits; `cache/tokens_differing`, the number of greedy tokens that
    differ.

    If `lengths` has numbers N of new tokens, both ways are also timed, interleaved A B B A:
    `speedup/<index>`; `speedup/share`, the largest proportion of the (N + 1) / 2 predicted by counting
    projections; `exponent/cached` and `exponent/uncached`, of time over N; `exponent/gap`, their difference.
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
        validate_positive(compared=compared, rounds=rounds, prompt=prompt)
        if make_cache is None:
            raise ValueError("measurement.make_cache is null: set a cache, as in decode=dynamic")
        if type(offset) is not int:
            raise ValueError(f"measurement.offset must be an integer number of positions, got {offset}")
        self.make_cache = make_cache
        self.compared = compared
        self.offset = offset
        self.lengths = validate_increasing(lengths, "measurement.lengths") if lengths else []
        self.rounds = rounds
        self.prompt = prompt
        self.metrics = [*AGREEMENT_METRICS, *(TIME_METRICS if self.lengths else ())]
        self.metrics += [Metric(f"speedup/{n}", direction="higher", kind="time") for n in range(len(lengths))]

    def check(self, model: Transformer, data: Any) -> None:
        """Validate the measurement against the model.

        Raises:
            ValueError: the model cannot be cached, or has too few positions.
        """
        if any(Capabilities.from_part(block.mixer).changes_with_length for block in model.blocks):
            raise ValueError(
                "measurement: RoPE scaling that changes with the sequence length cannot be cached"
            )
        longest = getattr(model.positions, "length", math.inf)
        n_positions = self.prompt + max([self.compared, *self.lengths])
        if n_positions > longest:
            raise ValueError(
                f"measurement needs {n_positions} positions, but the model has {longest} learned positions"
            )
        capacities = [Capabilities.from_part(cache).capacity for cache in self._make_caches(model)]
        if any(capacity is not None and n_positions > capacity for capacity in capacities):
            raise ValueError(f"measurement needs a cache of {n_positions} tokens: raise decode.cache.length")

    @torch.no_grad()
    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Compare the logits, then time both ways."""
        prompt = data.probe_tokens(1)[:, : self.prompt].to(device)
        metrics = self._measure_agreement(module.model, prompt)
        if not self.lengths:
            return MeasurementResult(metrics)
        times = self._time_generation(module.model, prompt, device)
        speedups = {n: times["uncached"][n] / times["cached"][n] for n in self.lengths}
        exponents = {way: fit_exponent(by_length) for way, by_length in times.items()}
        timings = {f"speedup/{n}": speedup for n, speedup in enumerate(speedups.values())}
        timings["speedup/share"] = max(value / ((n + 1) / 2) for n, value in speedups.items())
        timings |= {f"exponent/{way}": value for way, value in exponents.items()}
        timings["exponent/gap"] = exponents["uncached"] - exponents["cached"]
        series = {"speedup": speedups} | {
            f"generation_ms/{way}": by_length for way, by_length in times.items()
        }
        return MeasurementResult(metrics | timings, series)

    def _make_caches(self, model: Transformer) -> list[Cache]:
        return create_layer_caches(self.make_cache, [block.mixer for block in model.blocks])

    def _measure_agreement(self, model: Transformer, tokens: Tensor) -> dict[str, float]:
        """Compare logits while both ways read the uncached way's greedy text.

        A single wrong token is therefore not counted twice.
        """
        caches = self._make_caches(model)
        cached = model(tokens, caches=caches)[:, -1]
        largest = 0.0
        differing = 0
        for n in range(self.compared):
            uncached = model(tokens)[:, -1]
            largest = max(largest, (uncached - cached).abs().max().item())
            differing += int((uncached.argmax(-1) != cached.argmax(-1)).sum())
            newest = uncached.argmax(-1, keepdim=True)
            positions = None
            if self.offset:
                positions = torch.full_like(newest, max(0, tokens.shape[1] + self.offset))
            tokens = torch.cat((tokens, newest), dim=1)
            if n + 1 < self.compared:
                cached = model(newest, positions=positions, caches=caches)[:, -1]
        return {"cache/logit_difference": largest, "cache/tokens_differing": float(differing)}

    def _time_generation(
        self, model: Transformer, prompt: Tensor, device: str
    ) -> dict[str, dict[int, float]]:
        """Return milliseconds of a whole generation, by way and number of new tokens."""
        decoders = {"cached": Decoder(model, self.make_cache), "uncached": Decoder(model, None)}
        works = {
            (way, n): make_timer(partial(decoder.generate, prompt, n), 1, device)
            for n in self.lengths
            for way, decoder in decoders.items()
        }
        for way in decoders:
            works[way, self.lengths[0]]()  # warm-up
        samples = interleave_calls(works, self.rounds, warm_up=False)
        return {way: {n: median(samples[way, n]) for n in self.lengths} for way in decoders}
