"""`attnlab.load_model`: the trained module of a run, and one line for a run without one."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stored_runs import make_spec, write_spec
from untrained import write_untrained

import attnlab
from attnlab.errors import InvalidConfig
from attnlab.model.build import instantiate_config
from attnlab.training import run as train

torch.set_num_threads(1)
THEORY = "measurement={_target_: attnlab.measure.studies.theory.Theory, metrics: {a/b: 2}}"


def test_loaded_model_has_the_validation_loss_of_the_run(
    compose: Callable[..., Any], make_run_dir: Callable[..., Path]
) -> None:
    config = compose()
    folder = make_run_dir("run", config)
    train.run(folder)
    model = attnlab.load_model(str(folder))
    assert not model.training
    batches = [*instantiate_config(config["data"]).val_dataloader()]
    with torch.no_grad():
        losses = [
            F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["targets"].flatten(), reduction="sum")
            for batch in batches
        ]
    loss = float(sum(losses)) / sum(batch["targets"].numel() for batch in batches)
    result = json.loads((folder / "run.json").read_text())
    assert loss == pytest.approx(result["metrics"]["val/loss"], rel=1e-5)
    by_prefix = attnlab.load_model(folder.with_name(folder.name[:5]))
    assert torch.equal(by_prefix.head.weight, model.head.weight)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1] + b"!")
    with pytest.raises(InvalidConfig, match="is truncated or was changed"):
        attnlab.load_model(folder)


def test_run_without_trained_model_is_rejected_in_one_line(
    compose: Callable[..., Any], make_run_dir: Callable[..., Path]
) -> None:
    measurement = make_run_dir("measurement", compose(THEORY))
    train.run(measurement)
    unfinished = write_untrained(measurement.parent, compose())
    messages = {
        measurement.parent / "missing": r"run=missing: no runs in .* \(available: ",
        measurement.parent / "nowhere" / "missing": "run=missing: no runs in",
        measurement: "is a measurement run, which trains no model: choose a training run",
        unfinished: r"run\.json is missing or truncated, so the run has no trained model: run its command",
    }
    for path, message in messages.items():
        with pytest.raises(InvalidConfig, match=message) as error:
            attnlab.load_model(path)
        assert "\n" not in str(error.value)


def test_names_of_an_untrusted_run_are_not_imported(
    compose: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harm.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = compose()
    config["model"]["attention"]["masks"]["harm"] = {"_target_": "harm.Mask"}
    folder = write_spec(tmp_path / "runs", make_spec(config))
    with pytest.raises(InvalidConfig, match=r"harm\.Mask: not trusted"):
        attnlab.load_model(folder)
    assert "harm" not in sys.modules
