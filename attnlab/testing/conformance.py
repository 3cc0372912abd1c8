"""Evaluation of invariants on variants: a case per invariant, and its outcome."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attnlab.attention.contracts import Unsupported
from attnlab.testing.checks.search import find_smallest_failure, use_one_thread
from attnlab.testing.invariants import INVARIANTS, Invariant, Variant, unsupported_combinations
from attnlab.testing.invariants.variant import DYNAMIC_CACHE, make_variants
from attnlab.testing.invariants.variant_composition import compose_variants


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of one invariant on one variant.

    `detail` is the smallest failing case, or the reason why the invariant is unsupported. `statement` is the
    invariant in a sentence.
    """

    invariant: str
    variant: str
    status: Literal["passed", "failed", "unsupported"]
    detail: str = ""
    statement: str = ""

    def __str__(self) -> str:
        return f"{self.variant}: {self.invariant} {self.status}" + (f": {self.detail}" if self.detail else "")


@dataclasses.dataclass(frozen=True)
class Case:
    """An invariant and a variant to which it applies.

    A call raises AssertionError if the invariant fails. `unsupported_reason` declares why it cannot hold.
    """

    invariant: Invariant
    variant: Variant
    unsupported_reason: str | None = None

    def evaluate(self) -> Outcome:
        """Check the invariant on the variant."""
        return evaluate_invariant(self.invariant, self.variant, self.unsupported_reason)

    def __call__(self) -> None:
        outcome = self.evaluate()
        if outcome.status == "failed":
            raise AssertionError(str(outcome))
        if outcome.status == "unsupported" and self.unsupported_reason is None:
            import pytest

            pytest.skip(outcome.detail)


def evaluate_invariant(
    invariant: Invariant, variant: Variant, unsupported_reason: str | None = None
) -> Outcome:
    """Check one invariant. A combination that is declared unsupported but works counts as failed.

    `unsupported_reason` is the declared reason. Combinations of shipped values have theirs in
    `attnlab.testing.invariants.unsupported_combinations`.
    """
    declared = unsupported_combinations.find_unsupported_combination(invariant.name, variant.choices)
    unsupported_reason = unsupported_reason or (declared.reason if declared else None)
    status, detail = _try_invariant(invariant, variant)
    if status == "failed" and invariant.uses_trial_size:
        detail = _find_smallest_failure(invariant, variant) or detail
    elif status == "passed" and unsupported_reason is not None:
        status = "failed"
        detail = f"declared unsupported ({unsupported_reason}), but it works: remove the declaration"
    return Outcome(invariant.name, variant.name, status, detail, invariant.statement)


def find_applicable_invariants(variant: Variant) -> Iterator[Invariant]:
    """Yield the invariants that apply to a variant; only the first if the variant cannot be built."""
    first, *others = INVARIANTS
    yield first
    if _try_invariant(first, variant)[0] == "passed":
        yield from (invariant for invariant in others if _is_applicable(invariant, variant))


def verify(
    config: Mapping[str, Any], name: str = "variant", cache: Mapping[str, Any] | None = DYNAMIC_CACHE
) -> list[Outcome]:
    """Check all invariants on a resolved run config, or on a resolved `model.attention` config.

    `cache` is used only with the latter.
    """
    variants = make_variants(config, name) if "model" in config else [Variant(name, config, cache=cache)]
    return [outcome for variant in variants for outcome in evaluate_variant(variant)]


def check_variant(
    variant: Sequence[str] | Mapping[str, Any], config_dir: str | Path | None = None
) -> list[Outcome]:
    """Check all invariants on a composed list of overrides, or on a resolved config.

    Exported as `attnlab.check_variant`.

    Args:
        variant: Overrides, as `["heads=mine"]`, or a resolved config (see `verify`).
        config_dir: Folder of your own yaml files, for overrides.

    Raises:
        ValueError: The overrides do not compose. Hydra's own errors pass through.
    """
    if isinstance(variant, str):
        raise ValueError(f"check_variant({variant!r}): give a list of overrides, as in [{variant!r}]")
    if isinstance(variant, Mapping):
        return verify(variant)
    return [
        outcome
        for composed_variant in compose_variants(variant, config_dir)
        for outcome in evaluate_variant(composed_variant)
    ]


def evaluate_variant(variant: Variant, invariant_names: Collection[str] | None = None) -> list[Outcome]:
    """Check the applicable invariants on a variant, optionally only those in `invariant_names`.

    The first invariant (the layer builds) always runs. If it does not pass, its outcome is the only one.
    """
    build_outcome = evaluate_invariant(INVARIANTS[0], variant)
    if build_outcome.status != "passed":
        return [build_outcome]
    return [
        build_outcome if invariant is INVARIANTS[0] else evaluate_invariant(invariant, variant)
        for invariant in INVARIANTS
        if (invariant_names is None or invariant.name in invariant_names)
        and _is_applicable(invariant, variant)
    ]


def cases(*variants: Variant, unsupported: Mapping[str, str] | None = None) -> Callable:
    """Parametrize a pytest test over every applicable invariant and variant, as `case`.

    `unsupported` declares {invariant name: reason}. A declared invariant that works fails.

    Raises:
        ValueError: `unsupported` names an invariant that applies to no variant.
    """
    import pytest

    declared = unsupported or {}
    applicable_cases = [
        Case(invariant, variant, declared.get(invariant.name))
        for variant in variants
        for invariant in find_applicable_invariants(variant)
    ]
    unknown = set(declared) - {case.invariant.name for case in applicable_cases}
    if unknown:
        raise ValueError(f"unsupported names invariants that do not apply: {', '.join(sorted(unknown))}")
    return pytest.mark.parametrize(
        "case",
        applicable_cases,
        ids=[f"{case.invariant.name}-{case.variant.name}" for case in applicable_cases],
    )


def _is_applicable(invariant: Invariant, variant: Variant) -> bool:
    """Whether the invariant applies; also true if `applies` raises, so that the check reports the error."""
    try:
        return invariant.applies(variant)
    except Exception:
        return True


def _try_invariant(
    invariant: Invariant, variant: Variant
) -> tuple[Literal["passed", "failed", "unsupported"], str]:
    try:
        with use_one_thread():
            invariant.check(variant)
    except (Exception, SystemExit) as error:  # a part may call exit()
        unsupported_error = _find_unsupported_error(error)
        if unsupported_error is not None:
            return "unsupported", _format_error_line(unsupported_error)
        message = _format_error_line(error)
        return "failed", message if isinstance(
            error, AssertionError
        ) and message else f"{type(error).__name__}: {message}"
    return "passed", ""


def _find_unsupported_error(error: BaseException | None) -> Unsupported | None:
    """Find the `Unsupported` error in the chain of causes; Hydra wraps errors of construction."""
    while error is not None and not isinstance(error, Unsupported):
        error = error.__cause__
    return error


def _format_error_line(error: BaseException) -> str:
    return " ".join(str(error).split("\nassert ")[0].split())


def _find_smallest_failure(invariant: Invariant, variant: Variant) -> str | None:
    """Describe the first failure, from one row of one token upwards."""

    def attempt(batch: int, length: int) -> str | None:
        status, detail = _try_invariant(invariant, dataclasses.replace(variant, length=length, batch=batch))
        return detail if status == "failed" else None

    smallest = find_smallest_failure(attempt, variant.batch, variant.length)
    return None if smallest is None else f"at T={smallest[2]}, B={smallest[1]}: {smallest[0]}"
