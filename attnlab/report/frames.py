"""Results as data frames, of a report's folder or of a store of runs: a row per run, point, effect, claim,
head or weight, in typed columns, with what was chosen of each axis beside the numbers.
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

from attnlab.errors import Refused, format_seeds, nearest
from attnlab.report.build import row as row_of
from attnlab.report.pages.files import find
from attnlab.report.schema import ClaimResult, Effect, Range, RunRow
from attnlab.report.schema import load as read_report
from attnlab.report.tables.maps import layers_of
from attnlab.report.tables.maps import read as read_archive
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts.runs import Run, read_arrays
from attnlab.store import runs as store

Row = dict[str, Any]
GROUPS = ("axes", "metrics", "budget", "memory", "speed")  # of a run; each key is a column
WORDS = ("arm", "against", "status", "experiment", "metric", "unit", "name", "kind", "verdict", "word")
CLAIM = (
    "says", "verdict", "arm", "against", "metric", "compare", "is", "threshold", "unit", "identity",
    "exploratory", "reason",
)  # fmt: skip
DECISION = ("estimate", "low", "high", "level", "n", "p", "p_holm")
EFFECT = (
    "arm", "against", "metric", "unit", "primary", "n", "mean", "sd", "low", "high", "level", "p", "p_holm",
    "p_equivalent", "margin", "word",
)  # fmt: skip
PLACES = ("head", "query", "key")  # of a weight, in its layer
SAMPLE = ("arm", "seed", "run", "prompt", "sample", "rest", "why")


def load(path: str | Path, frames: str = "pandas") -> "Results":
    """What `path` holds: a report's folder, its report.json, or a store of runs.

    `frames` says whose frames are given: pandas, polars or pyarrow. Refused, in one line, for a path that is
    neither and for a library that is unknown or not installed.
    """
    frame = _library(frames)
    where = Path(path)
    if where.is_dir() and not (where / "report.json").exists() and any(where.glob("*/spec.json")):
        return Store(where, frame)
    try:
        return Report(find(where), frame)
    except ValueError as error:
        raise Refused(str(error)) from error


class Results(ABC):
    """Frames over results, each made when it is first asked for."""

    def __init__(self, path: Path, frame: Callable[[pa.Table], Any]) -> None:
        self.path = path
        self._frame = frame

    @cached_property
    def runs(self) -> Any:
        """A row per run: arm, seed, id, status, seconds, started; then axes, metrics, budget, memory and
        speed, each under its own name, or as in `budget.kernel` where that is taken.
        """
        return self._frame(_table(self._runs))

    @cached_property
    def curves(self) -> Any:
        """A row per point: arm, seed, tokens, name of the metric, value, and the step where it is known."""
        return self._frame(self._with_axes(self._curves()))

    @cached_property
    def head_scores(self) -> Any:
        """A row per head and score: arm, seed, layer, head, the score's name, its value."""
        return self._frame(self._with_axes(self._head_scores()))

    def maps(self, arm: str, seed: int, step: int | None = None) -> Any:
        """A row per weight of attention that its mask allows, of one run at a stored step, the last one
        where none is named: step, layer, head, query, key, weight (off by 0.004 at most; a negative one, as
        heads that talk may have, is kept as 0). KeyError for a run or a step without maps: it lists the seeds
        that have some.
        """
        arrays = self._maps(arm, seed)
        steps = arrays["steps"].tolist()
        taken = steps[-1] if step is None else step
        if taken not in steps:
            raise KeyError(f"{arm}, seed {seed}: maps were kept at the steps {', '.join(map(str, steps))}")
        weights = arrays["maps"][steps.index(taken)]
        seen = np.broadcast_to(arrays["visible"][:, None], weights.shape)
        layer, *rest = np.nonzero(seen)
        places = {"layer": np.asarray(layers_of(arrays))[layer], **dict(zip(PLACES, rest, strict=True))}
        weight = (weights[seen].astype("float32") / 255) ** 2
        return self._frame(pa.table({"step": np.full(len(weight), taken), **places, "weight": weight}))

    def _with_axes(self, rows: Iterable[Row]) -> pa.Table:
        axes = dict[Any, dict[str, str]]()
        for run in self._rows:
            axes |= dict.fromkeys((run.id, (run.arm, run.seed)), run.axes)
        keys = ((row, row.get("id") or (row.get("arm"), row.get("seed"))) for row in rows)
        return _table([row | {"axes": axes.get(key, {})} for row, key in keys])

    @property
    @abstractmethod
    def _rows(self) -> Sequence[RunRow]: ...

    @property
    def _runs(self) -> list[Row]:
        return [row.plain() for row in self._rows]

    @abstractmethod
    def _curves(self) -> Iterator[Row]: ...

    @abstractmethod
    def _head_scores(self) -> Iterator[Row]: ...

    @abstractmethod
    def _maps(self, arm: str, seed: int) -> Mapping[str, Any]: ...


