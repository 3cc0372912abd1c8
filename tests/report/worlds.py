"""Reports of worlds with known effects, in a module that spawned processes can import."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from rates import build_tuning_result
from synthetic import World, build_context, build_provenance, build_timing, write_runs

from attnlab.report.charts import chart_renderer
from attnlab.report.pages.report_files import write_report
from attnlab.report.report_builder import build_report
from attnlab.report.schema import Report

RUN_RENDERER = chart_renderer._run_renderer
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
CONTEXT_CHANGES = {
    "good": {
        "tuning": build_tuning_result(World().effects, lambda rate, seed: abs(rate - 0.01) + seed / 1000)
    },
    "broken": {"question": EVIL},
    "single": {"size": "S"},  # as good has the same arms, and other verdicts
}


class SyntheticReports(Mapping[str, tuple[Report, Path]]):
    """Mapping of name -> (report, its folder), built on first access."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.built: dict[str, tuple[Report, Path]] = {}

    def __getitem__(self, name: str) -> tuple[Report, Path]:
        if name not in self.built:
            world, folder = WORLDS[name], self.folder / "reports" / name
            runs = write_runs(self.folder / f"runs-{name}", world)
            context = build_context(world, **CONTEXT_CHANGES.get(name, {}))
            with pytest.MonkeyPatch.context() as patch:
                # the first test that needs a report may have replaced these
                patch.setattr(chart_renderer, "_run_renderer", RUN_RENDERER)
                report = build_report(
                    context, runs, build_timing(world) if name == "good" else None, build_provenance()
                )
                write_report(folder, report, runs)
            self.built[name] = (report, folder)
        return self.built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(WORLDS)

    def __len__(self) -> int:
        return len(WORLDS)
