"""The validation loss of a run's final weights, from logits alone, to check the loss that the run reports."""

import torch

from attnlab.attention.masks.data_masks import make_batch_mask
from attnlab.data.data_module import DataModule
from attnlab.model.transformer import Transformer

LARGEST = 3e38  # in place of an infinite or undefined loss, which JSON lacks


@torch.no_grad()
def recompute_validation_loss(model: Transformer, data: DataModule, device: torch.device) -> float:
    """Return the mean cross-entropy in nats over all validation targets, without the LightningModule."""
    training = model.training
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    count = torch.zeros((), dtype=torch.int64, device=device)
    try:
        for batch in data.val_dataloader():
            batch = {key: value.to(device) for key, value in batch.items()}
            logits = model(batch["tokens"], mask=make_batch_mask(batch)).float()
            scored = batch["targets"] >= 0
            of_target = logits.gather(-1, batch["targets"].clamp(min=0)[..., None])[..., 0]
            total += (logits.logsumexp(-1) - of_target)[scored].double().sum()
            count += scored.sum()
    finally:
        model.train(training)
    return (total / count).nan_to_num(nan=LARGEST, posinf=LARGEST).item()
