"""Validation of all config values when a run is planned: an invalid one is one line with its key."""

import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Literal

import pytest
from pydantic import Field
from torch import nn

from attnlab.errors import InvalidConfig
from attnlab.store import config_groups
from attnlab.training import preflight
from attnlab.training.validation.signatures import find_problem, get_annotations

INVALID_INTEGERS = [10**30, 1e300, True, float("nan"), -1, "abc", "", [], {}, None]
INTEGER_KEYS = [
    "trainer.max_steps", "trainer.log_every_n_steps", "trainer.accumulate_grad_batches", "trainer.devices",
    "optim.warmup", "data.batch_size", "data.val_batch_size", "measure.every", "measure.maps",
    "sweep.checkpoint_every", "sweep.slots_per_gpu", "model.dim", "model.n_layers", "model.ffn_width",
]  # fmt: skip


def check(config):
    """Check a config as for a planned run: the keys of a sweep first."""
    config_groups.validate_groups(config, config_groups.SWEEP_GROUPS)
    return preflight.check(config)


def set_value(config, key, value):
    *groups, last = key.split(".")
    for group in groups:
        config = config[group]
    config[last] = value


@pytest.mark.parametrize("key", INTEGER_KEYS)
def test_integer_keys_are_validated(compose, key):
    config = compose()
    for value in INVALID_INTEGERS:
        set_value(config, key, value)
        with pytest.raises(ValueError, match=rf"^{key}( must be|=)") as refused:
            check(config)
        assert "\n" not in str(refused.value)


INVALID_BOOLEANS = [10**30, 1e300, float("nan"), -1, "abc", "", [], {}, None]


@pytest.mark.parametrize(
    "key",
    ["model.tie", "model.bias", "optim.compile", "measure.exclusive", "measure.timing", "sweep.fail_fast"],
)
def test_boolean_keys_are_validated(compose, key):
    config = compose()
    for value in INVALID_BOOLEANS:
        set_value(config, key, value)
        with pytest.raises(ValueError, match=rf"^{key}.* (must be true or false|should be a valid boolean)"):
            check(config)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optim.betas", [0.9, 1.0], "optim.betas must be two numbers"),
        ("optim.betas", [0.9], "optim.betas must be two numbers"),
        ("optim.lr", True, "optim.lr must be a finite number"),
        ("optim.weight_decay", float("nan"), "optim.weight_decay must be a finite number"),
        ("model.init_std", -1, "model.init_std must be a finite number"),
        ("model.attention.scale_exponent", True, "model.attention.scale_exponent=true: it should be a"),
        ("model.attention.scale_exponent", 1e300, "model.attention.scale_exponent=1e.300: it should be less"),
        ("model.attention.rotary.base", "abc", "model.attention.rotary.base=abc: it should be a valid num"),
        ("model.attention.heads", 3, "model.attention.heads=3: it should be {_target_"),
        ("model.attention", 3, "model.attention must be {_target_"),
        ("model.norm.eps", "abc", "model.norm.eps=abc: it should be a valid number"),
        ("model.layers", [3], "model.layers must be a list of patches"),
        ("data.val_fraction", True, "data.val_fraction=true: it should be a valid number"),
        ("data.path", 3, "data.path=3: it should be a valid string"),
        ("data", 3, "data=3: data is a group of keys"),
        ("trainer.precision", 31, "trainer.precision must be 32-true, bf16"),
        ("trainer.precision", 64, "trainer.precision must be 32-true, bf16-mixed, bf16-true or 64-true .*64"),
        ("trainer.precision", "bf16", "trainer.precision must be 32-true, bf16.*, got bf16"),
        ("trainer.accelerator", "tpu", "trainer.accelerator must be auto, cpu, gpu or cuda"),
        ("trainer.detect_anomaly", "abc", "trainer.detect_anomaly must be true or false"),
        ("trainer.profiler", 0.5, "trainer.profiler must be {_target_"),
        ("measure.lengths", [float("inf")], "measure.lengths must be a list of multiples"),
        ("measurement", 3, "measurement must be {_target_"),
        ("convert", "abc", "convert must be {_target_"),
        ("decode.cache", 3, "decode cannot be built from its config: AttributeError"),
        ("sed", 3, "sed: there is no such key"),
        ("logger.patience", "abc", "logger.patience must be a number of seconds above 0"),
        ("paths.runs", "", "paths.runs must be a folder"),
        ("sweep.slots", 0, "sweep.slots must be the number of concurrent runs, or null, got 0"),
        ("sweep.slots", True, "sweep.slots must be the number of concurrent runs, or null, got true"),
        ("optim.min_lr", 1, r"optim.min_lr=1 is above optim.lr=0\.\d+: lower it, or raise optim.lr"),
        ("seed", 2**63, "seed must be an integer"),
    ],
)  # fmt: skip
def test_invalid_values_are_rejected_with_their_key(compose, key, value, message):
    config = compose()
    set_value(config, key, value)
    with pytest.raises(ValueError, match=f"^{message}"):
        check(config)


