"""Trainer modules: a missing function is an error."""

import importlib

import pytest

from attnlab.errors import InvalidConfig
from attnlab.sweep.plan.trainer import (
    DEFAULT_TRAINER,
    TRAINER_FUNCTIONS,
    Trainer,
    get_trainer_name,
    load_trainer,
)


def test_default_trainer_has_every_function_of_protocol():
    functions = {name for name in vars(Trainer) if not name.startswith("_")}
    assert functions == set(TRAINER_FUNCTIONS)
    assert all(callable(getattr(load_trainer(DEFAULT_TRAINER), function)) for function in functions)


@pytest.mark.parametrize("part", TRAINER_FUNCTIONS)
def test_incomplete_trainer_fails(part, tmp_path, monkeypatch):
    functions = "".join(f"def {name}(*_): ...\n" for name in TRAINER_FUNCTIONS if name != part)
    (tmp_path / f"lacks_{part}.py").write_text(functions)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(InvalidConfig, match=f"has no function {part}"):
        load_trainer(f"lacks_{part}")


def test_missing_trainer_fails_and_broken_import_is_raised(tmp_path, monkeypatch):
    with pytest.raises(InvalidConfig, match=r"sweep.train=nowhere.at_all: module nowhere not found"):
        load_trainer("nowhere.at_all")
    (tmp_path / "imports_nothing.py").write_text("import nowhere_either\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match="nowhere_either"):
        load_trainer("imports_nothing")


def test_sweep_train_selects_trainer():
    assert get_trainer_name({}) == DEFAULT_TRAINER
    assert get_trainer_name({"sweep": {"train": "mine"}}) == "mine"
