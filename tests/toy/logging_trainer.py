"""Toy trainer that also logs made-up metrics to W&B: `ROWS` rows and a summary."""

import json
from pathlib import Path

import toy_trainer
from toy_trainer import check, device_kind, measure_again, verify  # noqa: F401 - functions of a trainer

from attnlab.training.loggers.logger_group import open_wandb_logger
from attnlab.training.loggers.wandb_logger import WandbSettings

ROWS = 20


def run(folder: Path):
    group = json.loads((folder / "spec.json").read_text())["config"]["logger"]
    labels = {"id": folder.name, "group": "toys", "name": folder.name}
    log = open_wandb_logger(WandbSettings.from_group(group), folder, None, labels)
    for n in range(ROWS):
        log.log_metrics({"val/loss": n / 10}, step=n)
    toy_trainer.run(folder)
    log.close({"memory/toy": 256}, 0)
