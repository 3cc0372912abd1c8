"""Loss by kind of token."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnlab.measure.text.probe import is_text
from attnlab.measure.text.signs import SIGNS, signs_of
from attnlab.model.loss import cross_entropy
from attnlab.model.transformer import Transformer

TARGETS = 4096  # tokens of validation text that are looked at, about
ROWS = 8  # windows in one forward pass


@torch.no_grad()
def by_kind(model: Transformer, task: Any, device: torch.device | str) -> dict[str, dict[str, float]]:
    """Kind -> `loss`, the mean in nats over `targets` tokens of windows evenly spread over the validation
    text; no kind of which there are none. {} where the task is no text.
    """
    if not is_text(task):
        return {}
    windows = task.spans(max(1, TARGETS // task.length), task.length)
    training = model.training
    model.eval()
    parts = [cross_entropy(model(rows[:, :-1]), rows[:, 1:]).cpu() for rows in windows.to(device).split(ROWS)]
    model.train(training)
    losses = torch.cat(parts).double().numpy()
    signs = np.array([signs_of(task.decode(row)) for row in windows.tolist()])[:, 1:]
    seen = seen_before(windows).numpy()
    where = {name: signs == name for name in SIGNS} | {"seen": seen, "new": ~seen}
    return {
        kind: {"loss": float(losses[chosen].mean()), "targets": int(chosen.sum())}
        for kind, chosen in where.items()
        if chosen.any()
    }


def seen_before(windows_BN: Tensor) -> Tensor:
    """[B, N - 1]: whether a target and the token before it stood in a row earlier in the window."""
    before = windows_BN[:, :-1]
    target = windows_BN[:, 1:]
    pairs = before * (int(windows_BN.max()) + 1) + target
    return torch.stack([(row[:, None] == row).tril(-1).any(-1) for row in pairs])