@final
class Report(Results):
    """A report. `document` is its report.json, for what no frame has."""

    def __init__(self, source: Path, frame: Callable[[pa.Table], Any]) -> None:
        super().__init__(source.parent, frame)
        self.document = read_report(source)

    @cached_property
    def effects(self) -> Any:
        """A row per arm and metric: its difference to the baseline, with intervals and the word for it."""
        rows = ({key: getattr(row, key) for key in EFFECT} | _training(row) for row in self.document.effects)
        return self._frame(_table(rows))

    @cached_property
    def claims(self) -> Any:
        """A row per claim: what it says, its verdict, the estimate and the interval that decided."""
        return self._frame(
            _table(
                {key: plain[key] for key in CLAIM}
                | _training(row)
                | {key: getattr(row.decision, key) for key in DECISION}
                | {"outcome": describe_claim(row)}
                for row in self.document.verdict.claims
                for plain in [row.plain()]
            )
        )

    @cached_property
    def token_losses(self) -> Any:
        """A row per arm and kind of token: how many targets, seeds, the mean loss in nats and its range over
        seeds; then the same of the difference to the baseline, seed by seed.
        """
        rows: list[Row] = []
        for kind in self.document.text.kinds if self.document.text else ():
            about = {"kind": kind.label, "targets": kind.targets}
            rows += [
                {"arm": arm.arm, **about, "seeds": arm.seeds}
                | _ends("loss", arm.loss)
                | _ends("difference", arm.difference)
                for arm in kind.arms
            ]
        return self._frame(_table(rows))

    @cached_property
    def samples(self) -> Any:
        """A row per arm: what one of its runs writes after `prompt`, and how the text itself goes on."""
        rows = self.document.text.written if self.document.text else ()
        return self._frame(_table([{key: getattr(row, key) for key in SAMPLE} for row in rows]))

    @property
    def _rows(self) -> Sequence[RunRow]:
        return self.document.runs

    def _curves(self) -> Iterator[Row]:
        file = self.path / "curves.parquet"
        if file.exists():
            yield from pq.read_table(file).to_pylist()
            return
        curves = self.document.curves  # what the page draws
        if curves is None:
            return
        for line in curves.lines:
            for tokens, value in zip(line.tokens, line.values, strict=True):
                yield {
                    "arm": line.arm, "seed": line.seed, "tokens": tokens, "name": curves.name, "value": value,
                }  # fmt: skip

    def _head_scores(self) -> Iterator[Row]:
        for score in self.document.heads.scores if self.document.heads else ():
            for run in score.runs:
                yield from _by_head(run.arm, run.seed, score.name, run.values)

    @cached_property
    def _archive(self) -> dict[tuple[str, int], dict[str, Any]]:
        return read_archive(self.path / "attention.npz")

    def _maps(self, arm: str, seed: int) -> Mapping[str, Any]:
        if (arm, seed) not in self._archive:
            raise KeyError(_describe_missing(self.path, arm, seed, self._archive))
        return self._archive[arm, seed]


