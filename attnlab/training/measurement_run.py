"""Measurement runs: nothing is trained, and the results of `measurement` become the run result."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from attnlab.measure import resources
from attnlab.measure.leakage import load_first_batch, measure_leakage
from attnlab.measure.measurement import Measurement, is_shapes_only
from attnlab.measure.training_pass import get_weight_dtype, make_autocast
from attnlab.model.build import build_data, build_model, instantiate_config, select_device
from attnlab.model.transformer import Transformer
from attnlab.store.run_schema import Metric, RunConfig, RunResult
from attnlab.training import run_result
from attnlab.training.warm_start import load_parent_weights


def build_checked_measurement(config: Mapping[str, Any], model: Transformer, data: Any) -> Measurement:
    """Build the measurement and check it against the model and data; `model` lives on the meta device.

    A measurement may have `check(model, data)`, its `metrics`, and `shapes_only = True` for a model without
    weights.
    """
    measurement = instantiate_config(config["measurement"])
    name = config["measurement"].get("_target_")
    if not callable(measurement):
        raise ValueError(f"measurement={name} builds a {type(measurement).__name__}, which is not callable")
    if is_shapes_only(measurement) and config["parent"]:
        raise ValueError(f"measurement={name} uses no weights: set parent=null")
    metrics = getattr(measurement, "metrics", ())
    if hasattr(measurement, "measures") or not all(isinstance(metric, Metric) for metric in metrics):
        raise ValueError(
            f"measurement={name} must define its metrics as attnlab.store.run_schema.Metric objects in the "
            "attribute `metrics`, without measures()"
        )
    if hasattr(measurement, "check"):
        measurement.check(model, data)
    return measurement


def run_measurement(folder: Path, run_config: RunConfig) -> RunResult:
    """Run the measurement and write the result, which is returned.

    Raises:
        FloatingPointError: A metric is not finite.
    """
    start_time = time.perf_counter()
    config = run_config.config
    torch.manual_seed(config["seed"])
    data = build_data(run_config)
    device = select_device(config)
    measurement = instantiate_config(config["measurement"])
    model_device = "meta" if is_shapes_only(measurement) else "cpu"
    with torch.device(model_device):
        model = build_model(config, data.task.vocab_size)
    if config["parent"]:
        load_parent_weights(model, config, folder.parent)
    module = instantiate_config(config["optim"], model=model).to(get_weight_dtype(config)).eval()
    module = module if model_device == "meta" else module.to(device)
    with make_autocast(config, device):
        measurement_result = measurement(module, data, device)
    for name, value in measurement_result.metrics.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"{name} is {value}, which is not finite")
    memory = {
        **resources.count_kv_bytes(
            model, None if model_device == "meta" else data.probe_tokens(1).to(device)
        ),
        **resources.read_peak_memory(torch.device(device)),
    }
    result = run_result.make_run_result(
        run_config,
        start_time,
        metrics={name: float(value) for name, value in measurement_result.metrics.items()},
        memory=memory,
        leakage={} if model_device == "meta" else measure_leakage(model, load_first_batch(data, device)),
        speed={},
        kernels={"max_abs_eager_fused": None, "note": "measurement runs do not train and compute no maps"},
        head_scores={},
    )
    curves = [
        (x, x, name, float(y)) for name, line in measurement_result.series.items() for x, y in line.items()
    ]
    run_result.save_run(folder, result, curves)
    return result
