"""A study says before it is run what it can measure: a claim about anything else is refused."""

import inspect
from importlib import import_module
from pkgutil import iter_modules

import pytest

from attnlab.attention.cache import DynamicCache
from attnlab.measure import studies
from attnlab.measure.studies.generation import Generation
from attnlab.measure.studies.losses import Losses
from attnlab.measure.studies.pruning import Pruning
from attnlab.measure.studies.qk_scores import Scores
from attnlab.measure.studies.stated import Stated

MODULES = [import_module(f"{studies.__name__}.{found.name}") for found in iter_modules(studies.__path__)]
STUDIES = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if inspect.isclass(kind) and kind.__module__ == module.__name__ and "__call__" in vars(kind)
]


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_says_before_what_it_measures(study):
    assert hasattr(study, "measures")


@pytest.mark.parametrize(
    ("study", "told"),
    [
        (Stated({"exponent/step": 2}), {"exponent/step"}),
        (Generation(DynamicCache, compared=2), {"cache/logit_difference", "cache/tokens_differing"}),
        (Losses([1, 1.5]), {"val/loss", "length/1", "length/last/1", "length/1.5", "length/last/1.5",
                            "length/excess/1.5"}),
        (Losses([2]), {"val/loss", "length/2", "length/last/2"}),
    ],
)  # fmt: skip
def test_what_a_study_measures_depends_on_what_it_is_asked(study, told):
    assert set(study.measures()) == told


def test_what_is_measured_was_said_before():
    scores = Scores(dims=[2, 3], at=3, keys=5, queries=7, scale_exponent=0, seed=0)
    assert set(scores(None, None, "cpu").metrics) == set(scores.measures())
    timed = Generation(DynamicCache, compared=2, lengths=[3, 5])
    assert {"speedup/0", "speedup/1", "exponent/gap"} < set(timed.measures())
    assert {"pruned/25", "val/loss"} < set(Pruning(seed=1).measures())
