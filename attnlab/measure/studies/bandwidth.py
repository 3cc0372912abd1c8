"""One decoding step of attention over a cache: is its time that of reading the cache's bytes?

All numbers of KV heads and all contexts are timed interleaved in one run, so that their ratios hold. The
product of one query with the keys costs as many FLOPs however many KV heads there are; the bytes differ.
"""

from collections.abc import Callable, Sequence
from statistics import median

import torch

from attnlab.attention.contracts import AttentionInputs
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.masks.causal import causal
from attnlab.measure.measurement import Measured
from attnlab.measure.roofline import roofline
from attnlab.measure.studies.fits import explained, increasing, positive
from attnlab.measure.timing import interleave, timed
from attnlab.store.schema import Metric

LEAST = 2**27  # bytes read in one sample, by repeating a step that reads less
METRICS = (
    Metric("bandwidth/r2_bytes", "R² of time over bytes", "", "higher", "time"),
    Metric("bandwidth/r2_flops", "R² of time over FLOPs", "", "higher", "time"),
    Metric("bandwidth/share", "share of a copy's bandwidth", "", "higher", "time"),
    Metric("bandwidth/saving", "factor in time saved by fewer KV heads", "", "higher", "time"),
    Metric("bandwidth/saving_over_bytes", "factor saved in time over that in bytes", "", "higher", "time"),
)


class Bandwidth:
    """Metrics: `bandwidth/r2_bytes` and `bandwidth/r2_flops`, R² of a straight line of time over either;
    `bandwidth/share` of what a large copy moves per second, with all heads at the longest context;
    `bandwidth/saving`, the time with all heads over that with the next fewer KV heads there, and
    `bandwidth/saving_over_bytes`, the same over the ratio of the bytes.

    `n_kv_heads` decreases from `n_heads`. `repeated` copies the shared keys to all heads before each step, as
    code without grouped kernels does.
    """

    on_paper = True

    def __init__(
        self,
        n_heads: int,
        head_dim: int,
        n_kv_heads: Sequence[int],
        contexts: Sequence[int],
        batch: int = 1,
        rounds: int = 3,
        repeated: bool = False,
        bf16: bool = False,
    ) -> None:
        positive(n_heads=n_heads, head_dim=head_dim, batch=batch, rounds=rounds)
        increasing(list(n_kv_heads)[::-1], "measurement.n_kv_heads, read from its end")
        if n_kv_heads[0] != n_heads or any(n_heads % heads for heads in n_kv_heads):
            raise ValueError(
                f"measurement.n_kv_heads={list(n_kv_heads)}: begin with n_heads={n_heads}, and let each "
                "divide it"
            )
        self.contexts = increasing(contexts, "measurement.contexts")
        self.n_heads = n_heads
        self.head_dim = head_dim
        self.n_kv_heads = list(n_kv_heads)
        self.batch = batch
        self.rounds = rounds
        self.repeated = repeated
        self.dtype = torch.bfloat16 if bf16 else torch.float32

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return [metric.name for metric in METRICS]

    @torch.no_grad()
    def __call__(self, module: object, data: object, device: str) -> Measured:
        """Times all steps, then fits."""
        places = [(heads, context) for context in self.contexts for heads in self.n_kv_heads]
        works = {place: self._step(*place, device) for place in places}
        samples = interleave(works, self.rounds)
        times = {place: median(values) for place, values in samples.items()}
        sizes = {place: self._bytes(*place) for place in places}
        flops = [4 * self.batch * self.n_heads * self.head_dim * context for _, context in places]
        longest = self.contexts[-1]
        most, fewer = ((heads, longest) for heads in self.n_kv_heads[:2])
        saving = times[most] / times[fewer]
        rate = 1e3 * sizes[most] / times[most]
        metrics = {
            "bandwidth/r2_bytes": explained([sizes[place] for place in places], list(times.values())),
            "bandwidth/r2_flops": explained(flops, list(times.values())),
            "bandwidth/share": rate / roofline(device, self.dtype).bytes_per_s,
            "bandwidth/saving": saving,
            "bandwidth/saving_over_bytes": saving * sizes[fewer] / sizes[most],
        }
        series = {
            f"step_ms/{heads} KV heads": {n: times[heads, n] for n in self.contexts}
            for heads in self.n_kv_heads
        }
        return Measured(metrics, declared=METRICS, series=series)

    def _bytes(self, heads: int, context: int) -> int:
        """Of the keys and values that the cache holds."""
        return 2 * self.batch * heads * context * self.head_dim * self.dtype.itemsize

    def _step(self, heads: int, context: int, device: str) -> Callable[[], float]:
        """Milliseconds of one step, as a function."""
        shape = (self.batch, heads, context, self.head_dim)
        k, v = (torch.randn(shape, device=device, dtype=self.dtype) for _ in range(2))
        q = torch.randn(self.batch, self.n_heads, 1, self.head_dim, device=device, dtype=self.dtype)
        where = torch.arange(context, device=device)
        q_pos = where[None, None, -1:, None]
        kv_pos = where[None, None, None, :]
        scale = self.head_dim**-0.5
        copied = self.repeated and heads < self.n_heads
        repeats = max(1, LEAST // self._bytes(self.n_heads if copied else heads, context))

        def work() -> None:
            for _ in range(repeats):
                keys = k
                values = v
                if copied:
                    keys, values = (part.repeat_interleave(self.n_heads // heads, 1) for part in (k, v))
                sdpa(AttentionInputs(q, keys, values, q_pos, kv_pos, scale, causal, aligned=True))

        return timed(work, repeats, device)
