"""The toy's trainer, which logs what it would have seen to W&B: `ROWS` rows and a summary."""

import json
from pathlib import Path

import toy_trainer
from toy_trainer import check, device_kind, measure_again, verify  # noqa: F401 - a trainer's functions

from attnlab.training.loggers.wandb import Wandb

ROWS = 20


def run(folder: Path):
    group = json.loads((folder / "spec.json").read_text())["config"]["logger"]
    log = Wandb.of(group).logger(folder, None, id=folder.name, group="toys", name=folder.name)
    for n in range(ROWS):
        log.log_metrics({"val/loss": n / 10}, step=n)
    toy_trainer.run(folder)
    log.end({"memory/toy": 256}, 0)
