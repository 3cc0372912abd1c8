"""Cross-entropy per target."""

import torch.nn.functional as F
from torch import Tensor

from attnlab.store.schema import Metric

VALIDATION = Metric("val/loss", unit="nats")  # its mean over the validation targets that count


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Per target, in nats [B, T]; 0 where the target does not count."""
    losses = F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), reduction="none")
    return losses.view(targets_BT.shape)
