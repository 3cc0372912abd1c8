"""A few optimizer steps of a config's model, without a trainer."""

from typing import Any

import torch

from attnlab.model.build import build_model, instantiate_config


def train_on_one_batch(config: dict[str, Any], n_steps: int = 3) -> list[float]:
    """Return the loss of each step on the same four rows."""
    data = instantiate_config(config["data"])
    module = instantiate_config(config["optim"], model=build_model(config, data.task.vocab_size))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(n_steps):
        loss = module.losses(data.task.train_batch(0, 0, 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
