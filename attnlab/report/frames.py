"""Results as data frames, from a report's folder or from a folder of runs.

A row per run, point, effect, claim, head or weight, in typed columns, with the axis values of its arm. In a
notebook, `show_maps` and `show_curves` draw them as in a report.
"""

import html
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attnlab.errors import InvalidConfig, format_seeds, format_suggestions
from attnlab.report.pages.explorer import render_curves, render_explorer
from attnlab.report.pages.report_files import find_report
from attnlab.report.report_builder import build_run_row, summarize_experiment
from attnlab.report.schema import CurvesReport, RunRow, load_report
from attnlab.report.section import Table, list_tables
from attnlab.report.sections import build_sections
from attnlab.report.tables.curves import build_curves, build_position_losses
from attnlab.report.tables.map_archive import ARCHIVE_NAME, get_layers, list_archive_runs, read_archive
from attnlab.report.verdicts.results import Run, SweepContext, SweepResults, read_arrays
from attnlab.store import remote, run_directories
from attnlab.store.experiment_schema import Experiment
from attnlab.store.remote_files import is_url

Row = dict[str, Any]
T = TypeVar("T")
COLUMN_GROUPS = ("axes", "metrics", "budget", "memory", "speed")  # of a run; each key is a column
CATEGORICAL_COLUMNS = (
    "arm",
    "against",
    "status",
    "experiment",
    "metric",
    "unit",
    "name",
    "kind",
    "verdict",
)
REPORT_TABLES = ("effects", "claims", "arms", "token_losses", "samples")  # that users look for in runs too
WEIGHT_COLUMNS = ("head", "query", "key")  # of a weight within its layer


def load(path: str | Path, frames: str = "pandas") -> "ResultFrames":
    """Open a report's folder, its report.json, or a folder of runs, which may be a URL as in paths.runs.

    Args:
        frames: the library of the frames: pandas, polars or pyarrow.

    Raises:
        InvalidConfig: the path is neither a report nor a folder of runs, or the library is unknown or not
            installed.
    """
    to_frame = _select_converter(frames)
    if is_url(str(path)):
        return StoreFrames(remote.open_store(str(path), None, writable=False), to_frame)
    folder = Path(path).expanduser()
    if folder.is_dir() and not (folder / "report.json").exists() and any(folder.glob("*/spec.json")):
        return StoreFrames(folder, to_frame)
    try:
        return ReportFrames(find_report(folder), to_frame)
    except ValueError as error:
        raise InvalidConfig(str(error)) from error


@dataclass(frozen=True)
class NotebookPage:
    """A page that a notebook shows in the cell, without a server.

    It is in a frame of its own, so its styles, ids and scripts do not meet those of the notebook.
    """

    html: str
    description: str
    height: int  # pixels

    def __repr__(self) -> str:
        return self.description

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="{html.escape(self.description)}" '
            f'sandbox="allow-scripts" style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )


