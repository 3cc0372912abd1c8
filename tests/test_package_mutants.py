"""A mutant in each package is caught by a test of that package.

Each check is a test of the suite, run again in this process with one function replaced by a wrong one.
Attention has many more mutants, one per invariant: `testing/test_mutants.py`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.attention.layer import Attention
from attnlab.data.synthetic_task import SyntheticTask
from attnlab.model.transformer import Transformer
from attnlab.report.verdicts import verdict_rules
from attnlab.stats.evidence import PairedDifferences
from attnlab.store import fingerprint
from attnlab.sweep.plan import budget_matching
from attnlab.training.language_model import LanguageModel

TESTS = Path(__file__).parent


def reverse_input(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Read the text from its end."""
    return lambda self, x, **context: forward(self, x.flip(1), **context).flip(1)


def leak_last_token(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda self, *arguments, **context: (
        (output := forward(self, *arguments, **context)) + output[:, -1:]
    )


def lower_interval_level(interval: Callable[..., Any]) -> Callable[..., Any]:
    """Compute the interval at a lower level than requested."""
    return lambda self, level: interval(self, 0.9 * level)


def ignore_direction(_orient: Callable[..., Any]) -> Callable[..., Any]:
    return lambda interval, _direction: interval


def ignore_step(train_batch: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, seed, step, batch_size: train_batch(self, seed, 0, batch_size)


def skip_warmup(optimizer: Callable[..., Any]) -> Callable[..., Any]:
    """Skip the learning-rate warmup."""

    def optimizer_without_warmup(self: LanguageModel, max_steps: int) -> Any:
        self.warmup = 0
        return optimizer(self, max_steps)

    return optimizer_without_warmup


MUTANTS = {
    "attention": (
        Attention, "forward", reverse_input,
        "testing/test_invariant_combinations.py::test_every_cache_decodes_all_heads[gqa]",
    ),
    "model": (
        Transformer, "forward", leak_last_token,
        "model/test_transformer.py::test_no_logit_depends_on_a_later_token[none]",
    ),
    "stats": (
        PairedDifferences, "interval", lower_interval_level,
        "stats/test_paired_tests.py::test_paired_estimate_equals_scipys_paired_t_test",
    ),
    "store": (
        fingerprint, "hash_sources", lambda _: lambda *_: {},
        "store/test_fingerprint.py::test_editing_a_users_module_or_its_helper_changes_the_source",
    ),
    "report": (
        verdict_rules, "_orient_to_harm", ignore_direction,
        "report/test_verdict_rules.py::test_effect_verdict_by_interval_mirrors_if_higher_is_better",
    ),
    "sweep": (
        budget_matching, "solve_for_target", lambda _: lambda _at, _target, start, **_: start,
        "sweep/test_sweep_plan.py::test_arms_match_baseline_parameters",
    ),
    "training": (
        LanguageModel, "optimizer", skip_warmup,
        "training/test_language_model.py::test_the_learning_rate_rises_then_falls_as_a_cosine_to_its_floor",
    ),
    "data": (
        SyntheticTask, "train_batch", ignore_step,
        "data/test_synthetic_task.py::test_a_batch_is_a_function_of_seed_and_step[needle]",
    ),
}  # fmt: skip


def run_checks(folder: Path, *checks: str) -> pytest.ExitCode:
    """Run tests of the suite in this process and return the exit code."""
    modules, path = set(sys.modules), list(sys.path)
    plugins = ("cacheprovider", "xdist", "timeout", "terminal", "unraisableexception")  # the last one
    pytest_arguments = [
        word for plugin in plugins for word in ("-p", f"no:{plugin}")
    ]  # collects garbage for half a second
    pytest_arguments += [
        "--assert=plain",
        "-c",
        "/dev/null",
        "--rootdir",
        str(TESTS),
        "--basetemp",
        str(folder),
    ]
    pytest_arguments += [str(TESTS / check) for check in checks]
    try:
        return pytest.main(pytest_arguments)
    finally:
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(TESTS)):  # the suite imports it again, with rewritten assertions
                del sys.modules[name]
        sys.path[:] = path


@pytest.fixture(scope="module")
def exit_code_without_mutant(tmp_path_factory):
    """Exit code of all checks without a mutant, computed once."""
    checks = [check for *_, check in MUTANTS.values()]
    return run_checks(tmp_path_factory.mktemp("sound") / "whole", *checks)


@pytest.mark.parametrize("package", MUTANTS)
def test_mutant_is_caught_by_a_check_of_its_package(package, exit_code_without_mutant, tmp_path, monkeypatch):
    owner, name, make_mutant, check = MUTANTS[package]
    assert exit_code_without_mutant == pytest.ExitCode.OK
    monkeypatch.setattr(owner, name, make_mutant(getattr(owner, name)))
    assert run_checks(tmp_path / "spoilt", check) == pytest.ExitCode.TESTS_FAILED
