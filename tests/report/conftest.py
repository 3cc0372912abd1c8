"""One report of each kind, built once: tests read them and never change them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rates import tuned
from synthetic import World, experiment, provenance, timing, write_runs

from attnlab.report import build, write

EVIL = "</script><img src=x onerror=alert(1)>"
WORLDS = {
    "good": World(
        extra={f"length/{x}x": 1.7 + 0.1 * float(x) for x in ("1", "1.25", "2", "4")},
        points=3,
        sample="on a <mat>\n",
    ),
    "broken": World(
        status={("gqa", 1): "diverged", ("mqa", 2): "missing"},
        parameters={"mqa": 130_000},
        tokens=[EVIL, "<b>", "&", "\u2028", *"the cat sat"],
        note=EVIL,
    ),
    "nothing": World(status={(arm, seed): "crashed" for arm in ("mha", "gqa", "mqa") for seed in range(5)}),
    "single": World(seeds=[0]),
}
MORE = {
    "good": {"tuning": tuned(World().effects, lambda rate, seed: abs(rate - 0.01) + seed / 1000)},
    "broken": {"question": EVIL},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Only where there is one (`visits`)."""
    from visits import CHROMIUM, playwright

    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], Path]]:
    """name -> (report, its folder)."""
    found, reports = {}, tmp_path_factory.mktemp("reports")
    for name, world in WORLDS.items():
        runs = write_runs(tmp_path_factory.mktemp(f"runs-{name}"), world)
        asked = experiment(world, **MORE.get(name, {}))
        report = build(asked, runs, timing(world) if name == "good" else None, provenance())
        folder = reports / name
        write(folder, report, runs)
        found[name] = (report, folder)
    return found