@final
class Store(Results):
    """A store of runs: each under the arm and the experiment that it was first trained for."""

    @cached_property
    def _found(self) -> list[tuple[Run, str | None]]:
        specs = [store.spec(file.parent) for file in sorted(self.path.glob("*/spec.json"))]
        return [
            (
                Run(spec.arm, spec.seed, spec.id, store.record(self.path / spec.id), axes=spec.use.axes),
                spec.use.experiment,
            )
            for spec in specs
        ]

    @cached_property
    def _rows(self) -> Sequence[RunRow]:
        return [row_of(run) for run, _ in self._found]

    @property
    def _runs(self) -> list[Row]:
        experiments = (experiment for _, experiment in self._found)
        return [
            row.plain() | {"experiment": experiment}
            for row, experiment in zip(self._rows, experiments, strict=True)
        ]

    def _curves(self) -> Iterator[Row]:
        for run, _ in self._found:
            file = self.path / run.id / "curves.parquet"
            for point in pq.read_table(file).to_pylist() if file.exists() else ():
                yield {"arm": run.arm, "seed": run.seed, "id": run.id, **point}

    def _head_scores(self) -> Iterator[Row]:
        for run, _ in self._found:
            for name, values in run.head_scores.items():
                for row in _by_head(run.arm, run.seed, name, values):
                    yield {"id": run.id, **row}

    def _maps(self, arm: str, seed: int) -> Mapping[str, Any]:
        mapped = [run for run, _ in self._found if self._file(run).exists()]
        named = [run for run in mapped if arm in (run.arm, run.id) and run.seed == seed]
        if not named:
            pairs = [(name, run.seed) for run in mapped for name in (run.arm, run.id)]
            raise KeyError(_describe_missing(self.path, arm, seed, pairs))
        if len(named) > 1:
            ids = ", ".join(run.id for run in named)
            raise KeyError(f"{len(named)} runs have maps of {arm}, seed {seed}: name one by its id: {ids}")
        return read_arrays(self._file(named[0]))

    def _file(self, run: Run) -> Path:
        return self.path / run.id / "attention.npz"


def _describe_missing(path: Path, arm: str, seed: int, pairs: Iterable[tuple[str, int]]) -> str:
    """The message for an arm and a seed without maps, where `pairs` have some."""
    pairs = list(pairs)
    seeds = [of_seed for of, of_seed in pairs if of == arm]
    if seeds:
        return (
            f"{path} has no maps of {arm}, seed {seed}: use one of its finished seeds: {format_seeds(seeds)}"
        )
    arms = nearest(arm, [of for of, _ in pairs])
    return f"{path} has no maps of {arm}, seed {seed}{arms}: train its runs first, or name another arm"


def _training(row: Effect | ClaimResult) -> Row:
    return {"training": row.training.share if row.training else None}


def _ends(of: str, mean: Range | None) -> Row:
    return {f"{of}_{end}": getattr(mean, end, None) for end in ("mean", "low", "high")}


def _by_head(arm: str, seed: int, name: str, values: Iterable[Iterable[float | None]]) -> Iterator[Row]:
    for layer, heads in enumerate(values):
        for head, value in enumerate(heads):
            yield {"arm": arm, "seed": seed, "layer": layer, "head": head, "name": name, "value": value}


def _table(rows: Iterable[Row]) -> pa.Table:
    """Rows, in which what is in a group has a column of its own."""
    rows = list(rows)
    columns = {}
    for group in ("", *GROUPS):
        parts = [row if not group else row.get(group) or {} for row in rows]
        for key in dict.fromkeys(key for part in parts for key in part if group or key not in GROUPS):
            values = [part.get(key) for part in parts]
            columns[f"{group}.{key}" if key in columns else key] = _column(
                values, group in ("axes", "budget") or key in WORDS
            )
    return pa.table(columns)


def _column(values: list[Any], words: bool) -> pa.Array:
    """Typed by what it holds: truth, whole numbers, numbers, else text, which where it is one of few words is
    a category.
    """
    kinds = {type(value) for value in values if value is not None}
    if not kinds or (kinds <= {int, float} and len(kinds) > 1):
        return pa.array(values, pa.float64())
    if len(kinds) == 1 and kinds <= {bool, int, float}:
        return pa.array(values)
    texts = pa.array([None if value is None else str(value) for value in values], pa.string())
    return texts.dictionary_encode() if words else texts


def _library(name: str) -> Callable[[pa.Table], Any]:
    """How a table becomes one of its frames."""
    known = {"pandas": _to_pandas, "polars": _to_polars, "pyarrow": lambda table: table}
    if name not in known:
        raise Refused(f"frames={name}: pandas, polars or pyarrow{nearest(name, known)}")
    try:
        import_module(name)
    except ImportError as error:
        raise Refused(f"frames={name}: it is not installed: pip install {name}") from error
    return known[name]


def _to_pandas(table: pa.Table) -> Any:
    import pandas as pd  # type: ignore[import-untyped]

    kinds = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype()}
    return table.to_pandas(types_mapper=kinds.get)


def _to_polars(table: pa.Table) -> Any:
    import polars

    return polars.from_arrow(table)
