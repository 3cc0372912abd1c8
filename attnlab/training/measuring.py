"""A run that only measures: no step is trained, and what its `measurement` finds becomes the record."""

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from attnlab.measure import size
from attnlab.measure.leakage import batch_of, leakage
from attnlab.measure.measurement import Measurement, on_paper
from attnlab.model.build import WEIGHTS, build_model, device_of, make
from attnlab.model.transformer import Transformer
from attnlab.store.schema import RunRecord, RunSpec
from attnlab.training import record as records
from attnlab.training.parent import load_parent


def check(config: Mapping[str, Any], model: Transformer, data: Any) -> Measurement:
    """The measurement. ValueError, one line, where it cannot be taken; `model` lives on the meta device.

    A measurement may have `check(model, data)`, and `on_paper = True`: then its model has no numbers.
    """
    measurement = make(config["measurement"])
    name = config["measurement"].get("_target_")
    if not callable(measurement):
        raise ValueError(f"measurement={name} makes a {type(measurement).__name__}, which cannot be called")
    if on_paper(measurement) and config["parent"]:
        raise ValueError(f"measurement={name} looks at no weights: set parent=null")
    if hasattr(measurement, "check"):
        measurement.check(model, data)
    return measurement


def figures(measurement: Measurement) -> list[str] | None:
    """All that a run may measure, where its measurement lists that (`measures()`); else None."""
    return [*measurement.measures(), *size.MEMORY] if hasattr(measurement, "measures") else None


def measure(folder: Path, spec: RunSpec) -> RunRecord:
    """The run, up to its record on disk, which is returned. FloatingPointError where a figure is no
    number.
    """
    clock = time.perf_counter()
    config = spec.config
    torch.manual_seed(config["seed"])
    data = make(config["data"])
    device = device_of(config)
    measurement = make(config["measurement"])
    where = "meta" if on_paper(measurement) else "cpu"
    with torch.device(where):
        model = build_model(config, data.task.vocab_size)
    if config["parent"]:
        load_parent(model, config, folder.parent, spec.use.composed)
    precision = str(config["trainer"]["precision"])
    module = make(config["optim"], model=model).to(dtype=WEIGHTS.get(precision, torch.float32)).eval()
    module = module if where == "meta" else module.to(device)
    mixed = torch.autocast(device, torch.bfloat16) if precision.startswith("bf16-m") else nullcontext()
    with mixed:
        measured = measurement(module, data, device)
    for name, value in measured.metrics.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"{name} is measured as {value}, which is no number")
    memory = {
        **size.kv_bytes(model, None if where == "meta" else data.probe(1).to(device)),
        **size.peak_memory(torch.device(device)),
    }
    record = records.of(
        spec,
        clock,
        metrics={name: float(value) for name, value in measured.metrics.items()},
        declared=measured.declarations() | {name: size.MEMORY[name] for name in memory},
        memory=memory,
        leakage={} if where == "meta" else leakage(model, batch_of(data, device)),
        speed={},
        kernels={"max_abs_eager_fused": None, "note": "nothing was trained, and no maps were taken"},
        head_scores={},
    )
    curves = [(x, x, name, float(y)) for name, line in measured.series.items() for x, y in line.items()]
    records.write(folder, record, curves)
    return record
