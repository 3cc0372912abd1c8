"""Studies define their metrics before they run, so that claims about other metrics are rejected."""

import inspect
from importlib import import_module
from pkgutil import iter_modules

import pytest

from attnlab.attention.cache import DynamicCache
from attnlab.measure import studies
from attnlab.measure.studies.cached_generation import CachedGeneration
from attnlab.measure.studies.qk_scores import QKScores
from attnlab.measure.studies.theory import Theory
from attnlab.measure.studies.validation_losses import ValidationLosses

MODULES = [import_module(f"{studies.__name__}.{module.name}") for module in iter_modules(studies.__path__)]
STUDIES = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if inspect.isclass(kind) and kind.__module__ == module.__name__ and "__call__" in vars(kind)
]


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_defines_its_metrics(study):
    assert hasattr(study, "metrics") or "self.metrics = " in inspect.getsource(study.__init__)


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        (Theory({"exponent/step": 2}), {"exponent/step"}),
        (CachedGeneration(DynamicCache, compared=2), {"cache/logit_difference", "cache/tokens_differing"}),
        (
            CachedGeneration(DynamicCache, compared=2, lengths=[3, 5]),
            {
                "cache/logit_difference", "cache/tokens_differing", "speedup/0", "speedup/1",
                "speedup/share", "exponent/cached", "exponent/uncached", "exponent/gap",
            },
        ),
        (
            ValidationLosses([1, 1.5]),
            {"val/loss", "length/1", "length/last/1", "length/1.5", "length/last/1.5", "length/excess/1.5"},
        ),
        (ValidationLosses([2]), {"val/loss", "length/2", "length/last/2"}),
    ],
)  # fmt: skip
def test_defined_metrics_depend_on_the_settings(study, expected):
    assert {metric.name for metric in study.metrics} == expected


def test_measured_metrics_are_defined():
    scores = QKScores(dims=[2, 3], at=3, keys=5, queries=7, scale_exponent=0, seed=0)
    assert set(scores(None, None, "cpu").metrics) == {metric.name for metric in scores.metrics}
