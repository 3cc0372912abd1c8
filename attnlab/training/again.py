"""What other code than today's has measured in a finished run, measured again from its final weights.

Nothing is trained, and what is not asked for stays as it was: curves, maps over training, times, peaks.
"""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytorch_lightning as pl
import torch
from safetensors.torch import load_model

from attnlab.model.build import build_model, device_of, make
from attnlab.store import runs
from attnlab.training import end
from attnlab.training.module import LanguageModel


def measure_again(folder: Path) -> None:
    """Takes the outdated parts of the record in `folder` anew. The estimate becomes today's.

    Built is what spec.json says, which the command has written: a record may be anybody's.
    """
    spec = runs.spec(folder)
    record = runs.record(folder)
    assert record is not None
    assert record.done
    outdated = record.outdated(spec.estimate)
    config = spec.config
    torch.manual_seed(config["seed"])
    data = make(config["data"])
    module: LanguageModel = make(config["optim"], model=build_model(config, data.task.vocab_size))
    load_model(module.model, str(folder / "model.safetensors"))
    if "accuracy" in outdated:
        _validate(module, data, config["trainer"])
    module = module.to(device_of(config))
    rows = list(zip(*pq.read_table(folder / "curves.parquet").to_pydict().values(), strict=True))
    fresh = record.plain()
    if set(outdated) == end.PARTS.keys():  # nothing of what was measured is trusted, nor kept
        anew = ("metrics", "censored", "by_position", "leakage", "by_kind", "written")
        fresh |= {key: {} for key in anew}
    for part in outdated:
        for key, value in end.PARTS[part](module, data, rows, config["measure"]).items():
            fresh[key] = (
                value
                if key in ("undefined", "head_scores", "targets_by_position")
                else {**fresh[key], **value}
            )
    fresh["measured_by"] = spec.estimate.measured_by
    fresh["estimate"] = spec.estimate
    runs.write_record(folder, type(record).model_validate(fresh))


def _validate(module: LanguageModel, data: Any, trainer: dict[str, Any]) -> None:
    """The last validation once more, for its answers; the module keeps them."""
    pl.Trainer(
        accelerator=trainer["accelerator"], devices=1, precision=trainer["precision"], logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    ).validate(module, data, verbose=False)  # fmt: skip
