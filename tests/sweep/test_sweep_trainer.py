"""What a sweep asks of the module that trains its runs; a part that is missing is an error, not a guess."""

import importlib

import pytest

from attnlab.errors import Refused
from attnlab.sweep.plan.trainer import PARTS, TRAINER, Trainer, trainer, trainer_of


def test_attnlabs_own_trainer_has_every_part_that_the_contract_names():
    asked = {name for name in vars(Trainer) if not name.startswith("_")}
    assert asked == set(PARTS)
    assert all(callable(getattr(trainer(TRAINER), part)) for part in asked)


@pytest.mark.parametrize("part", PARTS)
def test_a_trainer_that_lacks_a_part_is_refused(part, tmp_path, monkeypatch):
    functions = "".join(f"def {name}(*_): ...\n" for name in PARTS if name != part)
    (tmp_path / f"lacks_{part}.py").write_text(functions)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(Refused, match=f"has no function {part}"):
        trainer(f"lacks_{part}")


def test_a_trainer_that_is_not_there_is_refused_and_one_that_cannot_import_says_what(tmp_path, monkeypatch):
    with pytest.raises(Refused, match=r"sweep.train=nowhere.at_all: there is no module nowhere"):
        trainer("nowhere.at_all")
    (tmp_path / "imports_nothing.py").write_text("import nowhere_either\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match="nowhere_either"):
        trainer("imports_nothing")


def test_sweep_train_names_another_one():
    assert trainer_of({}) == TRAINER
    assert trainer_of({"sweep": {"train": "mine"}}) == "mine"
