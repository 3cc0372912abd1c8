"""Read runs trained elsewhere from CSV, JSONL, Parquet, TensorBoard, W&B exports or run directories.

A table has one row per run, or one row per run and step. Columns are known by name: the metric, and where
present the seed, the step, the run and its status. Whatever is ambiguous is an error with its place: a number
that is not finite, a seed or a step given twice, runs of unequal length.
"""

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyarrow import parquet as pq

from attnlab.errors import InvalidConfig, describe_read_error, format_suggestions
from attnlab.store import run_directories
from attnlab.store.atomic_files import open_user_file, parse_json, read_user_text

Status = Literal["done", "diverged", "missing"]
STEP_COLUMNS = (
    "step", "_step", "global_step", "trainer/global_step", "train/global_step", "iteration", "iter",
    "epoch",  # last: a table may have it beside a step
)  # fmt: skip
RUN_COLUMNS = ("run", "run_id", "id", "name")
STATUS_COLUMNS = ("status", "state")
START_COLUMNS = ("started", "started_at", "created", "created_at")
TIME_COLUMNS = (*START_COLUMNS, "_timestamp", "timestamp", "wall_time")  # the latter may count from the start
STATUS_BY_WORD: dict[str, Status] = {
    **dict.fromkeys(("done", "finished", "completed", "success"), "done"),
    **dict.fromkeys(("diverged", "nan"), "diverged"),
    **dict.fromkeys(("missing", "lost", "crashed", "failed", "killed", "running"), "missing"),
}
SEED_IN_NAME = re.compile(r"(?:^|[^a-zA-Z])seed[=_-]?(\d+)$")  # of a run whose table has no seeds
MAX_TABLE_BYTES = 2**33
MAX_VALUE = 1e150  # of a number: the square of a larger one is no float64
REDUCTIONS = "last, best, or mean:k (the mean of the last k values)"


@dataclass(frozen=True)
class ExternalRun:
    """One run of another program.

    Attributes:
        place: file and row, or folder, for messages.
        seed: None if the file does not give one.
        steps: Steps of the values; empty where the file has one value per run.
        values: Values of the metric, in the order of the steps; empty if the run diverged or is missing.
        started: When the run began or was first logged, in seconds since the epoch; None if the file does not
            say.
    """

    place: str
    arm: str | None
    seed: str | None
    status: Status
    steps: tuple[int, ...]
    values: tuple[float, ...]
    started: float | None = None

    def reduce(self, how: str, lower_is_better: bool | None = None) -> float:
        """One number per run: the last value, the mean of the last k (`mean:k`), or the best."""
        if how == "last":
            return self.values[-1]
        if how == "best":
            return min(self.values) if lower_is_better else max(self.values)
        count = parse_mean_count(how)
        if len(self.values) < count:
            raise InvalidConfig(
                f"{self.place}: --reduce {how} needs {count} values, this run has {len(self.values)}"
            )
        return math.fsum(self.values[-count:]) / count


def digest_runs(runs: Sequence[ExternalRun]) -> str:
    """SHA-256 of the content: seeds, statuses, steps and values, in any order of the runs, in any file."""
    return digest_text("\n".join(sorted(map(_describe_content, runs))))


def shuffle_runs(runs: Sequence[ExternalRun]) -> list[ExternalRun]:
    """The runs in an order that neither the file nor their values choose: that of a hash, as if random."""
    salt = digest_runs(runs)
    return sorted(runs, key=lambda run: digest_text(salt + _describe_content(run)))


