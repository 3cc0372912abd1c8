"""A mistake planted in each room is seen by a check of that room, so that a green suite says something.

Each is a test of the suite, run once more in this process with one function replaced by a wrong one.
Attention has many more such mistakes, one for each law: `testing/test_mutants.py`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.attention.layer import Attention
from attnlab.data.drawn import Drawn
from attnlab.model.transformer import Transformer
from attnlab.report.verdicts import verdict
from attnlab.stats.evidence import Differences
from attnlab.store import fingerprint
from attnlab.sweep.plan import matching
from attnlab.training.module import LanguageModel

TESTS = Path(__file__).parent


def backwards(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What reads the text from its end."""
    return lambda self, x, **context: forward(self, x.flip(1), **context).flip(1)


def sees_the_end(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda self, *given, **context: (found := forward(self, *given, **context)) + found[:, -1:]


def narrow(interval: Callable[..., Any]) -> Callable[..., Any]:
    """An interval at a lower level than the one that is asked for."""
    return lambda self, level: interval(self, 0.9 * level)


def higher_is_worse_too(_harm: Callable[..., Any]) -> Callable[..., Any]:
    return lambda interval, _direction: interval


def forgets_the_step(train_batch: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, seed, step, batch_size: train_batch(self, seed, 0, batch_size)


def never_warm(optimizer: Callable[..., Any]) -> Callable[..., Any]:
    """The learning rate is there at once."""

    def cold(self: LanguageModel, max_steps: int) -> Any:
        self.warmup = 0
        return optimizer(self, max_steps)

    return cold


SABOTAGE = {
    "attention": (
        Attention, "forward", backwards,
        "testing/test_laws_combinations.py::test_every_cache_holds_all_heads[gqa]",
    ),
    "model": (
        Transformer, "forward", sees_the_end,
        "model/test_transformer.py::test_no_logit_depends_on_a_later_token[none]",
    ),
    "stats": (
        Differences, "interval", narrow,
        "stats/test_stats_difference.py::test_paired_is_scipys_paired_t_test",
    ),
    "store": (
        fingerprint, "sources", lambda _: lambda *_: {},
        "store/test_fingerprint.py::test_editing_a_users_module_or_its_helper_changes_the_source",
    ),
    "report": (
        verdict, "_harm", higher_is_worse_too,
        "report/test_verdict.py::test_the_words_mirror_where_higher_is_better",
    ),
    "sweep": (
        matching, "solve", lambda _: lambda _at, _target, start, **_: start,
        "sweep/test_sweep_plan.py::test_arms_are_matched_to_the_baseline_by_the_key_that_is_solved_for",
    ),
    "training": (
        LanguageModel, "optimizer", never_warm,
        "training/test_training_module.py::test_the_learning_rate_rises_then_falls_as_a_cosine_to_its_floor",
    ),
    "data": (
        Drawn, "train_batch", forgets_the_step,
        "data/test_drawn.py::test_a_batch_is_a_function_of_seed_and_step[needle]",
    ),
}  # fmt: skip


def outcome(folder: Path, *checks: str) -> pytest.ExitCode:
    """How tests of the suite end, run in this process."""
    modules, path = set(sys.modules), list(sys.path)
    without = ("cacheprovider", "xdist", "timeout", "terminal", "unraisableexception")  # the last collects
    line = [word for plugin in without for word in ("-p", f"no:{plugin}")]  # garbage for half a second
    line += ["--assert=plain", "-c", "/dev/null", "--rootdir", str(TESTS), "--basetemp", str(folder)]
    line += [str(TESTS / check) for check in checks]
    try:
        return pytest.main(line)
    finally:
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(TESTS)):  # it is imported again by the suite, with assertions of its own
                del sys.modules[name]
        sys.path[:] = path


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """How the checks end where nothing is replaced: all at once, since that is asked once."""
    checks = [check for *_, check in SABOTAGE.values()]
    return outcome(tmp_path_factory.mktemp("sound") / "whole", *checks)


@pytest.mark.parametrize("room", SABOTAGE)
def test_a_planted_mistake_is_seen_by_a_check_of_its_room(room, sound, tmp_path, monkeypatch):
    where, name, spoil, check = SABOTAGE[room]
    assert sound == pytest.ExitCode.OK
    monkeypatch.setattr(where, name, spoil(getattr(where, name)))
    assert outcome(tmp_path / "spoilt", check) == pytest.ExitCode.TESTS_FAILED
