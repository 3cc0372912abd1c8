"""What a metric is called in a sentence, and its unit. One table, so that every section says the same."""

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
}


def label_of(metric: str) -> str:
    """The words for a metric; its own name where it has none."""
    return LABELS.get(metric, metric)


def unit_of(metric: str) -> str:
    """The unit that the metric's name implies; empty for a share or a count."""
    known = {"bytes": "B", "ms": "ms", "seconds": "s", "steps": "steps"}
    if metric.rsplit("/", 1)[-1].endswith("loss") or metric.startswith("length/"):
        return "nats"
    return next((unit for part, unit in known.items() if part in metric.split("_")), "")
