"""What a metric is called in a sentence, its unit, and which of two is better where that goes without saying.
One table, so that every section says the same.
"""

import re

LABELS = {
    "kv_bytes_per_token": "KV cache per token",
    "parameters": "parameters",
    "parameters_non_embedding": "non-embedding parameters",
    "parameters_attention": "attention parameters",
    "flops_per_token": "training FLOPs per token",
    "saved_for_backward_bytes": "memory saved for the backward pass",
    "peak_rss_bytes": "peak memory",
    "peak_cuda_bytes": "peak GPU memory",
    "train_step_ms": "time of a training step",
    "decode_ms_per_token": "decoding time per token",
    "decode_uncached_ms_per_token": "decoding time per token without a cache",
    "train_tokens_per_s": "training throughput",
    "steps_to_90": "steps to 90 % accuracy",
    "kv_bytes/held": "bytes held by the cache",
    "kv_bytes/layer": "bytes held by a layer's cache",
    "kv_bytes/unexplained": "bytes held beyond the formula",
    "cache/logit_difference": "largest difference of a logit",
    "cache/tokens_differing": "number of tokens that differ",
    "speedup/share": "largest share of a speed-up of (N + 1) / 2",
    "exponent/cached": "exponent of the time with a cache",
    "exponent/uncached": "exponent of the time without a cache",
    "exponent/gap": "exponent of the speed-up",
    "exponent/forward": "exponent of the forward time",
    "exponent/step": "exponent of the time forward and backward",
    "exponent/saved": "exponent of the bytes kept for the backward pass",
    "exponent/peak": "exponent of the peak memory",
    "crossover/over_dim": "length at which attention's FLOPs pass the rest's, in widths",
    "bandwidth/r2_bytes": "R² of time over bytes",
    "bandwidth/r2_flops": "R² of time over FLOPs",
    "bandwidth/share": "share of a copy's bandwidth",
    "bandwidth/saving": "factor in time saved by fewer KV heads",
    "bandwidth/saving_over_bytes": "factor saved in time over that in bytes",
    "removable/share": "share of heads that can be taken out",
    "labels/agreement": "share of heads with the same names on another text",
    "growth/variance": "exponent of the scores' variance",
    "growth/magnitude": "exponent of the scores' typical size",
    "scores/variance_over_dim": "variance of a score over the width",
    "softmax/largest": "mean of the largest weight",
    "softmax/entropy": "entropy over that of uniform weights",
    "softmax/jacobian": "trace of the softmax's Jacobian",
}
FAMILIES = {
    r"kv_bytes/(\w+)": "KV cache per token of {}",
    r"pruned/(\d+)": "rise of the loss with {} % of the heads gone",
}
BETTER = {
    "higher": ("speedup/", "exponent/gap", "bandwidth/", "removable/", "labels/", "recall/", "val/accuracy"),
    "lower": ("cache/", "pruned/", "kv_bytes", "exponent/saved", "exponent/peak", "length/"),
}


def label_of(metric: str) -> str:
    """The words for a metric; its own name where it has none."""
    if metric in LABELS:
        return LABELS[metric]
    found = ((re.fullmatch(family, metric), words) for family, words in FAMILIES.items())
    return next((words.format(one[1]) for one, words in found if one), metric)


def direction_of(metric: str) -> str | None:
    """`lower` or `higher`, where one of them is better whatever the experiment; None where that depends."""
    return next((which for which, names in BETTER.items() if metric.startswith(names)), None)


def unit_of(metric: str) -> str:
    """The unit that the metric's name implies; empty for a share or a count."""
    known = {"bytes": "B", "ms": "ms", "seconds": "s", "steps": "steps"}
    if metric.rsplit("/", 1)[-1].endswith("loss") or metric.startswith(("length/", "pruned/")):
        return "nats"
    if "/" in metric:
        return "B" if metric.startswith("kv_bytes/") else ""
    return next((unit for part, unit in known.items() if part in metric.split("_")), "")
