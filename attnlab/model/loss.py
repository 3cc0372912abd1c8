"""Cross-entropy per target, and the validation metric made of it."""

import torch.nn.functional as F
from torch import Tensor

from attnlab.store.run_schema import Metric

VALIDATION_LOSS = Metric("val/loss", unit="nats")  # mean over the validation targets that are not ignored


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the loss per target [B, T] in nats, 0 for ignored targets."""
    losses = F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), reduction="none")
    return losses.view(targets_BT.shape)
