"""attnlab: a configurable experiment suite and ablation harness for attention.

`attnlab.load("reports/gqa_vs_mha")` gives a report, or a store of runs, as data frames;
`attnlab.check_variant(["heads=mine"])` tries the laws of attention on a variant. All else is a command: see
`python -m attnlab --help`, which stays fast because importing the package imports nothing heavy.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "check_variant", "load"]

check_variant: Callable[..., list[Any]]  # list of `attnlab.testing.Outcome`
load: Callable[..., Any]  # `attnlab.report.frames.Results`

_OFFERED = {
    "check_variant": "attnlab.testing",
    "load": "attnlab.report.frames",
}  # what is imported when it is asked for, and from where


def __getattr__(name: str) -> Any:
    if name in _OFFERED:
        return getattr(import_module(_OFFERED[name]), name)
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OFFERED})
