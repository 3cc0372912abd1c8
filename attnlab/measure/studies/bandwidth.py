"""Bandwidth of a decoding step of attention: whether reading the cache determines its time.

All numbers of KV heads and all contexts are timed interleaved in one run, so that their ratios are valid. The
product of one query with the keys costs the same FLOPs for any number of KV heads; the bytes differ.
"""

from collections.abc import Callable, Sequence
from statistics import median

import torch

from attnlab.attention.contracts import AttentionInputs
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.masks.causal import causal
from attnlab.measure.measurement import MeasurementResult
from attnlab.measure.roofline import measure_roofline
from attnlab.measure.step_timing import interleave_calls, make_timer
from attnlab.measure.studies.fits import compute_r_squared, validate_increasing, validate_positive
from attnlab.store.run_schema import Metric

MIN_SAMPLE_BYTES = 2**27  # smaller steps are repeated to read this much per sample
METRICS = (
    Metric("bandwidth/r2_bytes", "R² of time over bytes", "", "higher", "time"),
    Metric("bandwidth/r2_flops", "R² of time over FLOPs", "", "higher", "time"),
    Metric("bandwidth/share", "proportion of copy bandwidth", "", "higher", "time"),
    Metric("bandwidth/saving", "speed-up from fewer KV heads", "", "higher", "time"),
    Metric("bandwidth/saving_over_bytes", "speed-up over reduction in bytes", "", "higher", "time"),
)


class Bandwidth:
    """Times decoding steps over caches with different numbers of KV heads.

    Metrics: `bandwidth/r2_bytes` and `bandwidth/r2_flops`, R² of a straight line of time over either;
    `bandwidth/share`, the proportion of a large copy's bytes per second, with all heads at the longest
    context; `bandwidth/saving`, the ratio of the time with all heads to that with the next fewer KV heads at
    this context; `bandwidth/saving_over_bytes`, this ratio over the ratio of the bytes.

    Args:
        n_kv_heads: decreasing, starting with `n_heads`.
        repeated: copy the shared keys to all heads before each step, as code without grouped kernels does.
    """

    metrics = METRICS
    shapes_only = True

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
        validate_positive(n_heads=n_heads, head_dim=head_dim, batch=batch, rounds=rounds)
        validate_increasing(list(n_kv_heads)[::-1], "measurement.n_kv_heads in reverse order")
        if n_kv_heads[0] != n_heads or any(n_heads % heads for heads in n_kv_heads):
            raise ValueError(
                f"measurement.n_kv_heads={list(n_kv_heads)}: start with n_heads={n_heads} and use "
                "only its divisors"
            )
        self.contexts = validate_increasing(contexts, "measurement.contexts")
        self.n_heads = n_heads
        self.head_dim = head_dim
        self.n_kv_heads = list(n_kv_heads)
        self.batch = batch
        self.rounds = rounds
        self.repeated = repeated
        self.dtype = torch.bfloat16 if bf16 else torch.float32

    @torch.no_grad()
    def __call__(self, module: object, data: object, device: str) -> MeasurementResult:
        """Time all steps and fit lines."""
        settings = [(heads, context) for context in self.contexts for heads in self.n_kv_heads]
        works = {setting: self._make_step_timer(*setting, device) for setting in settings}
        samples = interleave_calls(works, self.rounds)
        times = {setting: median(values) for setting, values in samples.items()}
        sizes = {setting: self._count_cache_bytes(*setting) for setting in settings}
        flops = [4 * self.batch * self.n_heads * self.head_dim * context for _, context in settings]
        longest = self.contexts[-1]
        all_heads, fewer_heads = ((heads, longest) for heads in self.n_kv_heads[:2])
        saving = times[all_heads] / times[fewer_heads]
        bytes_per_s = 1e3 * sizes[all_heads] / times[all_heads]
        metrics = {
            "bandwidth/r2_bytes": compute_r_squared(
                [sizes[setting] for setting in settings], list(times.values())
            ),
            "bandwidth/r2_flops": compute_r_squared(flops, list(times.values())),
            "bandwidth/share": bytes_per_s / measure_roofline(device, self.dtype).bytes_per_s,
            "bandwidth/saving": saving,
            "bandwidth/saving_over_bytes": saving * sizes[fewer_heads] / sizes[all_heads],
        }
        series = {
            f"step_ms/{heads} KV heads": {n: times[heads, n] for n in self.contexts}
            for heads in self.n_kv_heads
        }
        return MeasurementResult(metrics, series=series)

    def _count_cache_bytes(self, heads: int, context: int) -> int:
        """Return the bytes of the cached keys and values."""
        return 2 * self.batch * heads * context * self.head_dim * self.dtype.itemsize

    def _make_step_timer(self, heads: int, context: int, device: str) -> Callable[[], float]:
        """Return a function that returns the milliseconds of one step."""
        shape = (self.batch, heads, context, self.head_dim)
        k, v = (torch.randn(shape, device=device, dtype=self.dtype) for _ in range(2))
        q = torch.randn(self.batch, self.n_heads, 1, self.head_dim, device=device, dtype=self.dtype)
        positions = torch.arange(context, device=device)
        q_idx = positions[None, None, -1:, None]
        kv_idx = positions[None, None, None, :]
        scale = self.head_dim**-0.5
        copies_keys = self.repeated and heads < self.n_heads
        repeats = max(
            1, MIN_SAMPLE_BYTES // self._count_cache_bytes(self.n_heads if copies_keys else heads, context)
        )

        def run_steps() -> None:
            for _ in range(repeats):
                keys = k
                values = v
                if copies_keys:
                    keys, values = (part.repeat_interleave(self.n_heads // heads, 1) for part in (k, v))
                sdpa(AttentionInputs(q, keys, values, q_idx, kv_idx, scale, causal, aligned=True))

        return make_timer(run_steps, repeats, device)
