"""Before its first optimizer step a run builds its model twice: when it is checked and when it is trained."""

import pytest

from attnlab.model.transformer import Transformer
from attnlab.store import runs
from attnlab.store.schema import Estimate
from attnlab.training import run
from attnlab.training.module import LanguageModel


@pytest.fixture
def built(monkeypatch):
    """Every model that is built from here on."""
    models = []
    make = Transformer.__init__
    monkeypatch.setattr(
        Transformer,
        "__init__",
        lambda self, *given, **more: models.append(self) or make(self, *given, **more),
    )
    return models


@pytest.mark.parametrize("line", [[], ["model.n_layers=9", "layers=local_global"]])
def test_a_check_and_a_training_build_the_model_once_each(compose, store, built, monkeypatch, line):
    started = []
    step = LanguageModel.training_step
    monkeypatch.setattr(
        LanguageModel,
        "training_step",
        lambda self, batch, number: started.append(len(built)) or step(self, batch, number),
    )
    config = compose("trainer.max_steps=1", *line)
    estimate = run.check(config)
    assert len(built) == 1
    assert estimate["memory_bytes"] > 0
    folder = store("run", config)
    runs.write_spec(folder.parent, runs.spec(folder).but(estimate=Estimate.model_validate(estimate)))
    run.run(folder)
    assert started[0] == 2


def test_a_measurement_is_checked_with_one_model(compose, built):
    run.check(compose("measurement={_target_: attnlab.measure.studies.losses.Losses}"))
    assert len(built) == 1
