"""Remeasure a finished run from its final weights, where the measuring code has changed.

Nothing is trained, and all other parts stay as they were: curves, maps over training, times, peaks.
"""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from safetensors.torch import load_model

from attnlab.measure.training_pass import get_weight_dtype
from attnlab.model.build import build_data, build_model, instantiate_config, select_device
from attnlab.store import run_directories
from attnlab.store.guards import trust
from attnlab.training import final_metrics
from attnlab.training.language_model import LanguageModel
from attnlab.training.run_result import load_curves


def measure_again(folder: Path) -> None:
    """Measure the outdated parts of the result in `folder` again, and update its estimate.

    The model is built from spec.json, which is checked against the run's id: run.json has no such check.
    """
    run_config = trust.load_trusted_run(folder)
    result = run_directories.load_run_result(folder)
    assert result is not None
    assert result.is_done
    outdated = result.list_outdated_parts(run_config.estimate)
    config = run_config.config
    torch.manual_seed(config["seed"])
    data = build_data(run_config)
    data.micro_batches = result.split
    model = build_model(config, data.task.vocab_size).to(get_weight_dtype(config))
    module: LanguageModel = instantiate_config(config["optim"], model=model)
    load_model(module.model, str(folder / "model.safetensors"))
    if "accuracy" in outdated:
        _run_validation(module, data, config["trainer"])
    module = module.to(select_device(config))
    rows = load_curves(folder)
    updated = result.to_dict()
    if set(outdated) == final_metrics.MEASURED_PARTS.keys():  # no earlier measurement is trusted
        reset_keys = ("metrics", "censored", "by_position", "leakage", "by_token_category", "generated_text")
        updated |= {key: {} for key in reset_keys}
    for part in outdated:
        measured = final_metrics.MEASURED_PARTS[part].measure(module, data, rows, config)
        for key, value in measured.items():
            updated[key] = (
                value
                if key in ("undefined", "head_scores", "targets_by_position")
                else {**updated[key], **value}
            )
    updated["measured_by"] = run_config.estimate.measured_by
    updated["estimate"] = run_config.estimate
    run_directories.write_run_result(folder, type(result).model_validate(updated))


def _run_validation(module: LanguageModel, data: Any, trainer: dict[str, Any]) -> None:
    """Repeat the last validation, whose results the module stores."""
    pl.Trainer(
        accelerator=trainer["accelerator"], devices=1, precision=trainer["precision"], logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    ).validate(module, data, verbose=False)  # fmt: skip
