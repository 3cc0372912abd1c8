"""The question that is put to runs of A and B, and its declaration in a file before the runs exist."""

import json
import math
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from attnlab import stats
from attnlab.errors import InvalidConfig
from attnlab.external.result_files import ExternalRun, validate_reduction
from attnlab.store.atomic_files import parse_json, read_user_text
from attnlab.store.fingerprint import compute_digest
from attnlab.store.run_schema import Direction, FrozenModel, convert_validation_error


def _require_looks(looks: "Looks") -> "Looks":
    return looks if isinstance(looks, str) else parse_looks(",".join(map(str, looks)))


def _require_reduction(how: str) -> str:
    validate_reduction(how)
    return how


Looks = Literal["anytime", "once"] | tuple[int, ...]


class Question(FrozenModel):
    """Is B better than A by more than the margin?

    Attributes:
        margin: Smallest difference that matters, in the metric's unit.
        reduce: How a run becomes one number (`ExternalRun.reduce`).
        looks: "anytime": the verdict holds however often, and for whatever reason, runs were added. A tuple:
            numbers of runs per side, lost ones included, of one or several interim analyses. "once": any one
            number of runs that was set before the first run.
    """

    metric: str
    lower_is_better: bool
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    reduce: Annotated[str, AfterValidator(_require_reduction)] = "last"
    looks: Annotated[Looks, AfterValidator(_require_looks)] = "anytime"

    @property
    def direction(self) -> Direction:
        """Which values of the metric are better."""
        return "lower" if self.lower_is_better else "higher"

    @property
    def region(self) -> tuple[float, float]:
        """The differences B - A for which the answer is yes."""
        return (-math.inf, -self.margin) if self.lower_is_better else (self.margin, math.inf)

    def get_value(self, run: ExternalRun) -> float:
        """The number of a run; infinite if it diverged."""
        if run.status == "done":
            return run.reduce(self.reduce, self.lower_is_better)
        return math.inf if self.lower_is_better else -math.inf

    def select_rule(
        self, counts: tuple[int, int]
    ) -> stats.AnytimeValid | stats.GroupSequential | stats.FixedSample:
        """The stopping rule at these numbers of runs of A and of B.

        Raises:
            InvalidConfig: the interim analyses are at other numbers.
        """
        if self.looks == "anytime":
            return stats.AnytimeValid()
        if self.looks == "once":
            return stats.FIXED_SAMPLE
        assert not isinstance(self.looks, str)
        if counts[0] != counts[1] or counts[0] not in self.looks:
            raise InvalidConfig(
                f"A has {counts[0]} runs and B {counts[1]}: the interim analyses are at "
                f"{format_looks(self.looks)} per side, and a verdict at any other number errs more often"
            )
        return stats.GroupSequential(self.looks, self.looks.index(counts[0]))


class Declaration(FrozenModel):
    """A question, the files that will answer it, and when it was asked.

    Attributes:
        files: The words of the command: two files or folders, or one file with an arm column.
        declared: Time in ISO 8601, UTC.
        digest: SHA-256 of the other fields: a later edit shows.
    """

    question: Question
    files: tuple[str, ...]
    arm_column: str | None
    declared: str
    digest: str

    @property
    def seconds(self) -> float:
        """Time of the declaration, in seconds since the epoch."""
        return datetime.fromisoformat(self.declared).timestamp()

    def list_differences(
        self, question: dict[str, Any], files: Sequence[str], arm_column: str | None
    ) -> list[str]:
        """Settings of a command that differ from the declared ones; it may leave some out (None)."""
        declared = dict(self.question)
        differences = [
            f"{key.replace('_', ' ')} {_format_setting(value)}, declared {_format_setting(declared[key])}"
            for key, value in question.items()
            if value is not None and value != declared[key]
        ]
        if tuple(map(os.path.normpath, files)) != tuple(map(os.path.normpath, self.files)):
            differences.append(f"files {' '.join(files)}, declared {' '.join(self.files)}")
        if arm_column is not None and arm_column != self.arm_column:
            differences.append(f"arm column {arm_column}, declared {self.arm_column}")
        return differences

    def list_earlier(self, runs: Sequence[ExternalRun]) -> list[str]:
        """Reasons why results may have been known at the declaration: files and runs from before it."""
        reasons = []
        for file in self.files:
            if Path(file).is_file() and (modified := Path(file).stat().st_mtime) < self.seconds:
                reasons.append(f"{file} is from {_format_time(modified)}")
        early = [run for run in runs if run.started is not None and run.started < self.seconds]
        if early:
            first = min(early, key=lambda run: run.started or 0.0)
            reasons.append(
                f"{len(early)} of {len(runs)} runs began before it, {first.place} at "
                f"{_format_time(first.started or 0.0)}"
            )
        return [f"{reason}; the declaration is from {self.declared}" for reason in reasons]


def parse_looks(text: str) -> Looks:
    """Read `--looks`: anytime, once, or increasing numbers of runs per side, such as 4,8,12.

    Raises:
        InvalidConfig: anything else.
    """
    if text == "anytime":
        return "anytime"
    if text == "once":
        return "once"
    if re.fullmatch(r"\d{1,6}(,\d{1,6})*", text):
        counts = tuple(map(int, text.split(",")))
        if counts[0] >= 2 and all(a < b for a, b in pairwise(counts)):
            return counts
    raise InvalidConfig(
        f"--looks {text}: give anytime, once, or increasing numbers of runs per side from 2, such as 4,8,12"
    )


def format_looks(looks: Looks) -> str:
    """The interim analyses in words, as in "4, 8 and 12 runs"."""
    if isinstance(looks, str):
        return looks
    *first, last = map(str, looks)
    return f"{', '.join(first)} and {last} runs" if first else f"{last} runs"


def write_declaration(
    path: Path, question: Question, files: Sequence[str], arm_column: str | None
) -> Declaration:
    """Declare a question in a new file.

    Raises:
        InvalidConfig: results exist already, the number of runs is open, or the file cannot be written.
    """
    if question.looks == "once":
        raise InvalidConfig("--looks once: a declaration names the number of runs, as in --looks 20")
    if existing := next((file for file in files if Path(file).exists()), None):
        raise InvalidConfig(
            f"{existing} exists: {path} would come after results. Declare before the runs, or judge without "
            "--declare, as EXPLORATORY"
        )
    content = {
        "question": question.to_dict(),
        "files": list(files),
        "arm_column": arm_column,
        "declared": format_now(),
    }
    content["digest"] = compute_digest(content, 64)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise InvalidConfig(f"--declare {path}: {error.strerror}") from error
    return load_declaration(path)


def load_declaration(path: Path) -> Declaration:
    """Read a declaration.

    Raises:
        InvalidConfig: it cannot be read, or was edited after it was written.
    """
    try:
        content = parse_json(read_user_text(path))
        declaration = Declaration.model_validate(content)
        datetime.fromisoformat(declaration.declared)
    except OSError as error:
        raise InvalidConfig(f"--declare {path}: {error.strerror}") from error
    except ValueError as error:
        if isinstance(error, ValidationError):
            error = convert_validation_error(error, "declaration")
        raise InvalidConfig(f"--declare {path}: not a declaration of judge ({error})") from error
    if content.pop("digest") != compute_digest(content, 64):
        raise InvalidConfig(f"--declare {path}: its digest is not that of its content: it was edited")
    return declaration


def format_now() -> str:
    """The time in ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _format_setting(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
