"""A training step through Lightning against a bare loop over the same model, batches and optimiser."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch

from attnlab.bench import Bench, conditions, rows
from attnlab.build import build_model, device_of, make
from attnlab.measure.timing import interleave, wait
from attnlab.train import QUIET

OVERRIDES = [
    "model.n_layers=4", "model.dim=128", "model.n_heads=4", "data.length=64", "data.batch_size=12",
    "position=learned", "logger=none", "optim.lr=1e-3", "optim.min_lr=1e-4",
]  # fmt: skip
STEPS, WARM_UP, ROUNDS = 20, 4, 6


def measure(config: Mapping[str, Any], say: Callable[[str], None]) -> Bench:
    """Milliseconds per step, STEPS steps a sample after WARM_UP untimed ones."""
    data = make(config["data"])
    device = device_of(config)

    def module() -> Any:
        return make(config["optim"], model=build_model(config, data.task.vocab_size))

    def bare() -> float:
        lit = module().to(device)
        model, total = lit.model, STEPS + WARM_UP
        optimizer, schedule = lit.optimizer(total)
        for step in range(total):
            if step == WARM_UP:
                wait(device)
                began = time.perf_counter()
            batch = {k: v.to(device) for k, v in data.task.train_batch(0, step, data.batch_size).items()}
            logits = model(batch["tokens"])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config["trainer"]["gradient_clip_val"])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
        wait(device)
        return (time.perf_counter() - began) * 1e3 / STEPS

    def lightning() -> float:
        clock = _Clock(device)
        settings = dict(config["trainer"]) | QUIET | {"max_steps": STEPS + WARM_UP}
        trainer = make(settings, logger=False, max_epochs=1, limit_val_batches=0, callbacks=[clock])
        trainer.fit(module(), data)
        return (clock.ended - clock.began) * 1e3 / STEPS

    samples = interleave({"bare loop": bare, "through Lightning": lightning}, ROUNDS, say)
    return Bench("train", conditions(config), rows(samples, "ms/step"))


class _Clock(pl.Callback):
    def __init__(self, device: str) -> None:
        self.device = device

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == WARM_UP:
            wait(self.device)
            self.began = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        wait(self.device)
        self.ended = time.perf_counter()
