"""attnlab: a configurable experiment suite and ablation harness for attention.

`attnlab.load("reports/gqa_vs_mha")` returns a report, or a run directory, as data frames.
`attnlab.load_model("runs/ID")` returns the trained torch module of a run.
`attnlab.check_variant(["heads=mine"])` runs the conformance tests of attention on a variant. Everything else
is a command: see `python -m attnlab --help`. Importing the package imports nothing heavy, so the help stays
fast.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "check_variant", "load", "load_model"]

check_variant: Callable[..., list[Any]]  # list of `attnlab.testing.Outcome`
load: Callable[..., Any]  # `attnlab.report.frames.ResultFrames`
load_model: Callable[..., Any]  # `attnlab.model.transformer.Transformer`

# Export -> module that defines it, imported on first access.
_LAZY_EXPORTS = {
    "check_variant": "attnlab.testing",
    "load": "attnlab.report.frames",
    "load_model": "attnlab.training.trained_model",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_EXPORTS:
        return getattr(import_module(_LAZY_EXPORTS[name]), name)
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_EXPORTS})
