"""Loss by token category."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnlab.measure.text.category_rules import CHARACTER_CATEGORIES, categorize_tokens
from attnlab.measure.text.probe_window import is_text
from attnlab.model.loss import cross_entropy
from attnlab.model.transformer import Transformer

MAX_TARGETS = 4096  # approximate
WINDOWS_PER_PASS = 8  # in one forward pass


@torch.no_grad()
def measure_category_losses(
    model: Transformer, task: Any, device: torch.device | str
) -> dict[str, dict[str, float]]:
    """Return, per category, the mean `loss` in nats over its number of `targets`.

    Targets come from windows evenly spread over the validation text; empty categories are absent. {} for a
    task that is no text.
    """
    if not is_text(task):
        return {}
    windows = task.spans(max(1, MAX_TARGETS // task.length), task.length)
    training = model.training
    model.eval()
    parts = [
        cross_entropy(model(rows[:, :-1]), rows[:, 1:]).cpu()
        for rows in windows.to(device).split(WINDOWS_PER_PASS)
    ]
    model.train(training)
    losses = torch.cat(parts).double().numpy()
    categories = np.array([categorize_tokens(task.decode(row)) for row in windows.tolist()])[:, 1:]
    is_repeated = find_repeated_pairs(windows).numpy()
    masks = {name: categories == name for name in CHARACTER_CATEGORIES} | {
        "seen": is_repeated,
        "new": ~is_repeated,
    }
    return {
        category: {"loss": float(losses[mask].mean()), "targets": int(mask.sum())}
        for category, mask in masks.items()
        if mask.any()
    }


def find_repeated_pairs(windows_BN: Tensor) -> Tensor:
    """Return [B, N - 1]: whether a target and the token before it also occur earlier in the window."""
    previous = windows_BN[:, :-1]
    target = windows_BN[:, 1:]
    pairs = previous * (int(windows_BN.max()) + 1) + target
    return torch.stack([(row[:, None] == row).tril(-1).any(-1) for row in pairs])
