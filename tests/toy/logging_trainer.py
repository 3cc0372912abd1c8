"""The toy's trainer, which logs what it would have seen to W&B: `ROWS` rows and a summary."""

import json
from pathlib import Path

import toy_trainer
from toy_trainer import check, device_kind, measure_again, verify  # noqa: F401 - a trainer's functions

from attnlab.training.loggers.wandb import Wandb

ROWS = 20
NAMES = ("mode", "project", "entity", "report", "workspace", "patience")


def run(folder: Path):
    logger = json.loads((folder / "spec.json").read_text())["config"]["logger"]
    mirror = Wandb(**{name: logger[name] for name in NAMES}).logger(folder, id=folder.name, group="toys")
    for n in range(ROWS):
        mirror.log_metrics({"val/loss": n / 10}, step=n)
    toy_trainer.run(folder)
    mirror.end({"memory/toy": 256}, 0)
