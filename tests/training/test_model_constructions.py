"""A run builds its model twice before its first optimizer step: for the check and for training."""

import pytest

from attnlab.model.transformer import Transformer
from attnlab.training import run
from attnlab.training.language_model import LanguageModel


@pytest.fixture
def built_models(monkeypatch):
    """All models built during the test."""
    models = []
    make = Transformer.__init__
    monkeypatch.setattr(
        Transformer,
        "__init__",
        lambda self, *given, **more: models.append(self) or make(self, *given, **more),
    )
    return models


@pytest.mark.parametrize("line", [[], ["model.n_layers=9", "layers=local_global"]])
def test_a_check_and_a_training_build_the_model_once_each(
    compose, make_run_dir, built_models, monkeypatch, line
):
    models_at_step = []
    step = LanguageModel.training_step
    monkeypatch.setattr(
        LanguageModel,
        "training_step",
        lambda self, batch, number: models_at_step.append(len(built_models)) or step(self, batch, number),
    )
    config = compose("trainer.max_steps=1", *line)
    estimate = run.check(config)
    assert len(built_models) == 1
    assert estimate["memory_bytes"] > 0
    run.run(make_run_dir("run", config))  # which checks it again
    assert models_at_step[0] == 3


def test_checking_a_measurement_builds_one_model(compose, built_models):
    run.check(compose("measurement={_target_: attnlab.measure.studies.validation_losses.ValidationLosses}"))
    assert len(built_models) == 1
