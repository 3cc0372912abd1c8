"""Results as data frames, from a report's folder or from a folder of runs.

A row per run, point, effect, claim, head or weight, in typed columns, with the axis values of its arm.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attnlab.errors import InvalidConfig, format_seeds, format_suggestions
from attnlab.report.pages.report_files import find_report
from attnlab.report.report_builder import build_run_row
from attnlab.report.schema import ClaimResult, Effect, RunRow, SeedRange, load_report
from attnlab.report.tables.map_archive import get_layers, read_archive
from attnlab.report.tables.wording import describe_claim, find_claim_effect
from attnlab.report.verdicts.results import Run, read_arrays
from attnlab.store import run_directories

Row = dict[str, Any]
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
CLAIM_COLUMNS = (
    "says", "verdict", "arm", "against", "metric", "compare", "is", "threshold", "unit", "identity",
    "exploratory", "reason",
)  # fmt: skip
DECISION_COLUMNS = ("estimate", "low", "high", "level", "n", "p", "p_holm")
EFFECT_COLUMNS = (
    "arm", "against", "metric", "unit", "primary", "n", "mean", "sd", "low", "high", "level", "p", "p_holm",
    "p_equivalent", "margin", "verdict",
)  # fmt: skip
WEIGHT_COLUMNS = ("head", "query", "key")  # of a weight within its layer
SAMPLE_COLUMNS = ("arm", "seed", "run", "prompt", "sample", "rest", "reason")


def load(path: str | Path, frames: str = "pandas") -> "ResultFrames":
    """Open a report's folder, its report.json, or a folder of runs.

    Args:
        frames: the library of the frames: pandas, polars or pyarrow.

    Raises:
        InvalidConfig: the path is neither a report nor a folder of runs, or the library is unknown or not
            installed.
    """
    to_frame = _select_converter(frames)
    folder = Path(path)
    if folder.is_dir() and not (folder / "report.json").exists() and any(folder.glob("*/spec.json")):
        return StoreFrames(folder, to_frame)
    try:
        return ReportFrames(find_report(folder), to_frame)
    except ValueError as error:
        raise InvalidConfig(str(error)) from error


class ResultFrames(ABC):
    """Frames over results, each built on first access."""

    def __init__(self, path: Path, to_frame: Callable[[pa.Table], Any]) -> None:
        self.path = path
        self._to_frame = to_frame

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
        return self._to_frame(self._add_axes(self._read_curves()))

    @cached_property
    def head_scores(self) -> Any:
        """A row per head and score: arm, seed, layer, head, the score's name, its value."""
        return self._to_frame(self._add_axes(self._read_head_scores()))

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

    def _add_axes(self, rows: Iterable[Row]) -> pa.Table:
        axes = dict[Any, dict[str, str]]()
        for run in self._run_rows:
            axes |= dict.fromkeys((run.id, (run.arm, run.seed)), run.axes)
        keys = ((row, row.get("id") or (row.get("arm"), row.get("seed"))) for row in rows)
        return _build_table([row | {"axes": axes.get(key, {})} for row, key in keys])

    @property
    @abstractmethod
    def _run_rows(self) -> Sequence[RunRow]: ...

    @property
    def _run_dicts(self) -> list[Row]:
        return [row.to_dict() for row in self._run_rows]

    @abstractmethod
    def _read_curves(self) -> Iterator[Row]: ...

    @abstractmethod
    def _read_head_scores(self) -> Iterator[Row]: ...

    @abstractmethod
    def _read_maps(self, arm: str, seed: int) -> Mapping[str, Any]: ...