SYNTHETIC_DATA = {
    "_target_": "attnlab.data.data_module.DataModule", "length": 16, "batch_size": 4, "val_batch_size": 4,
    "val_windows": 4, "seed": 0,
}  # fmt: skip
COPY = {"symbols": 16, "longest": 4, "val_longest": 4, "backwards": False}
RECALL = {"vocabulary": 128, "pairs": 4, "power": 0.01}


@pytest.mark.parametrize(
    ("group", "changes", "message"),
    [
        ("model", {"dim": 10**9}, "training the model takes .* GB"),
        ("model", {"n_layers": 10**8}, "model.n_layers must be an integer"),
        ("model", {"ffn_width": 10**30}, "model.ffn_width must be an integer"),
        ("data", {"task": "copying.Copying", **COPY, "length": 10**9}, "windows of .* take .* GB"),
        (
            "data",
            {"task": "recall.AssociativeRecall", **RECALL, "vocabulary": 10**9},
            "data.vocabulary must be at most",
        ),
        ("data", {"task": "copying.Copying", **COPY, "val_windows": 10**9}, "windows of .* take .* GB"),
        ("data", {"task": "copying.Copying", **COPY, "batch_size": 10**9}, "windows of .* take .* GB"),
    ],
)
def test_sizes_beyond_memory_are_rejected_before_allocation(compose, group, changes, message):
    config = compose()
    if "task" in changes:
        task = {"_target_": f"attnlab.data.{changes['task']}", "_partial_": True}
        config["data"] = {**SYNTHETIC_DATA, **changes, "task": task}
    config[group] |= {key: value for key, value in changes.items() if key != "task"}
    start_time = time.monotonic()
    with pytest.raises(ValueError, match=message):
        check(config)
    assert time.monotonic() - start_time < 30  # allocation, or a billion layers, would take minutes


@pytest.mark.parametrize("pack", [1, 2])
def test_padded_and_packed_rows_are_rejected_where_rotations_depend_on_the_longest(compose, tmp_path, pack):
    (tmp_path / "names.txt").write_text("\n".join(f"{'a' * n}{letter}" for n in range(6) for letter in "bcd"))
    line = ["data=names", f"data.path={tmp_path}/names.txt", f"data.pack={pack}", "data.val_fraction=0.3"]
    with pytest.raises(ValueError, match="use rows of equal length without documents") as error:
        check(compose(*line, "position=rope_dynamic_ntk"))
    assert "\n" not in str(error.value)
    assert check(compose(*line, "position=rope_ntk"))["steps"]
    assert check(compose("position=rope_dynamic_ntk"))["steps"]


def test_parameters_without_annotations_are_not_validated():
    def plain(a, b=3):
        return a, b

    assert get_annotations(plain) == {}


@pytest.mark.parametrize(
    ("value", "hint", "problem"),
    [
        (3, float, None),
        (None, float | None, None),
        ([1, 2], tuple[int, int], None),
        ({"a": None, "b": {"_target_": "x"}}, dict[str, type], None),
        ({"_target_": "x"}, int, None),
        (3, Decimal, None),
        (True, int, "it should be a valid integer"),
        ("3", int, "it should be a valid integer"),
        (1.0, int, "it should be a valid integer"),
        (2**63, int, "it should be less than 9223372036854775808"),
        (True, float, "it should be a valid number"),
        (float("nan"), float, "it should be a finite number"),
        (3, str | None, "it should be a valid string, or None"),
        (2, Annotated[int, Field(ge=2)] | None, None),
        (1, Annotated[int, Field(ge=2)] | None, "it should be greater than or equal to 2, or None"),
        ({"_target_": "x"}, Annotated[int, Field(ge=2)], None),
        (True, Literal[1, "a"], "it should be 1"),
        ([1, "a"], list[int], "[1] should be a valid integer"),
        ("abc", Sequence[str], "it should be a valid list"),
        ([1, 2, 3], tuple[int, int], "Tuple should have at most 2 items after validation, not 3"),
        ([1], tuple[int, int], "[1] is missing"),
        ({"a": 1}, Mapping[str, str], "it should be a valid string"),
        ([{"_target_": "x"}, 3], Sequence[nn.Module], "[1] should be {_target_: package.module.Class, ...}"),
    ],
)
def test_values_are_validated_against_annotations(value, hint, problem):
    assert find_problem(value, hint) == problem


def test_a_user_defined_trainer_may_lack_any_key():
    config_groups.validate_groups({"model": {"width": 3}, "sweep": {}})
    with pytest.raises(InvalidConfig, match=r"sweep\.slots must be"):
        config_groups.validate_groups({"sweep": {"slots": "abc"}})