class ResultFrames(ABC):
    """Frames over results, each built on first access."""

    _kind: ClassVar[str]  # in error messages

    def __init__(self, path: Path, to_frame: Callable[[pa.Table], Any]) -> None:
        self.path = path
        self._to_frame = to_frame

    if not TYPE_CHECKING:  # so that mypy still finds wrong names

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError for a missing name, with the nearest ones."""
            if hasattr(type(self), name):  # the property itself raised AttributeError
                return object.__getattribute__(self, name)
            raise AttributeError(self._describe_missing_name(name))

    def _describe_missing_name(self, name: str) -> str:
        known_names = [known for known in {*dir(type(self)), *vars(self)} if not known.startswith("_")]
        known_names += self._page_tables
        return f"{self._kind} has no attribute {name!r}{format_suggestions(name, known_names)}"

    @property
    def _page_tables(self) -> Mapping[str, Table]:
        """The tables of the page by name, which only a report has."""
        return {}

    @cached_property
    def runs(self) -> Any:
        """A row per run: arm, seed, id, status, seconds, started; then its axes and figures.

        The columns of axes, metrics, budget, memory and speed have their own names, or as in `budget.kernel`
        where that name is taken.
        """
        return self._to_frame(_build_table(self._run_dicts))

    @cached_property
    def curves(self) -> Any:
        """A row per point: arm, seed, tokens, name of the metric, value, and the step where it is known."""
        return self._to_frame(_build_table(map(self._add_axes, self._read_curves())))

    @cached_property
    def head_scores(self) -> Any:
        """A row per head and score: arm, seed, layer, head, the score's name, its value."""
        return self._to_frame(_build_table(map(self._add_axes, self._read_head_scores())))

    def show_maps(self, arm: str, seed: int | None = None) -> NotebookPage:
        """Show the attention explorer of one run in a notebook: of its first seed with maps by default.

        Raises:
            KeyError: as `maps`.
        """
        if seed is None:
            pairs = [*self._list_mapped_runs()]
            seeds = [its_seed for name, its_seed in pairs if name == arm]
            if not seeds:
                raise KeyError(_describe_missing(self.path, arm, None, pairs))
            seed = min(seeds)
        arrays = self._read_maps(arm, seed)
        page = render_explorer(arm, seed, arrays, *self._read_head_results(arm, seed))
        return NotebookPage(page, f"Attention maps of {arm}, seed {seed}", 900)

    def show_curves(self) -> NotebookPage:
        """Show the learning curves in a notebook, of a report's primary metric or of the validation loss."""
        report = self._build_curve_report()
        return NotebookPage(render_curves(report), f"Learning curves of {report.experiment.name}", 560)

    def maps(self, arm: str, seed: int, step: int | None = None) -> Any:
        """A row per attention weight that the mask allows, of one run at a stored step: the last by default.

        Columns: step, layer, head, query, key, weight. Weights are off by 0.004 at most; a negative one, as
        in talking heads, is stored as 0.

        Raises:
            KeyError: the run or the step has no maps; the message lists the seeds that have some.
        """
        arrays = self._read_maps(arm, seed)
        steps = arrays["steps"].tolist()
        map_step = steps[-1] if step is None else step
        if map_step not in steps:
            stored_steps = ", ".join(map(str, steps))
            raise KeyError(f"{arm}, seed {seed}: no maps of step {map_step}: use one of {stored_steps}")
        weights = arrays["maps"][steps.index(map_step)]
        visible = np.broadcast_to(arrays["visible"][:, None], weights.shape)
        layer, *rest = np.nonzero(visible)
        indices = {
            "layer": np.asarray(get_layers(arrays))[layer],
            **dict(zip(WEIGHT_COLUMNS, rest, strict=True)),
        }
        weight = (weights[visible].astype("float32") / 255) ** 2
        return self._to_frame(pa.table({"step": np.full(len(weight), map_step), **indices, "weight": weight}))

    @abstractmethod
    def _add_axes(self, row: Row) -> Row:
        """Add the config options of a run to a row about it, as `axes`."""

    @property
    @abstractmethod
    def _run_rows(self) -> Sequence[RunRow]: ...

    @property
    def _run_dicts(self) -> list[Row]:
        return [
            self._add_axes(row.model_dump(mode="json", exclude={"head_scores"})) for row in self._run_rows
        ]

    @abstractmethod
    def _read_curves(self) -> Iterator[Row]: ...

    @abstractmethod
    def _read_head_scores(self) -> Iterator[Row]: ...

    @abstractmethod
    def _list_mapped_runs(self) -> Iterable[tuple[str, int]]:
        """List the arms and seeds of the runs with attention maps."""

    @abstractmethod
    def _read_maps(self, arm: str, seed: int) -> Mapping[str, Any]: ...

    @abstractmethod
    def _read_head_results(self, arm: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the head scores of a run and the agreement of its kernels, as in a run's result."""

    @abstractmethod
    def _build_curve_report(self) -> CurvesReport:
        """Return the curves of all runs, with the experiment whose arms they are."""


@final
class ReportFrames(ResultFrames):
    """Frames over a report. `document` is its report.json, for everything that no frame has."""

    _kind = "a report"

    def __init__(self, source: Path, to_frame: Callable[[pa.Table], Any]) -> None:
        super().__init__(source.parent, to_frame)
        self.document = load_report(source)

    def __repr__(self) -> str:
        experiment = self.document.experiment
        runs = self.document.runs
        verdicts = Counter(str(claim.verdict) for claim in self.document.verdict.claims)
        return (
            f"<report {self.path}: experiment {experiment.name}, arms {', '.join(experiment.arms)}, "
            f"{len(runs)} runs ({sum(run.is_done for run in runs)} finished), "
            f"seeds {format_seeds(run.seed for run in runs)}, "
            f"verdicts {', '.join(f'{n} {name}' for name, n in verdicts.items()) or 'none'}>"
        )

    @cached_property
    def tables(self) -> dict[str, Any]:
        """The tables of the page by name, such as `effects`, `claims` and `arms`."""
        return {name: self._convert_table(table) for name, table in self._page_tables.items()}

    @cached_property
    def _page_tables(self) -> dict[str, Table]:
        return list_tables(build_sections(self.document))

    def _convert_table(self, table: Table) -> Any:
        return self._to_frame(_build_table(table.iterate_records()))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A table of the page by its name, as in `report.effects`."""
            if name.startswith("_") or name in type(self).__dict__ or name not in self._page_tables:
                return super().__getattr__(name)
            frame = vars(self)[name] = self._convert_table(self._page_tables[name])
            return frame

    def _add_axes(self, row: Row) -> Row:
        return row | {"axes": self.document.axes.get(row["arm"], {})}

    @property
    def _run_rows(self) -> Sequence[RunRow]:
        return self.document.runs

    def _read_curves(self) -> Iterator[Row]:
        file = self.path / "curves.parquet"
        if file.exists():
            yield from _read_file(file, pq.read_table).to_pylist()
            return
        curves = self.document.curves  # those on the page
        if curves is None:
            return
        for line in curves.lines:
            for tokens, value in zip(line.tokens, line.values, strict=True):
                yield {
                    "arm": line.arm, "seed": line.seed, "tokens": tokens, "name": curves.name, "value": value,
                }  # fmt: skip

    def _read_head_scores(self) -> Iterator[Row]:
        for run in self.document.runs:
            for name, values in run.head_scores.items():
                yield from _iterate_heads(run.arm, run.seed, name, values)

    def _list_mapped_runs(self) -> Iterable[tuple[str, int]]:
        return list_archive_runs(self.path / ARCHIVE_NAME)

    def _read_maps(self, arm: str, seed: int) -> Mapping[str, Any]:
        archive = read_archive(self.path / ARCHIVE_NAME, [(arm, seed)])
        if not archive:
            raise KeyError(_describe_missing(self.path, arm, seed, self._list_mapped_runs()))
        return archive[arm, seed]

    def _read_head_results(self, arm: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        heads = self.document.heads
        run = next((run for run in self.document.runs if (run.arm, run.seed) == (arm, seed)), None)
        chance = self.document.get_chance_levels(arm)
        scores = {
            **(run.head_scores if run else {}),
            "chance": {name: x for name, x in chance.items() if x is not None},
        }
        kernels = [row for row in (heads.agreement if heads else ()) if row.arm == arm]
        return scores, {
            "max_abs_eager_fused": kernels[0].max_abs if kernels else None,
            "note": "; ".join(kernels[0].notes) if kernels else None,
        }

    def _build_curve_report(self) -> CurvesReport:
        return self.document


@final
class StoreFrames(ResultFrames):
    """Frames over a folder of runs, each under the arm and experiment that it was first trained for."""

    _kind = "a folder of runs"

    def __repr__(self) -> str:
        experiments = sorted({experiment for _, experiment in self._stored_runs if experiment})
        finished = sum(run.is_done for run, _ in self._stored_runs)
        return (
            f"<runs {self.path}: {len(self._stored_runs)} runs ({finished} finished), "
            f"experiments {', '.join(experiments) or 'none'}>"
        )

    def _describe_missing_name(self, name: str) -> str:
        if not name.startswith("_") and name in (*vars(ReportFrames), "document", *REPORT_TABLES):
            return (
                f"{self._kind} has no {name}: load the folder of a report, as in "
                f"attnlab.load('reports/NAME').{name}"
            )
        return super()._describe_missing_name(name)

    @cached_property
    def _stored_runs(self) -> list[tuple[Run, str | None]]:
        specs = [
            run_directories.load_run_config(file.parent) for file in sorted(self.path.glob("*/spec.json"))
        ]
        return [
            (
                Run(
                    spec.arm,
                    spec.seed,
                    spec.id,
                    run_directories.load_run_result(self.path / spec.id),
                    axes=spec.use.axes,
                ),
                spec.use.experiment,
            )
            for spec in specs
        ]

    @cached_property
    def _axes_by_id(self) -> dict[str, dict[str, str]]:
        return {run.id: dict(run.axes) for run, _ in self._stored_runs}

    def _add_axes(self, row: Row) -> Row:
        return row | {"axes": self._axes_by_id[row["id"]]}

    @cached_property
    def _run_rows(self) -> Sequence[RunRow]:
        return [build_run_row(run) for run, _ in self._stored_runs]

    @property
    def _run_dicts(self) -> list[Row]:
        experiments = (experiment for _, experiment in self._stored_runs)
        return [
            row | {"experiment": experiment}
            for row, experiment in zip(super()._run_dicts, experiments, strict=True)
        ]

    def _read_curves(self) -> Iterator[Row]:
        for run, _ in self._stored_runs:
            file = self.path / run.id / "curves.parquet"
            for point in _read_file(file, pq.read_table).to_pylist() if file.exists() else ():
                yield {"arm": run.arm, "seed": run.seed, "id": run.id, **point}

    def _read_head_scores(self) -> Iterator[Row]:
        for run, _ in self._stored_runs:
            for name, values in run.head_scores.items():
                for row in _iterate_heads(run.arm, run.seed, name, values):
                    yield {"id": run.id, **row}

    def _list_mapped_runs(self) -> Iterable[tuple[str, int]]:
        mapped = [run for run, _ in self._stored_runs if self._maps_path(run).exists()]
        return [(name, run.seed) for run in mapped for name in (run.arm, run.id)]

    def _find_mapped_run(self, arm: str, seed: int) -> Run:
        matching = [
            run
            for run, _ in self._stored_runs
            if arm in (run.arm, run.id) and run.seed == seed and self._maps_path(run).exists()
        ]
        if not matching:
            raise KeyError(_describe_missing(self.path, arm, seed, self._list_mapped_runs()))
        if len(matching) > 1:
            ids = ", ".join(run.id for run in matching)
            raise KeyError(f"{len(matching)} runs have maps of {arm}, seed {seed}: give the id of one: {ids}")
        return matching[0]

    def _read_maps(self, arm: str, seed: int) -> Mapping[str, Any]:
        return _read_file(self._maps_path(self._find_mapped_run(arm, seed)), read_arrays)

    def _read_head_results(self, arm: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        result = self._find_mapped_run(arm, seed).result
        return (result.head_scores, result.kernels) if result else ({}, {})

    def _build_curve_report(self) -> CurvesReport:
        """Name each run by its arm, or by its id where several runs have the same arm and seed."""
        counts = Counter((run.arm, run.seed) for run, _ in self._stored_runs)
        runs = []
        for run, _ in self._stored_runs:
            file = self.path / run.id / "curves.parquet"
            label = run.arm if counts[run.arm, run.seed] == 1 else run.id
            curves = _read_file(file, pq.read_table) if file.exists() else None
            runs.append(replace(run, arm=label, curves=curves))
        arms = [*dict.fromkeys(run.arm for run in runs)]
        seeds = sorted({run.seed for run in runs})
        metric = next(
            (name for run in runs if run.result for name in run.result.estimate.metric_names or ()), ""
        )
        experiment = Experiment(
            name=self.path.resolve().name, arms=arms, baseline=arms[0], seeds=seeds, metric=metric,
            margin=0.0, margin_reason="",
        )  # fmt: skip
        sweep = SweepResults(SweepContext(experiment), runs)
        summary = summarize_experiment(sweep).model_copy(update={"baseline": ""})  # runs are not compared
        return CurvesReport(
            experiment=summary,
            runs=[*self._run_rows],
            heads=None,
            curves=build_curves(sweep, incomparable_arms=arms),
            positions=build_position_losses(sweep),
        )

    def _maps_path(self, run: Run) -> Path:
        return self.path / run.id / ARCHIVE_NAME


def _read_file(path: Path, reader: Callable[[Path], T]) -> T:
    """Read a file of a run or report.

    Raises:
        InvalidConfig: it is damaged, or not a file.
    """
    try:
        return reader(path)
    except Exception as error:  # parquet, zip, zlib and numpy raise their own
        raise InvalidConfig(
            f"{path}: cannot be read ({' '.join(str(error).split())}): delete it, or run the command that "
            "wrote it again"
        ) from error


def _describe_missing(path: Path, arm: str, seed: int | None, pairs: Iterable[tuple[str, int]]) -> str:
    """The error message for an arm, and a seed of it, without maps, where `pairs` have some."""
    pairs = list(pairs)
    seeds = [its_seed for name, its_seed in pairs if name == arm]
    seed_text = "" if seed is None else f", seed {seed}"
    if seeds:
        return f"{path} has no maps of {arm}{seed_text}: use one of its finished seeds: {format_seeds(seeds)}"
    arms = format_suggestions(arm, [name for name, _ in pairs])
    return f"{path} has no maps of {arm}{seed_text}{arms}: train its runs first, or name another arm"


def _iterate_heads(arm: str, seed: int, name: str, values: Iterable[Iterable[float | None]]) -> Iterator[Row]:
    for layer, heads in enumerate(values):
        for head, value in enumerate(heads):
            yield {"arm": arm, "seed": seed, "layer": layer, "head": head, "name": name, "value": value}


def _build_table(rows: Iterable[Row]) -> pa.Table:
    """A table of rows; each key of a column group becomes a column."""
    rows = list(rows)
    columns = {}
    for group in ("", *COLUMN_GROUPS):
        parts = [row if not group else row.get(group) or {} for row in rows]
        for key in dict.fromkeys(key for part in parts for key in part if group or key not in COLUMN_GROUPS):
            values = [part.get(key) for part in parts]
            columns[f"{group}.{key}" if key in columns else key] = _build_column(
                values, group in ("axes", "budget") or key in CATEGORICAL_COLUMNS
            )
    return pa.table(columns)


def _build_column(values: list[Any], is_categorical: bool) -> pa.Array:
    """A typed column: booleans, integers, numbers, else text, which may be categorical."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds or (kinds <= {int, float} and len(kinds) > 1):
        return pa.array(values, pa.float64())
    if len(kinds) == 1 and kinds <= {bool, int, float}:
        return pa.array(values)
    texts = pa.array([None if value is None else str(value) for value in values], pa.string())
    return texts.dictionary_encode() if is_categorical else texts


def _select_converter(name: str) -> Callable[[pa.Table], Any]:
    """The function from an arrow table to the library's frame."""
    converters = {"pandas": _to_pandas, "polars": _to_polars, "pyarrow": lambda table: table}
    if name not in converters:
        raise InvalidConfig(
            f"frames={name}: use pandas, polars or pyarrow{format_suggestions(name, converters)}"
        )
    try:
        import_module(name)
    except ImportError as error:
        raise InvalidConfig(f"frames={name}: {name} is not installed: pip install {name}") from error
    return converters[name]


def _to_pandas(table: pa.Table) -> Any:
    import pandas as pd  # type: ignore[import-untyped]

    kinds = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype()}
    return table.to_pandas(types_mapper=kinds.get)


def _to_polars(table: pa.Table) -> Any:
    import polars

    return polars.from_arrow(table)
