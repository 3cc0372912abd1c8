"""What is tried on a GPU, and skipped where there is none; ATTNLAB_CARD=cpu tries the tests themselves.

`--told FILE` writes what came of each test as it ends, and leaves out what has passed by the same file: a
session that was cut off goes on where it was.
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
    here = [item for item in items if "tests/gpu/" in item.nodeid]
    for item in here:
        item.add_marker(pytest.mark.gpu)
    passed = {name for name, told in _read(config)["tests"].items() if told["outcome"] == "passed"}
    items[:] = [item for item in items if item.nodeid not in passed]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keeps the outcome of a test that was tried, what it measured, or why it was skipped."""
    report: Any = yield
    path = item.config.getoption("--told")
    if path is not None and (report.when == "call" or report.skipped):
        told = _read(item.config)
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        told["tests"][item.nodeid] = {
            "outcome": report.outcome,
            "seconds": round(report.duration, 2),
            **({"why": why[-500:]} if why else {}),
            **dict(item.user_properties),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(told, indent=1))
    return report


def _read(config: pytest.Config) -> dict[str, Any]:
    path = config.getoption("--told")
    if path is not None and path.exists():
        return json.loads(path.read_text())
    device = (
        torch.cuda.get_device_name() if CARD == "cuda" and torch.cuda.is_available() else platform.machine()
    )
    return {"device": device, "torch": torch.__version__, "tests": {}}


@pytest.fixture
def card() -> str:
    """The device; skips where there is no GPU."""
    if CARD == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return CARD
