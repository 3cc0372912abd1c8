"""Fixtures for all tests: tiny configs, run directories, a shared corpus cache, pages without charts."""

import gc
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from buckets import bucket, s3_server  # noqa: F401 - fixtures
from filelock import FileLock
from sampling import CASES, FULL, sample
from stored_runs import make_spec, write_spec
from toys import attnlab, plan_toy, shipped_loader, toy  # noqa: F401 - fixtures

from attnlab.store.guards import trust
from attnlab.store.run_schema import RunEstimate

os.environ.pop("WANDB_MODE", None)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SITE_REPORTS = (  # of the sampled tests; the ledger lists the results that differ in two of them
    "gqa_vs_mha", "gqa_vs_mha@code", "gqa_vs_mha@two_cores", "gqa_vs_mha@two_cores.S", "smoke",
)  # fmt: skip
TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40


def pytest_collection_finish() -> None:
    """Freeze all imported objects, so that the garbage collector does not scan them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # after deselection by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sample the cases of rare and sampled tests (`sampling`), and order tests for a short run.

    All cases run if a command selects neither `rare` nor `not rare`. Tests with a longer timeout come first,
    so that no process ends up waiting for one of them. Under `--dist worksteal` each process gets a
    contiguous stretch; rare tests are interleaved, so that every stretch has equally many long tests.
    """
    selection = config.getoption("markexpr")
    if selection in ("rare", "not rare"):
        dropped = {*items} - {*sample_cases(items)}
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
    if selection == "rare":
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        items[:] = [item for n in range(workers) for item in items[n::workers]]


def sample_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return all tests, but of each parametrized rare or sampled test as many cases as its marker allows."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    selected = []
    for test_cases in cases.values():
        if sampled := test_cases[0].get_closest_marker("sampled"):
            test_cases = sample(test_cases, *sampled.args)
        elif rare := test_cases[0].get_closest_marker("rare"):
            test_cases = sample(test_cases, rare.kwargs.get("sample", CASES))
        selected += test_cases
    return selected


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Launch Chromium, if it is installed (`visits`)."""
    from visits import CHROMIUM, playwright

    with playwright.sync_playwright() as session:
        chromium = session.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation site with some reports, or with all of them if ATTNLAB_TESTS=all.

    One test process builds it; the others wait.
    """
    pytest.importorskip("zensical", reason="needs zensical: pip install -e '.[docs]'")
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    root, log = Path(__file__).parents[1], shared / "site.log"
    with FileLock(shared / "site.lock"):
        if not log.exists():
            command = [sys.executable, ".ci/site", *([] if FULL else SITE_REPORTS)]
            result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
            log.write_text(result.stdout + result.stderr)
    assert "every link leads somewhere" in log.read_text(), log.read_text()
    return root / "build" / "docs" / "site"


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
            *([] if any(word.startswith("data=") for word in overrides) else ["data.allow_overlap=true"]),
        ]
        config = shipped_loader().load_configuration("config", [*small, *overrides], RunMode.RUN)
        resolved = OmegaConf.to_container(
            OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]),
            resolve=True,
            throw_on_missing=True,
        )
        assert isinstance(resolved, dict)
        return resolved

    return make


@pytest.fixture(scope="session")
def corpus_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that all test processes share: tokenizing a corpus for the first time takes minutes."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "texts"


@pytest.fixture
def make_run_dir(tmp_path: Path) -> Callable[[str, dict[str, Any]], Path]:
    """`make_run_dir(name, config)`: the directory of a checked run, ready for `attnlab.training.run.run`.

    Its id depends on the config and the name. The names in the config count as declared by a command.
    """
    configs = list[dict[str, Any]]()

    def make(name: str, config: dict[str, Any]) -> Path:
        from attnlab.training.preflight import check

        configs.append(config)
        trust.declare_names(configs)
        estimate = RunEstimate.model_validate(check(config))
        return write_spec(tmp_path / "runs", make_spec(config, name, estimate))

    return make


@pytest.fixture(autouse=True)
def no_declared_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the names that a command of an earlier test has declared in this process."""
    monkeypatch.setenv(trust.DECLARED_VARIABLE, "")


@pytest.fixture
def refuse(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refuse(line, *texts)`: a line ends with status 2 and one line on stderr that has the texts; return it.

    It prints nothing else, unless `prints`.
    """
    from attnlab.cli.main import main

    def call(line: str | list[str], *texts: str, prints: bool = False) -> str:
        assert main(shlex.split(line) if isinstance(line, str) else line) == 2
        out, err = capfd.readouterr()
        assert (bool(out), err.count("\n"), err.startswith("attnlab: ")) == (prints, 1, True), (out, err)
        assert [text for text in texts if text not in err] == [], err
        return err

    return call


@pytest.fixture
def blank_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace every chart of a page by an empty picture, since drawing takes longer than all the rest."""
    from attnlab.report.charts import chart_renderer

    def make_empty_chart(task: dict[str, Any]) -> tuple[str, str]:
        return ("png", "") if task["label"] is None else ("svg", "<svg></svg>")

    monkeypatch.setattr(chart_renderer, "_run_renderer", lambda tasks: ([*map(make_empty_chart, tasks)], ""))
