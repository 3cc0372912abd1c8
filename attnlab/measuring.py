"""A run that only measures: no step is trained, and what its `measurement` finds becomes the record.

A measurement is a class that a config names: its constructor's signature is its schema, and calling it with
(module, data, device) gives `Measured`. Surprising: `exact` and `timed` say what kind of number a metric
is. A counted one has no interval, and a time is nothing that a test of the code may lean on.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attnlab import records
from attnlab.build import WEIGHTS, build_model, device_of, make
from attnlab.measure import size
from attnlab.model import Transformer
from attnlab.parent import load_parent


@dataclass(frozen=True)
class Measured:
    """`metrics` by name; those in `exact` are counted, those in `timed` are times or made of times. `series`:
    a curve's name to its points, a whole number (a length, a count) to a value.
    """

    metrics: Mapping[str, float]
    exact: Collection[str] = ()
    timed: Collection[str] = ()
    series: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


Measurement = Callable[[Any, Any, str], Measured]  # (LanguageModel, Data, device)


def check(config: Mapping[str, Any], model: Transformer, data: Any) -> None:
    """ValueError, one line, where the measurement cannot be taken; `model` lives on the meta device.

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


def on_paper(measurement: Measurement) -> bool:
    """Whether it only looks at shapes, so that its model may be larger than the machine."""
    return getattr(measurement, "on_paper", False)


def measure(folder: Path, spec: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The run, up to its record on disk, which is returned. FloatingPointError where a figure is no
    number.
    """
    clock, config = time.perf_counter(), spec["config"]
    torch.manual_seed(config["seed"])
    data, device, measurement = make(config["data"]), device_of(config), make(config["measurement"])
    where = "meta" if on_paper(measurement) else "cpu"
    with torch.device(where):
        model = build_model(config, data.task.vocab_size)
    if config["parent"]:
        load_parent(model, config, folder.parent)
    precision = str(config["trainer"]["precision"])
    module = make(config["optim"], model=model).to(dtype=WEIGHTS.get(precision, torch.float32)).eval()
    module = module if where == "meta" else module.to(device)
    mixed = torch.autocast(device, torch.bfloat16) if precision.startswith("bf16-m") else nullcontext()
    with mixed:
        found = measurement(module, data, device)
    for name, value in found.metrics.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"{name} is measured as {value}, which is no number")
    record = records.of(
        folder,
        config,
        facts,
        clock,
        metrics={name: float(value) for name, value in found.metrics.items()},
        exact=sorted(found.exact),
        timed=sorted(found.timed),
        memory={
            **size.kv_bytes(model, None if where == "meta" else data.probe(1).to(device)),
            **size.peak_memory(torch.device(device)),
        },
        speed={},
        kernels={"max_abs_eager_fused": None, "note": "nothing was trained, and no maps were taken"},
        head_scores={},
    )
    curves = [(x, x, name, float(y)) for name, line in found.series.items() for x, y in line.items()]
    records.write(folder, record, curves)
    return record
