"""Loss per byte of text: the metric that compares tokenizers."""

import math
from typing import Any

import torch

from attnlab.measure.text.probe_window import is_text
from attnlab.model.loss import cross_entropy
from attnlab.model.transformer import Transformer
from attnlab.store.run_schema import Metric

BITS_PER_BYTE = Metric("val/bits_per_byte", "loss per byte", "bits", "lower", evaluated_on="bytes")
WINDOWS_PER_PASS = 32  # in one forward pass


@torch.no_grad()
def measure_bits_per_byte(model: Transformer, task: Any, device: torch.device | str) -> dict[str, float]:
    """Return {`val/bits_per_byte`: loss of the task's `val_text` in bits, divided by its bytes}.

    All tokenizers of a text score the same bytes. {} for a task that is no text, or has only one character.
    """
    if not is_text(task) or not task.val_text["bytes"]:
        return {}
    training = model.training
    model.eval()
    batches = [
        {key: value.to(device) for key, value in batch.items()}
        for batch in task.byte_batches(WINDOWS_PER_PASS)
    ]
    nats = sum(cross_entropy(model(batch["tokens"]), batch["targets"]).double().sum() for batch in batches)
    model.train(training)
    return {BITS_PER_BYTE.name: float(nats) / math.log(2) / task.val_text["bytes"]}
