"""Read runs trained elsewhere from CSV, TSV, JSONL, Parquet, TensorBoard, W&B exports or run directories.

A run is known by its id, its seed, or a curve along a known axis, so each row of a table needs one of them.
Columns are known by name. Whatever is ambiguous is an error with its place: a number that is not finite, a
seed or a step given twice, a row of means.
"""

import csv
import hashlib
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from attnlab.errors import InvalidConfig, describe_read_error, format_suggestions
from attnlab.store.atomic_files import open_user_file, parse_json
from attnlab.store.run_schema import RunResult

Status = Literal["done", "diverged", "missing"]
AXIS_BY_COLUMN = {  # columns that count training -> what they count; the first that a table has is its axis
    **dict.fromkeys(
        ("step", "_step", "global_step", "trainer/global_step", "train/global_step", "train/step", "steps",
         "iteration", "iter", "iterations", "update", "updates"),
        "steps",
    ),
    **dict.fromkeys(
        ("tokens", "n_tokens", "num_tokens", "tokens_seen", "train/tokens", "train_tokens", "total_tokens",
         "consumed_tokens"),
        "tokens",
    ),
    **dict.fromkeys(("samples", "examples", "samples_seen", "consumed_samples"), "samples"),
    "epoch": "epochs",  # last: a table may have it beside a step
}  # fmt: skip
ID_COLUMNS = ("run_id", "id")
NAME_COLUMNS = ("run", "name")  # of runs, unique in a file at most
STATUS_COLUMNS = ("status", "state")
START_COLUMNS = ("started", "started_at", "created", "created_at")
TIME_COLUMNS = (*START_COLUMNS, "_timestamp", "timestamp", "wall_time")  # the latter may count from the start
STATUS_BY_WORD: dict[str, Status] = {
    **dict.fromkeys(("done", "finished", "completed", "success"), "done"),
    **dict.fromkeys(("diverged", "nan"), "diverged"),
    **dict.fromkeys(("missing", "lost", "crashed", "failed", "killed", "running"), "missing"),
}
SEED_IN_NAME = re.compile(r"(?:^|[^a-zA-Z])seed[=_-]?(\d+)$")  # of a run whose table has no seeds
SUMMARY_WORDS = frozenset(
    {"mean", "average", "avg", "median", "std", "sd", "stdev", "sem", "min", "max", "count"}
)
SPLIT_FOLDERS = frozenset({"train", "training", "validation", "valid", "val", "eval", "test"})
SAME_VALUE_DIGITS = 8  # two runs whose values agree in so many significant digits are one run
SAME_CURVE_LENGTH = 3  # evaluations; so are two runs with equal curves of this length
ZONE_HOURS = 14  # the largest difference of local time from UTC
DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLE_SUFFIXES = (*DELIMITERS, ".jsonl", ".ndjson", ".parquet")
MAX_TABLE_BYTES = 2**33
MAX_VALUE = 1e150  # of a number: the square of a larger one is no float64
REDUCTIONS = "last, best, or mean:k (the mean of the last k values)"


@dataclass(frozen=True)
class ExternalRun:
    """One run of another program.

    Attributes:
        place: file and row, or folder, for messages.
        seed: None if the file does not give one.
        steps: Places of the values on the axis; empty where the file has one value per run.
        values: Values of the metric, in the order of the steps; empty if the run diverged or is missing.
        started: When the run began or was first logged, in seconds since the epoch; the earliest possible
            moment where the file gives no time zone. None if the file does not say.
        id: Run id that no other run has; None without one.
        name: Name of the run in its file; None without one.
        axis: What the steps count; empty without steps.
        rows: Rows of the file that belong to the run.
        result: The result of one of attnlab's own runs.
    """

    place: str
    arm: str | None
    seed: str | None
    status: Status
    steps: tuple[int, ...]
    values: tuple[float, ...]
    started: float | None = None
    id: str | None = None
    name: str | None = None
    axis: str = ""
    rows: int = 1
    result: RunResult | None = None

    def reduce(self, how: str, lower_is_better: bool | None = None) -> float:
        """One number per run: the last value, the mean of the last k (`mean:k`), or the best."""
        values = self.select_reduced(how, self.values)
        if how == "best":
            return min(values) if lower_is_better else max(values)
        return math.fsum(values) / len(values)

    def select_reduced(self, how: str, items: Sequence[Any]) -> Sequence[Any]:
        """The evaluations that a reduction reads, of the run's values or of their steps.

        Raises:
            InvalidConfig: the run has fewer, or the text is no reduction.
        """
        if how == "best":
            return items
        count = 1 if how == "last" else parse_mean_count(how)
        if len(self.values) < count:
            raise InvalidConfig(
                f"{self.place}: --reduce {how} needs {count} values, this run has {len(self.values)}"
            )
        return items[-count:]