def _describe_content(run: ExternalRun) -> str:
    return json.dumps(astuple(replace(run, place="", arm=None, started=None)))


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
    if path.is_dir():
        if arm_column is not None:
            raise InvalidConfig(f"{path}: --arm-column names a column of a table, and this is a folder")
        runs = _read_folder(path, metric)
    else:
        readers: dict[str, Callable[[Path], Iterator[_Row]]] = {
            ".csv": _read_csv, ".jsonl": _read_jsonl, ".ndjson": _read_jsonl, ".parquet": _read_parquet,
        }  # fmt: skip
        reader = readers.get(path.suffix.lower())
        if reader is None:
            raise InvalidConfig(
                f"{path}: cannot read {path.suffix or 'a file without a suffix'}: give a .csv, .jsonl or "
                ".parquet file, a TensorBoard folder, or a folder of run directories"
            )
        rows = list(reader(path))
        if not rows:
            raise InvalidConfig(f"{path}: has no rows")
        runs = _build_runs(path, rows, metric, arm_column)
    _require_unique_seeds(runs)
    return runs


@dataclass(frozen=True)
class _Row:
    place: str
    cells: dict[str, Any]


def _read_csv(path: Path) -> Iterator[_Row]:
    try:
        with open_user_file(path, MAX_TABLE_BYTES) as file:
            reader = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""))
            header = next(reader, [])
            if repeated := sorted({name for name in header if header.count(name) > 1}):
                raise InvalidConfig(f"{path}:1: the column {repeated[0]} is there twice")
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise InvalidConfig(
                        f"{path}:{reader.line_num}: {len(cells)} cells in a table of {len(header)} columns"
                    )
                yield _Row(f"{path}:{reader.line_num}", dict(zip(header, cells, strict=True)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidConfig(f"{path}: {describe_read_error(error)}") from error


def _read_jsonl(path: Path) -> Iterator[_Row]:
    try:
        for number, line in enumerate(read_user_text(path, "utf-8-sig", MAX_TABLE_BYTES).split("\n"), 1):
            if not line.strip():
                continue
            try:
                cells = parse_json(line)
            except ValueError as error:
                raise InvalidConfig(f"{path}:{number}: not JSON: {error}") from error
            if not isinstance(cells, dict):
                raise InvalidConfig(f"{path}:{number}: not an object with a name for each value")
            yield _Row(f"{path}:{number}", cells)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: {describe_read_error(error)}") from error


def _read_parquet(path: Path) -> Iterator[_Row]:
    try:
        with open_user_file(path, MAX_TABLE_BYTES) as file:
            table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise InvalidConfig(
            f"{path}: cannot be read ({describe_read_error(error)}): write it again"
        ) from error
    for number, cells in enumerate(table.to_pylist(), 1):
        yield _Row(f"{path}: row {number}", cells)


def _build_runs(path: Path, rows: Sequence[_Row], metric: str, arm_column: str | None) -> list[ExternalRun]:
    """Build runs from the rows of a table."""
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    if arm_column is not None and arm_column not in columns:
        raise InvalidConfig(
            f"{path}: no column {arm_column} (--arm-column){format_suggestions(arm_column, columns)}"
        )
    step_column = _find_column(columns, STEP_COLUMNS)
    if metric not in columns:
        by_run = {
            name.removesuffix(f" - {metric}"): name for name in columns if name.endswith(f" - {metric}")
        }
        if not by_run:
            raise InvalidConfig(f"{path}: no column {metric} (--metric){format_suggestions(metric, columns)}")
        if step_column is None or arm_column is not None:
            raise InvalidConfig(
                f"{path}: columns per run, as W&B exports them, need a column Step and no arms"
            )
        return [_read_wandb_column(path, rows, step_column, run, name) for run, name in by_run.items()]
    seed_column, run_column = _find_column(columns, ("seed",)), _find_column(columns, RUN_COLUMNS)
    status_column, time_column = _find_column(columns, STATUS_COLUMNS), _find_column(columns, TIME_COLUMNS)

    def get_text(row: _Row, column: str | None) -> str | None:
        cell = row.cells.get(column) if column else None
        return None if cell in (None, "") else str(cell).strip()

    groups: dict[tuple[str | None, ...], list[_Row]] = {}
    for number, row in enumerate(rows):
        arm, seed, run = get_text(row, arm_column), get_text(row, seed_column), get_text(row, run_column)
        if arm_column is not None and arm is None:
            raise InvalidConfig(f"{row.place}: no arm in the column {arm_column}")
        seed = _normalize_seed(seed) or _find_seed(run)
        key = (arm, seed, run) if step_column else (arm, seed, str(number))  # without steps, a row is a run
        groups.setdefault(key, []).append(row)
    runs = []
    for (arm, seed, _), group in groups.items():
        place = group[0].place
        words = {word for row in group if (word := get_text(row, status_column))}
        statuses = {_parse_status(place, word) for word in words} or {"done"}
        status: Status = next(s for s in ("diverged", "missing", "done") if s in statuses)
        times = [_parse_time_cell(row.place, time_column, get_text(row, time_column)) for row in group]
        started = min((time for time in times if time is not None), default=None)
        if status != "done":
            runs.append(ExternalRun(place, arm, seed, status, (), (), started))
            continue
        steps, values = list[int](), list[float]()
        for row in group:
            cell = row.cells.get(metric)
            if step_column is not None and cell in (None, ""):
                continue  # loggers write a row for each of their metrics
            values.append(_parse_number(row.place, metric, cell))
            if step_column is not None:
                steps.append(_parse_step(row.place, step_column, row.cells.get(step_column)))
        if not values:
            raise InvalidConfig(f"{place}: a run without any value of {metric}")
        runs.append(_order_run(place, arm, seed, steps, values, started))
    return runs


def _read_wandb_column(
    path: Path, rows: Sequence[_Row], step_column: str, run: str, column: str
) -> ExternalRun:
    """One run of a chart exported by W&B: steps in one column, each run in a column of its own."""
    known = [row for row in rows if row.cells.get(column) not in (None, "")]
    if not known:
        raise InvalidConfig(f"{path}: the column {column} has no values")
    steps = [_parse_step(row.place, step_column, row.cells.get(step_column)) for row in known]
    values = [_parse_number(row.place, column, row.cells[column], finite=False) for row in known]
    return _order_curve(f"{path}: {run}", _find_seed(run), steps, values)


def _order_curve(
    place: str,
    seed: str | None,
    steps: Sequence[int],
    values: Sequence[float],
    started: float | None = None,
) -> ExternalRun:
    """A run of a format without statuses: it diverged if its last value is not finite."""
    run = _order_run(place, None, seed, steps, values, started)
    if not math.isfinite(run.values[-1]):
        return replace(run, status="diverged", steps=(), values=())
    for step, value in zip(run.steps, run.values, strict=True):
        if not math.isfinite(value):
            raise InvalidConfig(
                f"{place}: step {step}: the value is {value}, and later ones are finite: give a table with a "
                "column `status` that says whether the run diverged"
            )
    return run


def _order_run(
    place: str,
    arm: str | None,
    seed: str | None,
    steps: Sequence[int],
    values: Sequence[float],
    started: float | None = None,
) -> ExternalRun:
    """A finished run, its values in the order of the steps."""
    if repeated := [
        step for step, following in zip(sorted(steps), sorted(steps)[1:], strict=False) if step == following
    ]:
        raise InvalidConfig(
            f"{place}: step {repeated[0]} is there twice: add a column `seed` or `run` that tells runs apart"
        )
    order = sorted(range(len(steps)), key=steps.__getitem__) if steps else range(len(values))
    ordered = tuple(values[index] for index in order)
    return ExternalRun(place, arm, seed, "done", tuple(sorted(steps)), ordered, started)


def _read_folder(path: Path, metric: str) -> list[ExternalRun]:
    """Read a folder of attnlab's run directories, or of TensorBoard event files."""
    folders = [path, *sorted(child for child in path.rglob("*") if child.is_dir())]
    run_folders = [folder for folder in folders if (folder / "run.json").is_file()]
    if run_folders:
        return [_read_run_directory(folder, metric) for folder in run_folders]
    event_folders = [folder for folder in folders if any(folder.glob("events.out.tfevents.*"))]
    if event_folders:
        return [_read_tensorboard(folder, path, metric) for folder in event_folders]
    raise InvalidConfig(f"{path}: holds neither run directories of attnlab nor event files of TensorBoard")


def _read_run_directory(folder: Path, metric: str) -> ExternalRun:
    result = run_directories.load_run_result(folder)
    if result is None:
        raise InvalidConfig(f"{folder}: {run_directories.describe_result_fault(folder)}")
    seed, started = None if result.seed is None else str(result.seed), _parse_time(result.started)
    if not result.is_done:
        status: Status = "diverged" if result.status == "diverged" else "missing"
        return ExternalRun(str(folder), None, seed, status, (), (), started)
    if metric not in result.metrics:
        raise InvalidConfig(f"{folder}: no metric {metric}{format_suggestions(metric, result.metrics)}")
    curve = list[dict[str, Any]]()
    if (folder / "curves.parquet").is_file():
        points = (row.cells for row in _read_parquet(folder / "curves.parquet"))
        curve = [point for point in points if point["name"] == metric]
    steps = [point["step"] for point in curve]
    # the last evaluation of a curve may be on fewer windows than the final one
    numbers = [*(point["value"] for point in curve[:-1]), result.metrics[metric]]
    values = [_parse_number(str(folder), metric, number) for number in numbers]
    return _order_run(str(folder), None, seed, steps, values, started)


def _read_tensorboard(folder: Path, root: Path, metric: str) -> ExternalRun:
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
    scalars = events.Scalars(metric)
    name = folder.name if folder != root else None
    started = min(event.wall_time for event in scalars)
    steps, values = [event.step for event in scalars], [event.value for event in scalars]
    return _order_curve(str(folder), _find_seed(name), steps, values, started)


def _find_column(columns: Iterable[str], names: Sequence[str]) -> str | None:
    """The first column with one of these names, in any case."""
    by_lower = {column.lower(): column for column in columns}
    return next((by_lower[name] for name in names if name in by_lower), None)


def _find_seed(run: str | None) -> str | None:
    match = SEED_IN_NAME.search(run or "")
    return match[1] if match else None


def _normalize_seed(seed: str | None) -> str | None:
    """A seed as text; 7.0, as pandas writes integers beside missing cells, is 7."""
    return seed and re.sub(r"^(-?\d+)\.0+$", r"\1", seed)


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
    if (finite and not is_finite) or (is_finite and abs(number) > MAX_VALUE):
        limit = f" (a number is at most {MAX_VALUE:g})" if is_finite else ""
        raise InvalidConfig(f"{place}: {name} is {cell}{limit}: write diverged into a column `status`")
    return number


def _parse_time_cell(place: str, column: str | None, text: str | None) -> float | None:
    time = _parse_time(text)
    if time is None and text and column and column.lower() in START_COLUMNS:
        raise InvalidConfig(
            f"{place}: {column}={text} is not a time: give ISO 8601, such as 2025-05-01T10:00:00Z, or "
            "seconds since 1970"
        )
    return time


def _parse_time(text: str | None) -> float | None:
    """Seconds since the epoch, from a number of (milli)seconds or a time in ISO 8601; else None."""
    try:
        time = float(text or "")
    except ValueError:
        try:
            moment = datetime.fromisoformat(text or "")
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if 1e9 < time < 1e11:
        return time
    return time / 1000 if 1e12 < time < 1e14 else None  # other numbers count from the start of the run


def _parse_step(place: str, name: str, cell: Any) -> int:
    number = _parse_number(place, name, cell)
    if number != int(number) or number < 0:
        raise InvalidConfig(
            f"{place}: {name}={cell} is not a number of steps: give whole numbers, or rename the column"
        )
    return int(number)


def _require_unique_seeds(runs: Sequence[ExternalRun]) -> None:
    places: dict[tuple[str | None, str], str] = {}
    for run in runs:
        if run.seed is not None:
            earlier = places.setdefault((run.arm, run.seed), run.place)
            if earlier != run.place:
                raise InvalidConfig(
                    f"{run.place}: seed {run.seed} is that of {earlier} too: give each run its own"
                )
