"""Tests on a GPU, skipped without one; ATTNLAB_CARD=cpu runs the tests on a CPU to test them.

`--told FILE` records each outcome as its test ends, and skips tests that passed according to the file. An
interrupted session thus continues where it stopped.
"""

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

CARD = os.environ.get("ATTNLAB_CARD", "cuda")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--told", type=Path, help="a JSON file of outcomes; what has passed is not tried again")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if "tests/gpu/" in item.nodeid]
    for item in gpu_items:
        item.add_marker(pytest.mark.gpu)
    passed = {
        name for name, outcomes in _load_outcomes(config)["tests"].items() if outcomes["outcome"] == "passed"
    }
    items[:] = [item for item in items if item.nodeid not in passed]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Record a test's outcome, its measurements, or the reason why it was skipped."""
    report: Any = yield
    path = item.config.getoption("--told")
    if path is not None and (report.when == "call" or report.skipped):
        outcomes = _load_outcomes(item.config)
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        outcomes["tests"][item.nodeid] = {
            "outcome": report.outcome,
            "seconds": round(report.duration, 2),
            **({"why": reason[-500:]} if reason else {}),
            **dict(item.user_properties),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(outcomes, indent=1))
    return report


def _load_outcomes(config: pytest.Config) -> dict[str, Any]:
    path = config.getoption("--told")
    if path is not None and path.exists():
        return json.loads(path.read_text())
    device = (
        torch.cuda.get_device_name() if CARD == "cuda" and torch.cuda.is_available() else platform.machine()
    )
    return {"device": device, "torch": torch.__version__, "tests": {}}


@pytest.fixture
def card() -> str:
    """The device type; skips the test without a GPU."""
    if CARD == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return CARD
