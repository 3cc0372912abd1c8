"""Trying the laws on a variant: a case per law, and what came of it."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from attnlab.attention.contracts import Unsupported
from attnlab.testing.laws import LAWS, Law, Variant, gaps
from attnlab.testing.laws.compose import composed
from attnlab.testing.laws.variant import GROWING, variants_of

SHORT = 11  # tokens of the longest trial that a failure is looked for on the way up


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a law: `detail` is the smallest failing case, or the reason why it is unsupported; `says`
    is the law itself.
    """

    law: str
    variant: str
    status: Literal["passed", "failed", "unsupported"]
    detail: str = ""
    says: str = ""

    def __str__(self) -> str:
        return f"{self.variant}: {self.law} {self.status}" + (f": {self.detail}" if self.detail else "")


@dataclasses.dataclass(frozen=True)
class Case:
    """A law and a variant it applies to. Calling it raises AssertionError where it fails; `gap` says why
    it cannot hold.
    """

    law: Law
    variant: Variant
    gap: str | None = None

    def outcome(self) -> Outcome:
        """Tries it."""
        return judge(self.law, self.variant, self.gap)

    def __call__(self) -> None:
        outcome = self.outcome()
        if outcome.status == "failed":
            raise AssertionError(str(outcome))
        if outcome.status == "unsupported" and self.gap is None:
            import pytest

            pytest.skip(outcome.detail)


def judge(law: Law, variant: Variant, gap: str | None = None) -> Outcome:
    """Tries one law. A declared gap must still be one: what is declared unsupported and works has failed.

    `gap` is the reason; combinations of shipped values have theirs in `attnlab.testing.laws.gaps`.
    """
    declared = gaps.gap(law.name, variant.choices)
    gap = gap or (declared.reason if declared else None)
    status, detail = _try(law, variant)
    if status == "failed" and law.sized:
        detail = _smallest(law, variant) or detail
    elif status == "passed" and gap is not None:
        status = "failed"
        detail = f"declared unsupported ({gap}), but it works: take the declaration away"
    return Outcome(law.name, variant.name, status, detail, law.says)


def applying(variant: Variant) -> Iterator[Law]:
    """The laws that say something about this variant; only the first, where it cannot even be built."""
    first, *others = LAWS
    yield first
    if _try(first, variant)[0] == "passed":
        yield from (law for law in others if _applies(law, variant))


def verify(
    config: Mapping[str, Any], name: str = "variant", cache: Mapping[str, Any] | None = GROWING
) -> list[Outcome]:
    """Tries all laws on a resolved run config, or on a resolved `model.attention` config alone (with
    `cache` then).
    """
    variants = variants_of(config, name) if "model" in config else [Variant(name, config, cache=cache)]
    return [outcome for variant in variants for outcome in outcomes(variant)]


def check_variant(
    variant: Sequence[str] | Mapping[str, Any], config_dir: str | Path | None = None
) -> list[Outcome]:
    """Tries all laws on what overrides compose, as `["heads=mine"]` with the folder of its yaml, or on a
    resolved config (see `verify`). Offered as `attnlab.check_variant`.

    ValueError, or Hydra's own errors, for overrides that do not compose.
    """
    if isinstance(variant, str):
        raise ValueError(f"check_variant({variant!r}): give a list of overrides, as in [{variant!r}]")
    if isinstance(variant, Mapping):
        return verify(variant)
    return [outcome for kind in composed(variant, config_dir) for outcome in outcomes(kind)]


def outcomes(variant: Variant, laws: Collection[str] | None = None) -> list[Outcome]:
    """What the laws that apply say of a variant, or those of them that are named."""
    first, *others = LAWS
    built = judge(first, variant)
    tried = [built] if laws is None or first.name in laws or built.status != "passed" else []
    if built.status == "passed":
        wanted = (law for law in others if laws is None or law.name in laws)
        tried += [judge(law, variant) for law in wanted if _applies(law, variant)]
    return tried


def cases(*variants: Variant, unsupported: Mapping[str, str] | None = None) -> Callable:
    """A pytest decorator that gives a test every law and variant as `case`. `unsupported` declares {law:
    reason}, strictly.
    """
    import pytest

    declared = unsupported or {}
    given = [Case(law, variant, declared.get(law.name)) for variant in variants for law in applying(variant)]
    unknown = set(declared) - {case.law.name for case in given}
    if unknown:
        raise ValueError(f"unsupported names no law that applies: {', '.join(sorted(unknown))}")
    return pytest.mark.parametrize(
        "case", given, ids=[f"{case.law.name}-{case.variant.name}" for case in given]
    )


def _applies(law: Law, variant: Variant) -> bool:
    """A part that cannot be asked gets the law, which tells why."""
    try:
        return law.applies(variant)
    except Exception:
        return True


def _try(law: Law, variant: Variant) -> tuple[Literal["passed", "failed", "unsupported"], str]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny, and other processes may want the cores
    try:
        law.check(variant)
    except Exception as error:
        refusal = _refusal(error)
        if refusal is not None:
            return "unsupported", _line(refusal)
        said = _line(error)
        return "failed", said if isinstance(
            error, AssertionError
        ) and said else f"{type(error).__name__}: {said}"
    finally:
        torch.set_num_threads(threads)
    return "passed", ""


def _refusal(error: BaseException | None) -> Unsupported | None:
    """The refusal that an error reports; building through Hydra wraps it."""
    while error is not None and not isinstance(error, Unsupported):
        error = error.__cause__
    return error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split("\nassert ")[0].split())


def _smallest(law: Law, variant: Variant) -> str | None:
    """The first failure on the way up from one row of one token."""
    for length in [*range(1, min(variant.length, SHORT) + 1), variant.length]:
        for batch in range(1, variant.batch + 1):
            status, detail = _try(law, dataclasses.replace(variant, length=length, batch=batch))
            if status == "failed":
                return f"at T={length}, B={batch}: {detail}"
    return None