def digest_runs(runs: Sequence[ExternalRun]) -> str:
    """SHA-256 of the content: seeds, statuses, steps and values, in any order of the runs, in any file."""
    return digest_text("\n".join(sorted(map(_describe_content, runs))))


def shuffle_runs(runs: Sequence[ExternalRun]) -> list[ExternalRun]:
    """The runs in an order that neither the file nor their values choose: that of a hash, as if random."""
    salt = digest_runs(runs)
    return sorted(runs, key=lambda run: digest_text(salt + _describe_content(run)))


def _describe_content(run: ExternalRun) -> str:
    return json.dumps([run.seed, run.status, run.steps, run.values])


def digest_text(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def parse_mean_count(how: str) -> int:
    """The k of `mean:k`.

    Raises:
        InvalidConfig: the text is neither that nor another reduction.
    """
    match = re.fullmatch(r"mean:([1-9]\d*)", how)
    if match is None:
        raise InvalidConfig(f"--reduce {how}: must be {REDUCTIONS}")
    return int(match[1])


def validate_reduction(how: str) -> None:
    """Raise InvalidConfig if the text is no reduction."""
    if how not in ("last", "best"):
        parse_mean_count(how)


def read_runs(path: Path, metric: str, arm_column: str | None = None) -> list[ExternalRun]:
    """Read the runs of a file or folder.

    Args:
        metric: Column, TensorBoard tag or metric of attnlab.
        arm_column: Column whose values are the arms; None if the file holds one arm.

    Raises:
        InvalidConfig: the file cannot be read, lacks the metric or is ambiguous; with the place.
    """
    if not path.exists():
        raise InvalidConfig(f"{path}: no such file or folder")
    if not path.is_dir():
        runs = _read_table(path, metric, arm_column)
    elif arm_column is not None:
        raise InvalidConfig(f"{path}: --arm-column names a column of a table, and this is a folder")
    else:
        runs = _read_folder(path, metric)
    for arm in dict.fromkeys(run.arm for run in runs):
        require_distinct_runs([run for run in runs if run.arm == arm], same_seed=True)
    return runs


def require_distinct_runs(runs: Sequence[ExternalRun], *, same_seed: bool = False) -> None:
    """Check that no run is there twice: by its id, its curve, or a value of eight digits or more.

    Args:
        same_seed: Whether two runs of one seed are one too, as on one side of a comparison.

    Raises:
        InvalidConfig: one is; with both places.
    """
    places: dict[tuple[Any, ...], str] = {}
    for run in runs:
        keys: list[tuple[Any, ...]] = [("run id", run.id)] if run.id is not None else []
        keys += [("seed", run.seed)] if same_seed and run.seed is not None else []
        keys += [("values and the name", run.name, run.values)] if run.name and run.values else []
        if len(run.steps) >= SAME_CURVE_LENGTH:
            keys.append(("curve", run.steps, run.values))
        elif run.values and count_significant_digits(run.values[-1]) >= SAME_VALUE_DIGITS:
            keys.append(("value", run.values[-1]))
        for key in keys:
            if key in places:
                shared = key[0] if key[0] == "curve" else " ".join(map(str, key[:2]))
                raise InvalidConfig(
                    f"{run.place}: has the {shared} of {places[key]}: one run counts once; remove the copy, "
                    "or give each run its own"
                )
            places[key] = run.place


def count_equal_values(runs: Sequence[ExternalRun]) -> int:
    """Runs whose last value another run has too; values of few digits may be equal by chance."""
    counts = Counter(run.values[-1] for run in runs if run.values)
    return sum(count for count in counts.values() if count > 1)


def count_significant_digits(value: float) -> int:
    """Significant digits of the shortest text of a number: 5 of 3.2793."""
    return len(f"{value!r}".partition("e")[0].replace(".", "").strip("-0"))


@dataclass(frozen=True)
class _Row:
    place: str
    cells: dict[str, Any]


def _read_table(path: Path, metric: str, arm_column: str | None) -> list[ExternalRun]:
    suffix = path.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise InvalidConfig(
            f"{path}: cannot read {path.suffix or 'a file without a suffix'}: give a "
            f"{', '.join(TABLE_SUFFIXES)} file, a TensorBoard folder, or a folder of run directories"
        )
    try:
        with open_user_file(path, MAX_TABLE_BYTES) as file:
            rows = list(_iterate_rows(path, file, suffix))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidConfig(f"{path}: {describe_read_error(error)}") from error
    if not rows:
        raise InvalidConfig(f"{path}: has no rows")
    return _build_runs(path, rows, metric, arm_column)


def _iterate_rows(path: Path, file: BinaryIO, suffix: str) -> Iterator[_Row]:
    if suffix == ".parquet":
        yield from _read_parquet(path, file)
        return
    delimiter = DELIMITERS.get(suffix)
    with io.TextIOWrapper(file, "utf-8-sig", newline="" if delimiter else None) as text:
        yield from _read_cells(path, text, delimiter) if delimiter else _read_objects(path, text)


def _read_cells(path: Path, text: TextIO, delimiter: str) -> Iterator[_Row]:
    reader = csv.reader(text, delimiter=delimiter)
    header = next(reader, [])
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise InvalidConfig(f"{path}:1: the column {repeated[0]} is there twice")
    for cells in filter(None, reader):
        if len(cells) != len(header):
            raise InvalidConfig(
                f"{path}:{reader.line_num}: {len(cells)} cells in a table of {len(header)} columns"
            )
        yield _Row(f"{path}:{reader.line_num}", dict(zip(header, cells, strict=True)))


def _read_objects(path: Path, text: TextIO) -> Iterator[_Row]:
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            cells = parse_json(line)
        except ValueError as error:
            raise InvalidConfig(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(cells, dict):
            raise InvalidConfig(f"{path}:{number}: not an object with a name for each value")
        yield _Row(f"{path}:{number}", cells)


def _read_parquet(path: Path, file: BinaryIO) -> Iterator[_Row]:
    import pyarrow as pa  # late: other formats do without
    from pyarrow import parquet as pq

    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise InvalidConfig(
            f"{path}: cannot be read ({describe_read_error(error)}): write it again"
        ) from error
    for number, cells in enumerate(table.to_pylist(), 1):
        yield _Row(f"{path}: row {number}", cells)


def _build_runs(
    path: Path, rows: Sequence[_Row], metric: str, arm_column: str | None = None, *, allows_nan: bool = False
) -> list[ExternalRun]:
    """Build runs from the rows of a table.

    Args:
        allows_nan: Whether a run whose last value is not finite diverged, in formats without a status.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    if arm_column is not None and arm_column not in columns:
        raise InvalidConfig(
            f"{path}: no column {arm_column} (--arm-column){format_suggestions(arm_column, columns)}"
        )
    _reject_summary_rows(rows, columns)
    axis_column = _find_column(columns, AXIS_BY_COLUMN)
    if metric not in columns:
        by_run = {
            name.removesuffix(f" - {metric}"): name for name in columns if name.endswith(f" - {metric}")
        }
        if not by_run:
            raise InvalidConfig(f"{path}: no column {metric} (--metric){format_suggestions(metric, columns)}")
        if axis_column is None or arm_column is not None:
            raise InvalidConfig(
                f"{path}: columns per run, as W&B exports them, need a column Step and no arms"
            )
        is_text = path.suffix.lower() in DELIMITERS  # there an empty cell is no NaN
        curves = [
            row
            for run, column in by_run.items()
            for row in _list_wandb_rows(path, rows, metric, axis_column, run, column)
        ]
        return _build_runs(path, curves, metric, allows_nan=is_text)
    _reject_averages(rows, metric)
    seed_column, status_column = _find_column(columns, ("seed",)), _find_column(columns, STATUS_COLUMNS)
    id_column, name_column = _find_column(columns, ID_COLUMNS), _find_column(columns, NAME_COLUMNS)
    time_column = _find_column(columns, TIME_COLUMNS)
    if not (seed_column or id_column or name_column or axis_column):
        raise InvalidConfig(
            f"{path}: no column says which run a row is: add a column seed or run, or a column step if all "
            "rows are evaluations of one run"
        )
    groups: dict[tuple[str | None, ...], list[_Row]] = {}
    for row in rows:
        arm, label = _get_text(row, arm_column), _get_text(row, id_column or name_column)
        if arm_column is not None and arm is None:
            raise InvalidConfig(f"{row.place}: no arm in the column {arm_column}")
        seed = _parse_seed(row.place, _get_text(row, seed_column)) or _find_seed(label)
        if not (label or seed or axis_column):
            missing = " and ".join(filter(None, (seed_column, id_column or name_column)))
            raise InvalidConfig(f"{row.place}: {missing} is empty, so nothing says which run the row is")
        groups.setdefault((arm, seed, label), []).append(row)
    is_runs_table = bool(status_column and not id_column and (name_column or "").lower() == "name")
    runs = []
    for (arm, seed, label), group in groups.items():
        place = group[0].place
        _require_one_run(group, axis_column, time_column, label if is_runs_table else None)
        if axis_column is not None:
            group = [row for row in group if _get_text(row, axis_column) is not None] or group
            group.sort(key=lambda row: _parse_step(row.place, axis_column, row.cells.get(axis_column)))
        word = _get_text(group[-1], status_column)  # as the run ended
        status = "done" if word is None else _parse_status(group[-1].place, word)
        times = [_parse_time_cell(row.place, time_column, _get_text(row, time_column)) for row in group]
        run = ExternalRun(
            place, arm, seed, status, (), (),
            started=min((time for time in times if time is not None), default=None),
            id=label if id_column else None, name=None if id_column else label,
            axis=AXIS_BY_COLUMN[axis_column.lower()] if axis_column else "",
            rows=len(group),
        )  # fmt: skip
        if status == "done":  # loggers write a row for each of their metrics
            known = [row for row in group if axis_column is None or row.cells.get(metric) not in (None, "")]
            if not known:
                raise InvalidConfig(f"{run.place}: a run without any value of {metric}")
            values = [
                _parse_number(row.place, metric, row.cells.get(metric), finite=not allows_nan)
                for row in known
            ]
            steps = [
                _parse_step(row.place, axis_column, row.cells[axis_column]) for row in known if axis_column
            ]
            run = _add_values(run, steps, values)
        runs.append(run)
    return runs


def _get_text(row: _Row, column: str | None) -> str | None:
    """A cell as text; None if the table has no such column, or nothing there."""
    cell = row.cells.get(column) if column else None
    return None if cell is None or str(cell).strip() == "" else str(cell).strip()


def _require_one_run(
    group: Sequence[_Row], axis_column: str | None, time_column: str | None, shared_name: str | None
) -> None:
    """Check that the rows of one seed or id can be evaluations of one run.

    Args:
        shared_name: A name that several runs may have; None if the rows have an id, or a name of their own.

    Raises:
        InvalidConfig: no axis tells them apart, they began at different times, or they may be several runs.
    """
    if len(group) == 1:
        return
    place, other = group[0].place, group[1].place
    if axis_column is None:
        raise InvalidConfig(
            f"{other}: the run of {place} again: if both are evaluations of one run, name the column that "
            "counts training step, tokens, samples or epoch; else give each run its own seed or run id"
        )
    starts = {_get_text(row, time_column) for row in group} if time_column else set()
    if len(starts) > 1 and time_column and time_column.lower() in START_COLUMNS:
        raise InvalidConfig(
            f"{other}: began at another time than the run of {place} with its name or seed: add a column "
            "with the ids of the runs"
        )
    if shared_name is not None:
        raise InvalidConfig(
            f"{other}: the name {shared_name} is that of {place} too, and several runs may have one name: "
            "export the column ID"
        )


def _reject_summary_rows(rows: Sequence[_Row], columns: Sequence[str]) -> None:
    """Raise InvalidConfig if a row is the mean or deviation of others, as spreadsheets and pandas add it."""
    for column in columns:
        summaries = [row for row in rows if str(row.cells.get(column)).strip().lower() in SUMMARY_WORDS]
        if summaries and len(summaries) < len(rows):
            word = summaries[0].cells[column]
            raise InvalidConfig(
                f"{summaries[0].place}: {column or 'the first cell'}={word}: a summary of rows is no run: "
                "remove it"
            )


def _reject_averages(rows: Sequence[_Row], column: str) -> None:
    """Raise InvalidConfig if W&B has averaged runs or steps, of which a column has the extremes beside it."""
    for row in rows:
        for end in ("__MIN", "__MAX"):
            extreme, value = (_get_text(row, name) for name in (f"{column}{end}", column))
            if extreme is not None and value is not None and extreme != value:
                raise InvalidConfig(
                    f"{row.place}: {column} is {value} and {column}{end} is {extreme}: a mean of runs or "
                    "steps is no run: export without grouping and smoothing"
                )


def _list_wandb_rows(
    path: Path, rows: Sequence[_Row], metric: str, axis_column: str, run: str, column: str
) -> list[_Row]:
    """The rows of one run of a chart exported by W&B, which has a column for each run."""
    _reject_averages(rows, column)
    known = [row.cells for row in rows if row.cells.get(column) not in (None, "")]
    if not known:
        raise InvalidConfig(f"{path}: the column {column} has no values")
    return [
        _Row(f"{path}: {run}", {"run": run, axis_column: cells.get(axis_column), metric: cells[column]})
        for cells in known
    ]


def _add_values(run: ExternalRun, steps: Sequence[int], values: Sequence[float]) -> ExternalRun:
    """The run with its values in the order of the steps; it diverged if its last value is not finite."""
    if repeated := [step for step, following in pairwise(sorted(steps)) if step == following]:
        raise InvalidConfig(
            f"{run.place}: step {repeated[0]} is there twice: add a column `seed` or `run` that tells runs "
            "apart"
        )
    points = sorted(zip(steps, values, strict=True)) if steps else [(0, value) for value in values]
    run = replace(run, rows=len(values))
    if not math.isfinite(points[-1][1]):
        return replace(run, status="diverged")
    for step, value in points:
        if not math.isfinite(value):
            raise InvalidConfig(
                f"{run.place}: step {step}: the value is {value}, and later ones are finite: give a table "
                "with a column `status` that says whether the run diverged"
            )
    return replace(run, steps=tuple(sorted(steps)), values=tuple(value for _, value in points))


def _read_folder(path: Path, metric: str) -> list[ExternalRun]:
    """Read a folder of attnlab's run directories, or of TensorBoard event files."""
    folders = [path, *sorted(child for child in path.rglob("*") if child.is_dir())]
    run_folders = [folder for folder in folders if (folder / "run.json").is_file()]
    if run_folders:
        return [_read_run_directory(folder, metric) for folder in run_folders]
    event_folders = [folder for folder in folders if any(folder.glob("events.out.tfevents.*"))]
    for folder in event_folders:
        siblings = [other.name for other in event_folders if other.parent == folder.parent]
        if len(siblings) > 1 and folder.name.lower() in SPLIT_FOLDERS:
            raise InvalidConfig(
                f"{folder.parent}: {' and '.join(siblings)} are parts of one run: give a folder with the "
                "events of the validation alone"
            )
    if event_folders:
        return [run for folder in event_folders for run in _read_tensorboard(folder, path, metric)]
    raise InvalidConfig(f"{path}: holds neither run directories of attnlab nor event files of TensorBoard")


def _read_run_directory(folder: Path, metric: str) -> ExternalRun:
    from attnlab.store import run_directories  # late: files do without

    result = run_directories.load_run_result(folder)
    if result is None:
        raise InvalidConfig(f"{folder}: {run_directories.describe_result_fault(folder)}")
    moment = _parse_time(result.started)
    seed = None if result.seed is None else str(result.seed)
    status: Status = "done" if result.is_done else "diverged" if result.status == "diverged" else "missing"
    started = moment[0] if moment else None
    run = ExternalRun(str(folder), None, seed, status, (), (), started, result.id, result=result)
    if status != "done":
        return run
    if metric not in result.metrics:
        raise InvalidConfig(f"{folder}: no metric {metric}{format_suggestions(metric, result.metrics)}")
    curve = list[dict[str, Any]]()
    if (file := folder / "curves.parquet").is_file():
        with open_user_file(file, MAX_TABLE_BYTES) as content:
            curve = [row.cells for row in _read_parquet(file, content) if row.cells["name"] == metric]
    steps = [point["step"] for point in curve]
    # the last evaluation of a curve may be on fewer windows than the final one
    numbers = [*(point["value"] for point in curve[:-1]), result.metrics[metric]]
    values = [_parse_number(str(folder), metric, number) for number in numbers]
    return _add_values(replace(run, axis="steps" if steps else ""), steps, values)


def _read_tensorboard(folder: Path, root: Path, metric: str) -> list[ExternalRun]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise InvalidConfig(
            f"{root}: event files need TensorBoard: pip install attnlab[tensorboard]"
        ) from error
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = events.Tags()["scalars"]
    if metric not in tags:
        raise InvalidConfig(f"{folder}: no tag {metric} (--metric){format_suggestions(metric, tags)}")
    name = folder.name if folder != root else None
    rows = [
        _Row(
            str(folder),
            {"run": name, "step": event.step, "wall_time": event.wall_time, metric: event.value},
        )
        for event in events.Scalars(metric)
    ]
    return _build_runs(folder, rows, metric, allows_nan=True)


def _find_column(columns: Iterable[str], names: Iterable[str]) -> str | None:
    """The first column with one of these names, in any case."""
    by_lower = {column.lower(): column for column in columns}
    return next((by_lower[name] for name in names if name in by_lower), None)


def _find_seed(run: str | None) -> str | None:
    match = SEED_IN_NAME.search(run or "")
    return match[1] if match else None


def _parse_seed(place: str, text: str | None) -> str | None:
    """A seed as text; 7.0, as pandas writes integers beside missing cells, is 7."""
    if text is None:
        return None
    match = re.fullmatch(r"(-?\d+)(\.0+)?", text)
    if match is None:
        raise InvalidConfig(f"{place}: seed={text} is not a whole number")
    return match[1]


def _parse_status(place: str, word: str) -> Status:
    status = STATUS_BY_WORD.get(word.lower())
    if status is None:
        raise InvalidConfig(f"{place}: status {word}: unknown{format_suggestions(word, STATUS_BY_WORD)}")
    return status


def _parse_number(place: str, name: str, cell: Any, *, finite: bool = True) -> float:
    if cell in (None, ""):
        raise InvalidConfig(f"{place}: {name} is empty: give a number, or a status in a column `status`")
    try:
        number = float(cell)
    except (TypeError, ValueError):
        raise InvalidConfig(f"{place}: {name}={cell} is not a number") from None
    except OverflowError:
        number = math.inf
    is_finite = math.isfinite(number)
    if is_finite and abs(number) > MAX_VALUE:
        raise InvalidConfig(f"{place}: {name} is {cell} (a number is at most {MAX_VALUE:g}): correct it")
    if finite and not is_finite:
        raise InvalidConfig(
            f"{place}: {name} is {cell}: if the run diverged, write diverged into a column `status`; if "
            "nothing was measured there, leave the cell empty"
        )
    return number


def _parse_time_cell(place: str, column: str | None, text: str | None) -> float | None:
    """A time in seconds since the epoch; without a zone the earliest moment that it can be.

    Raises:
        InvalidConfig: a start that is no time, or in the future.
    """
    moment = _parse_time(text)
    if moment is None:
        if text and column and column.lower() in START_COLUMNS:
            raise InvalidConfig(
                f"{place}: {column}={text} is not a time: give ISO 8601, such as 2025-05-01T10:00:00Z, or "
                "seconds since 1970"
            )
        return None
    time, has_zone = moment
    earliest = time if has_zone else time - timedelta(hours=ZONE_HOURS).total_seconds()
    if earliest > datetime.now(UTC).timestamp():
        raise InvalidConfig(f"{place}: {column}={text} is in the future: correct it, or the clock")
    return earliest


def _parse_time(text: str | None) -> tuple[float, bool] | None:
    """Seconds since the epoch, and whether the zone is known; None for other texts.

    The text is a number of (milli)seconds, or a time in ISO 8601.
    """
    try:
        time = float(text or "")
    except ValueError:
        try:
            moment = datetime.fromisoformat(text or "")
        except ValueError:
            return None
        if moment.tzinfo is None:
            return moment.replace(tzinfo=UTC).timestamp(), False
        return moment.timestamp(), True
    if 1e9 < time < 1e11:
        return time, True
    return (time / 1000, True) if 1e12 < time < 1e14 else None  # others count from the start of the run


def _parse_step(place: str, name: str, cell: Any) -> int:
    number = _parse_number(place, name, cell)
    if number != int(number) or number < 0:
        raise InvalidConfig(
            f"{place}: {name}={cell} is not a number of steps: give whole numbers, or rename the column"
        )
    return int(number)
