"""What the tests share: one thread, W&B that never leaves the machine, tiny configs, undrawn pages."""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sampling import CASES, sample
from toys import attnlab, planned, shipped, toy  # noqa: F401 - fixtures

from attnlab.store import runs
from attnlab.store.schema import RunSpec, Use

os.environ.pop("WANDB_MODE", None)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # of what is selected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Samples rare tests (`sampling`), and begins with those that have more time: one process would wait for
    them in the end. Of rare tests each process gets a stretch (--dist worksteal), and of the long ones as
    many as any other.
    """
    dropped = {*items} - {*sample_rare(items)}
    if dropped and config.getoption("markexpr") == "rare":
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
    if config.getoption("markexpr") == "rare":
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        items[:] = [item for n in range(workers) for item in items[n::workers]]


def sample_rare(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of each rare test with parameters as many cases as its marker allows; all other tests."""
    kept = [item for item in items if item.get_closest_marker("rare") is None]
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("rare") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_one in cases.values():
        marker = of_one[0].get_closest_marker("rare")
        assert marker is not None
        kept += sample(of_one, marker.kwargs.get("sample", CASES))
    return kept


@pytest.fixture
def compose(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`compose(*overrides)`: the resolved config of a debug-size run on a small text."""
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    book = tmp_path / "book.txt"
    book.write_text(TEXT)

    def make(*overrides: str) -> dict[str, Any]:
        small = [
            "size=debug",
            "data=text",
            f"data.path={book}",
            f"paths.cache={tmp_path / 'cache'}",
            "logger=none",
        ]
        config = shipped().load_configuration("config", [*small, *overrides], RunMode.RUN)
        found = OmegaConf.to_container(
            OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]),
            resolve=True,
            throw_on_missing=True,
        )
        assert isinstance(found, dict)
        return found

    return make


@pytest.fixture(scope="session")
def texts_kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all tests, in whichever process: to read a text for the first time takes minutes."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "texts"


@pytest.fixture
def store(tmp_path: Path) -> Callable[[str, dict[str, Any]], Path]:
    """`store(id, config)`: a run's folder, ready for `attnlab.training.run.run`."""

    def make(name: str, config: dict[str, Any]) -> Path:
        run = RunSpec(id=name, config=config, use=Use(experiment="exam", arm="mha"))
        runs.write_spec(tmp_path / "runs", run)
        return tmp_path / "runs" / name

    return make


@pytest.fixture
def blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have an empty picture in the place of each, where only their words are read: drawing takes longer
    than all else.
    """
    from attnlab.report.charts import drawing

    def empty(task: dict[str, Any]) -> tuple[str, str]:
        return ("png", "") if task["label"] is None else ("svg", "<svg></svg>")

    monkeypatch.setattr(drawing, "_answers", lambda tasks: ([empty(task) for task in tasks], ""))
