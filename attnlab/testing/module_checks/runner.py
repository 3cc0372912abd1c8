"""Checks of a module: run all of them, and find the smallest input that fails."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from attnlab.testing.module_checks.check_results import CheckResult, Reproduction
from attnlab.testing.module_checks.checks import CHECKS, LENGTHS, Check
from attnlab.testing.module_checks.deviation import CheckFailed, CheckSkipped
from attnlab.testing.module_checks.subject import SEED, Factory, Subject, describe_error, prepare_subject

BATCH = 3
LENGTH = 23  # tokens
SHORT_LENGTH = 11  # longest input, in tokens, of the upward search for the smallest failing one


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


def run_check(check: Check, subject: Subject) -> CheckResult:
    """Run one check at each of its lengths; a failure is repeated with smaller inputs.

    A module that cannot run at a length, and passed at shorter ones, passes up to these.
    """
    name, statement = get_check_name(check), " ".join((check.__doc__ or "").split())
    measured = detail = None
    passed_length = 0
    for length in LENGTHS.get(check, (LENGTH,)):
        try:
            with _use_one_thread():
                value, text = check(subject, BATCH, length)
        except CheckSkipped as reason:
            return CheckResult(name, statement, "skipped", str(reason))
        except NotImplementedError as error:
            return CheckResult(name, statement, "skipped", describe_error(error))
        except Exception as error:
            if passed_length and (limit := _find_forward_error(subject, length)) is not None:
                detail = f"{detail}, up to {passed_length} tokens; the module raises at {length}: {limit}"
                break
            failure, shape = _find_smallest_failure(check, subject, length) or (error, (BATCH, length))
            reproduction = _describe_failure(failure, subject, shape)
            text = str(failure) if isinstance(failure, CheckFailed) else describe_error(failure)
            return CheckResult(
                name,
                statement,
                "failed",
                f"{text}; smallest input: {reproduction.describe_input()}",
                reproduction.largest_difference,
                reproduction,
            )
        if measured is None or value > measured or detail is None:
            measured, detail = value, text
        passed_length = length
    return CheckResult(name, statement, "passed", detail or "", measured)


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


def _find_forward_error(subject: Subject, length: int) -> str | None:
    """The error of a plain forward at a length; None if there is none."""
    adapter = subject.build()
    try:
        with torch.no_grad():
            adapter.forward(subject.draw_input(adapter, BATCH, length))
    except Exception as error:
        return describe_error(error)
    return None


def _find_smallest_failure(
    check: Check, subject: Subject, longest: int
) -> tuple[Exception, tuple[int, int]] | None:
    """Search for the first failure, from one row of one token upwards: the error, batch and length."""
    for length in range(1, min(longest, SHORT_LENGTH) + 1):
        for batch in range(1, BATCH + 1):
            try:
                with _use_one_thread():
                    check(subject, batch, length)
            except (CheckSkipped, NotImplementedError):
                continue
            except Exception as error:
                return error, (batch, length)
    return None


def _describe_failure(error: Exception, subject: Subject, shape: tuple[int, int]) -> Reproduction:
    if not isinstance(error, CheckFailed):
        error = CheckFailed("the module raises an error")
    return Reproduction(
        seed=SEED,
        x_shape=(*shape, subject.build().dim),
        dtype=str(subject.dtype).removeprefix("torch."),
        case=error.case,
        position=error.position,
        largest_difference=error.largest_difference,
    )


@contextmanager
def _use_one_thread() -> Iterator[None]:
    """Compute in one thread: the tensors are tiny, and other processes may want the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
