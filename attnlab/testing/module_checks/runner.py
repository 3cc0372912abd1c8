"""Checks of a module: run all of them, and find the smallest input that fails."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from attnlab.testing.checks import CHECKS, SIZES, Check
from attnlab.testing.checks.deviation import CheckFailed, CheckSkipped
from attnlab.testing.checks.numerics import describe_error
from attnlab.testing.checks.search import find_smallest_failure, use_one_thread
from attnlab.testing.checks.subject import SEED
from attnlab.testing.module_checks.check_results import CheckResult, Reproduction
from attnlab.testing.module_checks.foreign_module import Factory, ModuleSubject, prepare_subject

BATCH = 3  # most rows of the smallest failing input


def check_module(
    factory: Factory,
    adapter: str | None = None,
    causal: bool = True,
    on_fail: Literal["raise", "return"] = "raise",
) -> list[CheckResult]:
    """Check that a module computes attention as its callers assume: causality, cache, padding, gradients, ...

    Args:
        factory: Function without arguments that returns a new module, or a function of tensors. It is called
            several times, each time with the same seed.
        adapter: How the module is called; by default chosen from its class or signature.
        causal: False declares that outputs may depend on later inputs.
        on_fail: "return" returns the results if a check failed, in place of the error.

    Raises:
        InvalidConfig: the factory raises, or no adapter fits.
        AssertionError: checks failed, or none could be applied; the message names each with its smallest
            failing case.
    """
    if on_fail not in ("raise", "return"):
        raise ValueError(f"on_fail={on_fail!r}: use 'raise' or 'return'")
    subject = prepare_subject(factory, adapter, causal)
    results = [run_check(check, subject) for check in CHECKS]
    problems = [str(result) for result in results if result.outcome == "failed"]
    if not has_checked(results):
        problems = [f"nothing could be checked ({results[0].detail})"]
    if problems and on_fail == "raise":
        raise AssertionError(f"{subject.name}: " + "; ".join(problems))
    return results


def run_check(check: Check, subject: ModuleSubject) -> CheckResult:
    """Run one check at each of its sizes; a failure is repeated with smaller inputs.

    A module that cannot run at a length, and passed at shorter ones, passes up to these.
    """
    name, statement = get_check_name(check), " ".join((check.__doc__ or "").split())
    measured = None
    detail, passed_length = "", 0
    for batch, length in SIZES[check]:
        try:
            with use_one_thread():
                value, text = check(subject, batch, length)
        except (CheckSkipped, NotImplementedError) as reason:
            text = str(reason) if isinstance(reason, CheckSkipped) else describe_error(reason)
            return CheckResult(name, statement, "skipped", text)
        except Exception as error:
            limit = _find_forward_error(subject, batch, length) if passed_length < length else None
            if passed_length and limit:
                detail += f", up to {passed_length} tokens; the module raises at {length}: {limit}"
                break
            return _describe_failure(check, subject, error, batch, length)
        if measured is None or value > measured:
            measured, detail = value, text
        passed_length = length
    return CheckResult(name, statement, "passed", detail, measured)


def has_checked(results: Sequence[CheckResult]) -> bool:
    """Whether any check passed or failed."""
    return any(result.outcome != "skipped" for result in results)


def get_check_name(check: Check) -> str:
    """Return the name of a check for users, such as `left_padding`."""
    return check.__name__.removeprefix("check_")


def parametrize_attention_checks(
    factories: Sequence[Factory], adapter: str | None = None, causal: bool = True
) -> Callable[[Any], Any]:
    """Parametrize a pytest test over every factory and check, as `check`; the test calls `check()`.

    A check that cannot apply is skipped with its reason. Modules are built when their tests run.
    """
    import pytest

    return pytest.mark.parametrize(
        "check",
        [ModuleCheck(factory, check, adapter, causal) for factory in factories for check in CHECKS],
        ids=str,
    )


class ModuleCheck:
    """A check of one factory, which a pytest test calls.

    Raises:
        AssertionError: the check failed.
    """

    def __init__(self, factory: Factory, check: Check, adapter: str | None, causal: bool) -> None:
        self.factory, self.check, self.adapter, self.causal = factory, check, adapter, causal

    def __str__(self) -> str:
        name = getattr(self.factory, "__name__", type(self.factory).__name__)
        return f"{get_check_name(self.check)}-{name}"

    def __call__(self) -> None:
        result = run_check(self.check, prepare_subject(self.factory, self.adapter, self.causal))
        if result.outcome == "failed":
            raise AssertionError(str(result))
        if result.outcome == "skipped":
            import pytest

            pytest.skip(result.detail)


def _find_forward_error(subject: ModuleSubject, batch: int, length: int) -> str | None:
    """The error of a plain forward at a size; None if there is none."""
    adapter = subject.build()
    try:
        with torch.no_grad():
            adapter.forward(subject.draw_input(adapter, batch, length))
    except Exception as error:
        return describe_error(error)
    return None


def _describe_failure(
    check: Check, subject: ModuleSubject, error: Exception, batch: int, length: int
) -> CheckResult:
    """Repeat a failed check with smaller inputs and describe the smallest one that fails."""

    def attempt(batch: int, length: int) -> Exception | None:
        try:
            with use_one_thread():
                check(subject, batch, length)
        except (CheckSkipped, NotImplementedError):
            return None
        except Exception as failure:
            return failure
        return None

    smallest = find_smallest_failure(attempt, min(batch, BATCH), length)
    error, batch, length = smallest or (error, batch, length)
    failure = error if isinstance(error, CheckFailed) else CheckFailed("the module raises an error")
    reproduction = Reproduction(
        seed=SEED,
        x_shape=(batch, length, subject.build().dim),
        dtype=str(subject.dtype).removeprefix("torch."),
        case=failure.case,
        position=failure.position,
        largest_difference=failure.largest_difference,
    )
    text = str(error) if isinstance(error, CheckFailed) else describe_error(error)
    return CheckResult(
        get_check_name(check),
        " ".join((check.__doc__ or "").split()),
        "failed",
        f"{text}; smallest input: {reproduction.describe_input()}",
        reproduction.largest_difference,
        reproduction,
    )
