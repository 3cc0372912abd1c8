"""Many candidates against a champion: a log that bounds the false discoveries over its whole life.

The log is a file of JSON lines: the question and the error budget, then a record per tested candidate, then
confirmations. Lines are only appended, under a lock, and each has the digest of the line before it.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from attnlab import stats
from attnlab.errors import InvalidConfig
from attnlab.external.judgment import Judgment
from attnlab.external.question import Question
from attnlab.store.atomic_files import append_line

Procedure = Literal["online", "batch"]


@dataclass(frozen=True)
class CandidateTest:
    """One candidate of a log.

    Attributes:
        test: Its number, from 1.
        champion, candidate: Words of the command.
        digests: SHA-256 of the runs of champion and candidate.
        seeds: Seeds of both, without repeats.
        estimate: Difference, candidate minus champion; None if a run diverged.
        e_value: Evidence that the candidate is better by more than the margin.
        threshold: The e-value that it needed.
    """

    test: int
    champion: str
    candidate: str
    digests: tuple[str, str]
    seeds: tuple[str, ...]
    runs: tuple[int, int]
    estimate: float | None
    e_value: float
    threshold: float
    accepted: bool
    time: str


@dataclass
class CandidateLog:
    """The content of a log.

    Attributes:
        rate: Largest expected share of false candidates among the accepted ones.
        procedure: "online" tests candidates as they come; "batch" tests all at once and takes no more.
        last_digest: SHA-256 of the last line.
    """

    path: Path
    question: Question
    rate: float
    procedure: Procedure
    tests: list[CandidateTest] = field(default_factory=list)
    confirmations: list[dict[str, Any]] = field(default_factory=list)
    last_digest: str = ""

    @property
    def discoveries(self) -> int:
        return sum(test.accepted for test in self.tests)

    @property
    def next_level(self) -> float:
        """Level of the next candidate, for "online"."""
        return stats.compute_online_level(len(self.tests) + 1, self.discoveries, self.rate)

    def find_test(self, digests: tuple[str, str]) -> CandidateTest | None:
        """The earlier test of the same runs, which spends nothing twice."""
        return next((test for test in self.tests if test.digests == digests), None)

    def find_winner(self, candidate: str) -> CandidateTest:
        """The last accepted test of a candidate.

        Raises:
            InvalidConfig: the log has no such test, or it was not accepted.
        """
        tests = [test for test in self.tests if test.candidate == candidate]
        if not tests:
            names = ", ".join(dict.fromkeys(test.candidate for test in self.tests)) or "none"
            raise InvalidConfig(f"--confirm {candidate}: {self.path} has no such candidate: {names}")
        accepted = [test for test in tests if test.accepted]
        if not accepted:
            raise InvalidConfig(
                f"--confirm {candidate}: it was not accepted (e-value {tests[-1].e_value:.3g}, needed "
                f"{tests[-1].threshold:.3g}): only winners are confirmed"
            )
        return accepted[-1]

    def append(self, kind: str, content: dict[str, Any]) -> None:
        """Append a record; the caller holds the lock (`open_log`)."""
        line = json.dumps({"kind": kind, **content, "previous": self.last_digest})
        append_line(self.path, line)
        self.last_digest = _digest(line)

    def test_candidates(self, champion: str, candidates: Sequence["Candidate"]) -> list[CandidateTest]:
        """Test candidates in their order, and append a record for each; an earlier test is returned as it is.

        Raises:
            InvalidConfig: the log is a batch that was tested.
        """
        new = [*{each.digests: each for each in candidates if self.find_test(each.digests) is None}.values()]
        if self.procedure == "batch":
            if self.tests and new:
                raise InvalidConfig(
                    f"{self.path}: its batch of {len(self.tests)} candidates was tested: start another log "
                    f"for {', '.join(each.name for each in new)}"
                )
            accepted = stats.select_discoveries([each.e_value for each in new], self.rate)
            count = max(1, sum(accepted))
            threshold = len(new) / (self.rate * count)
            for each, is_accepted in zip(new, accepted, strict=True):
                self._add_test(champion, each, threshold, is_accepted)
        else:
            for each in new:
                threshold = 1 / self.next_level
                self._add_test(champion, each, threshold, each.e_value >= threshold)
        return [test for each in candidates if (test := self.find_test(each.digests))]

    def _add_test(self, champion: str, each: "Candidate", threshold: float, accepted: bool) -> None:
        test = CandidateTest(
            len(self.tests) + 1, champion, each.name, each.digests, each.seeds, each.runs, each.estimate,
            each.e_value, threshold, accepted, get_time(),
        )  # fmt: skip
        self.append("test", asdict(test))
        self.tests.append(test)


@dataclass(frozen=True)
class Candidate:
    """A candidate that is to be tested; the fields are those of `CandidateTest`."""

    name: str
    digests: tuple[str, str]
    seeds: tuple[str, ...]
    runs: tuple[int, int]
    estimate: float | None
    e_value: float


def compute_evalue(judgment: Judgment, question: Question) -> float:
    """E-value of "B is better than A by more than the margin", from the judgment's runs.

    Runs are paired by seed, or else in the order of the files: runs of one side are exchangeable, so any
    pairing that does not look at the values is valid. After a divergence the order decides.
    """
    sign = -1 if question.lower_is_better else 1
    pairs = zip(*judgment.values, strict=False)
    gains = [math.nan if a == b else sign * (b - a) - question.margin for a, b in pairs]
    finite = [gain for gain in gains if math.isfinite(gain)]
    if len(finite) < len(gains):
        return stats.compute_sign_evalue([gain > 0 for gain in gains])
    mean = sum(gains) / len(gains)
    spread = math.sqrt(sum((gain - mean) ** 2 for gain in gains))
    values = [value for side in judgment.values for value in side]
    return 1.0 if stats.is_rounding_error(spread, values) else stats.compute_t_evalue(gains)


@contextmanager
def open_log(
    path: Path, question: Question | None, rate: float | None, procedure: Procedure | None
) -> Iterator[CandidateLog]:
    """Hold the lock of a log and yield its content; a new log takes the given settings.

    Args:
        question: None takes that of the log.
        rate, procedure: None takes those of the log, or 5% and "online" for a new one.

    Raises:
        InvalidConfig: the log cannot be read, was edited, or has other settings; a new log has no question.
    """
    if not path.parent.is_dir():
        raise InvalidConfig(f"--log {path}: no such folder")
    with FileLock(f"{path}.lock"):
        if path.exists() and path.stat().st_size:
            log = load_log(path)
            _require_settings(log, question, rate, procedure)
        elif question is None:
            raise InvalidConfig(f"--log {path}: no such log: start it with --champion")
        else:
            log = CandidateLog(path, question, 0.05 if rate is None else rate, procedure or "online")
            looks = question.looks if isinstance(question.looks, str) else list(question.looks)
            log.append(
                "log",
                {
                    "question": asdict(question) | {"looks": looks},
                    "rate": log.rate,
                    "procedure": log.procedure,
                    "time": get_time(),
                },
            )
        yield log


def load_log(path: Path) -> CandidateLog:
    """Read a log.

    Raises:
        InvalidConfig: a line cannot be read, or is not the successor of the line before it; with its number.
    """
    log: CandidateLog | None = None
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"--log {path}: {error}") from error
    complete = lines[:-1]  # a last line without its end was interrupted, and nothing was reported from it
    previous = ""
    for number, line in enumerate(complete, 1):
        try:
            record = json.loads(line)
            kind = record.pop("kind")
            if record.pop("previous") != previous:
                raise InvalidConfig(
                    f"{path}:{number}: does not follow the line before it: a line was edited, removed or "
                    "added by hand. Restore the log, or start another"
                )
            if kind == "log":
                question = record["question"]
                looks = question["looks"]
                question = Question(
                    **question | {"looks": tuple(looks) if isinstance(looks, list) else looks}
                )
                log = CandidateLog(path, question, record["rate"], record["procedure"])
            elif log is None:
                raise InvalidConfig(f"{path}:{number}: the first line of a log is the question")
            elif kind == "test":
                pairs = {key: tuple(record[key]) for key in ("digests", "seeds", "runs")}
                log.tests.append(CandidateTest(**record | pairs))
            else:
                log.confirmations.append(record)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number < len(complete) and not line.endswith("}"):
                continue  # interrupted while it was written; the next line follows the one before it
            raise InvalidConfig(f"{path}:{number}: not a record of judge --log ({error!r})") from error
        previous = _digest(line)
    if log is None:
        raise InvalidConfig(f"--log {path}: not a log of judge")
    log.last_digest = previous
    return log


def get_time() -> str:
    """Now, in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _require_settings(
    log: CandidateLog, question: Question | None, rate: float | None, procedure: Procedure | None
) -> None:
    """Raise InvalidConfig if a command asks other than the log."""
    asked = asdict(question) if question else {}
    known = asdict(log.question) | {"rate": log.rate, "procedure": log.procedure}
    asked |= {
        key: value
        for key, value in {"rate": rate, "procedure": procedure}.items()
        if value is not None
    }  # fmt: skip
    differences = [
        f"{key.replace('_', ' ')} {value}, the log has {known[key]}"
        for key, value in asked.items()
        if value != known[key]
    ]
    if differences:
        raise InvalidConfig(f"--log {log.path}: {'; '.join(differences)}: another question takes another log")


def _digest(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
