"""Loss and correct answers of every validation window of a finished run, from its final weights."""

from pathlib import Path

import torch

from attnlab.measure.step_timing import load_trained_run
from attnlab.measure.training_pass import make_autocast
from attnlab.model.loss import cross_entropy


@torch.no_grad()
def measure_window_scores(folder: Path) -> dict[str, list[float]]:
    """Score each validation window on its own.

    Returns:
        Per window: `loss`, the sum over its scored targets in nats; `correct`, the number of targets with the
        highest logit; `targets`, the number of scored targets. The sums over all windows give `val/loss` and
        `val/accuracy`.
    """
    module, model, device, data, config = load_trained_run(folder)
    model.eval()
    scores: dict[str, list[float]] = {"loss": [], "correct": [], "targets": []}
    for host_batch in data.val_dataloader():
        batch = {key: value.to(device) for key, value in host_batch.items()}
        with make_autocast(config, device):
            logits = module.logits(batch)
        targets = batch["targets"]
        scores["loss"] += cross_entropy(logits, targets).double().sum(1).tolist()
        scores["correct"] += (logits.argmax(-1) == targets).double().sum(1).tolist()
        scores["targets"] += (targets >= 0).double().sum(1).tolist()
    return scores
