"""Reports of worlds with a known truth, in a module that spawned processes can import."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from rates import tuned
from synthetic import World, experiment, provenance, timing, write_runs

from attnlab.report.build import build
from attnlab.report.charts import drawing
from attnlab.report.pages.files import write
from attnlab.report.schema import Report

ANSWERS = drawing._answers
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


class Made(Mapping[str, tuple[Report, Path]]):
    """name -> (report, its folder); built when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[str, tuple[Report, Path]] = {}

    def __getitem__(self, name: str) -> tuple[Report, Path]:
        if name not in self.found:
            world, folder = WORLDS[name], self.folder / "reports" / name
            runs = write_runs(self.folder / f"runs-{name}", world)
            asked = experiment(world, **MORE.get(name, {}))
            with pytest.MonkeyPatch.context() as drawn:
                drawn.setattr(drawing, "_answers", ANSWERS)  # a test that asks first may have it `blank`
                report = build(asked, runs, timing(world) if name == "good" else None, provenance())
                write(folder, report, runs)
            self.found[name] = (report, folder)
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(WORLDS)

    def __len__(self) -> int:
        return len(WORLDS)