@final
class ReportFrames(ResultFrames):
    """Frames over a report. `document` is its report.json, for everything that no frame has."""

    def __init__(self, source: Path, to_frame: Callable[[pa.Table], Any]) -> None:
        super().__init__(source.parent, to_frame)
        self.document = load_report(source)

    @cached_property
    def effects(self) -> Any:
        """A row per arm and metric: its difference to the baseline, with intervals and its verdict."""
        rows = (
            {key: getattr(row, key) for key in EFFECT_COLUMNS} | _get_training_column(row)
            for row in self.document.effects
        )
        return self._to_frame(_build_table(rows))

    @cached_property
    def claims(self) -> Any:
        """A row per claim: its statement, verdict, estimate, and the interval that decided."""
        return self._to_frame(
            _build_table(
                {key: plain[key] for key in CLAIM_COLUMNS}
                | _get_training_column(row)
                | {key: getattr(row.decision, key) for key in DECISION_COLUMNS}
                | {"outcome": describe_claim(row, find_claim_effect(row, self.document.effects))}
                for row in self.document.verdict.claims
                for plain in [row.to_dict()]
            )
        )

    @cached_property
    def token_losses(self) -> Any:
        """A row per arm and token category: targets, seeds, mean loss in nats and its range over seeds.

        The columns of the difference to the baseline, seed by seed, follow.
        """
        rows: list[Row] = []
        for category in self.document.text.token_categories if self.document.text else ():
            columns = {"kind": category.label, "targets": category.targets}
            rows += [
                {"arm": arm.arm, **columns, "seeds": arm.seeds}
                | _flatten_range("loss", arm.loss)
                | _flatten_range("difference", arm.difference)
                for arm in category.arms
            ]
        return self._to_frame(_build_table(rows))

    @cached_property
    def samples(self) -> Any:
        """A row per arm: the text that one of its runs generates after `prompt`.

        `rest` is the corpus's own continuation.
        """
        rows = self.document.text.samples if self.document.text else ()
        return self._to_frame(
            _build_table([{key: getattr(row, key) for key in SAMPLE_COLUMNS} for row in rows])
        )

    @property
    def _run_rows(self) -> Sequence[RunRow]:
        return self.document.runs

    def _read_curves(self) -> Iterator[Row]:
        file = self.path / "curves.parquet"
        if file.exists():
            yield from pq.read_table(file).to_pylist()
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
        for score in self.document.heads.scores if self.document.heads else ():
            for run in score.runs:
                yield from _iterate_heads(run.arm, run.seed, score.name, run.values)

    @cached_property
    def _archive(self) -> dict[tuple[str, int], dict[str, Any]]:
        return read_archive(self.path / "attention.npz")

    def _read_maps(self, arm: str, seed: int) -> Mapping[str, Any]:
        if (arm, seed) not in self._archive:
            raise KeyError(_describe_missing(self.path, arm, seed, self._archive))
        return self._archive[arm, seed]


@final
class StoreFrames(ResultFrames):
    """Frames over a folder of runs, each under the arm and experiment that it was first trained for."""

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
    def _run_rows(self) -> Sequence[RunRow]:
        return [build_run_row(run) for run, _ in self._stored_runs]

    @property
    def _run_dicts(self) -> list[Row]:
        experiments = (experiment for _, experiment in self._stored_runs)
        return [
            row.to_dict() | {"experiment": experiment}
            for row, experiment in zip(self._run_rows, experiments, strict=True)
        ]

    def _read_curves(self) -> Iterator[Row]:
        for run, _ in self._stored_runs:
            file = self.path / run.id / "curves.parquet"
            for point in pq.read_table(file).to_pylist() if file.exists() else ():
                yield {"arm": run.arm, "seed": run.seed, "id": run.id, **point}

    def _read_head_scores(self) -> Iterator[Row]:
        for run, _ in self._stored_runs:
            for name, values in run.head_scores.items():
                for row in _iterate_heads(run.arm, run.seed, name, values):
                    yield {"id": run.id, **row}

    def _read_maps(self, arm: str, seed: int) -> Mapping[str, Any]:
        mapped = [run for run, _ in self._stored_runs if self._maps_path(run).exists()]
        matching = [run for run in mapped if arm in (run.arm, run.id) and run.seed == seed]
        if not matching:
            pairs = [(name, run.seed) for run in mapped for name in (run.arm, run.id)]
            raise KeyError(_describe_missing(self.path, arm, seed, pairs))
        if len(matching) > 1:
            ids = ", ".join(run.id for run in matching)
            raise KeyError(f"{len(matching)} runs have maps of {arm}, seed {seed}: give the id of one: {ids}")
        return read_arrays(self._maps_path(matching[0]))

    def _maps_path(self, run: Run) -> Path:
        return self.path / run.id / "attention.npz"


def _describe_missing(path: Path, arm: str, seed: int, pairs: Iterable[tuple[str, int]]) -> str:
    """The error message for an arm and a seed without maps, where `pairs` have some."""
    pairs = list(pairs)
    seeds = [its_seed for name, its_seed in pairs if name == arm]
    if seeds:
        return (
            f"{path} has no maps of {arm}, seed {seed}: use one of its finished seeds: {format_seeds(seeds)}"
        )
    arms = format_suggestions(arm, [name for name, _ in pairs])
    return f"{path} has no maps of {arm}, seed {seed}{arms}: train its runs first, or name another arm"


def _get_training_column(row: Effect | ClaimResult) -> Row:
    return {"training": row.training_equivalent.compute_change if row.training_equivalent else None}


def _flatten_range(prefix: str, value_range: SeedRange | None) -> Row:
    return {f"{prefix}_{end}": getattr(value_range, end, None) for end in ("mean", "low", "high")}


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
