"""Cross-entropy per target, and the validation metric made of it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.store.run_schema import Metric

VALIDATION_LOSS = Metric("val/loss", unit="nats")  # mean over the validation targets that are not ignored


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the loss per target [B, T] in nats and float32 at least, 0 for ignored targets."""
    logits = logits_BTV.flatten(0, 1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets_BT.flatten(), reduction="none").view(targets_BT.shape)
