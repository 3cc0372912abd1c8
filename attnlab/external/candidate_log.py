"""Many candidates against a champion: a log that bounds the false discoveries over its whole life.

The log is a file of JSON lines: the question and the error budget, then the tests of each command, and
confirmations. Lines are only appended, under a lock, and each has the digest of the line before it.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout
from pydantic import ValidationError

from attnlab import stats
from attnlab.errors import InvalidConfig, describe_read_error
from attnlab.external.judgment import Judgment
from attnlab.external.question import Question, format_now
from attnlab.external.result_files import digest_text
from attnlab.store.atomic_files import append_line, describe_special_file, parse_json, read_user_text
from attnlab.store.run_schema import FrozenModel, convert_validation_error

Procedure = Literal["online", "batch"]
DEFAULT_RATE = 0.05
LOCK_SECONDS = 60  # a command holds the lock for a few


class CandidateTest(FrozenModel):
    """One candidate of a log.

    Attributes:
        test: Its number, from 1; 0 if it was not tested.
        champion, candidate: Words of the command.
        digests: SHA-256 of the runs of champion and candidate.
        seeds: Seeds of both, without repeats.
        runs: Runs of champion and candidate, and the pairs that were compared.
        estimate: Difference, candidate minus champion; None if a run diverged.
        e_value: Evidence that the candidate is better by more than the margin.
        largest_e_value: The e-value that this number of pairs cannot exceed.
        threshold: The e-value that it needed.
    """

    champion: str
    candidate: str
    digests: tuple[str, str]
    seeds: tuple[str, ...]
    runs: tuple[int, int, int]
    estimate: float | None
    e_value: float
    largest_e_value: float
    test: int = 0
    threshold: float = math.inf
    accepted: bool = False
    time: str = ""

    def describe_shortage(self) -> str:
        """Why a candidate could not be accepted, and how many runs it needs."""
        count = next(n for n in range(2, 1000) if stats.find_largest_evalue(n) >= self.threshold)
        return (
            f"{self.candidate}: {self.runs[2]} pairs of runs give an e-value of at most "
            f"{self.largest_e_value:.3g}, and it needs {self.threshold:.3g}: train {count} a side or more, "
            "with the champion's seeds"
        )


@dataclass
class CandidateLog:
    """The content of a log.

    Attributes:
        rate: Largest expected proportion of false candidates among the accepted ones.
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
    def next_threshold(self) -> float:
        """The e-value that the next candidate needs, for "online"."""
        return 1 / stats.compute_online_level(len(self.tests) + 1, self.discoveries, self.rate)

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
        records = [(kind, content)]
        if not self.last_digest:  # a new log, of which nothing is on disk yet
            header = {"question": self.question.to_dict(), "rate": self.rate, "procedure": self.procedure}
            records.insert(0, ("log", header | {"time": format_now()}))
        lines = list[str]()
        for kind, content in records:
            line = json.dumps({"kind": kind, **content, "previous": self.last_digest}, allow_nan=False)
            self.last_digest = digest_text(line)
            lines.append(line)
        append_line(self.path, "\n".join(lines))

    def test_candidates(self, candidates: Sequence[CandidateTest]) -> list[CandidateTest]:
        """Test candidates in their order, and append one record; an earlier test is returned as it is.

        A candidate that has too few runs to be accepted is returned without a number: it was not tested.

        Raises:
            InvalidConfig: the champion is neither the first nor a confirmed winner, the log is a batch that
                was tested, or no new candidate (in a batch, not each) has enough runs to be accepted. Nothing
                was appended.
        """
        self._require_known_champion(candidates)
        new = [*{each.digests: each for each in candidates if self.find_test(each.digests) is None}.values()]
        if self.procedure == "batch" and self.tests and new:
            raise InvalidConfig(
                f"{self.path}: its batch of {len(self.tests)} candidates was tested: start another log "
                f"for {', '.join(each.candidate for each in new)}"
            )
        count = len(self.tests)
        left_out = self._add_batch(new) if self.procedure == "batch" else self._add_in_turn(new)
        if left_out and len(self.tests) == count:
            raise InvalidConfig(left_out[0].describe_shortage())
        if new:
            self.append("tests", {"tests": [test.to_dict() for test in self.tests[count:]]})
        untested = {each.digests: each for each in left_out}
        return [self.find_test(each.digests) or untested[each.digests] for each in candidates]

    def _require_known_champion(self, candidates: Sequence[CandidateTest]) -> None:
        """Raise InvalidConfig unless candidates meet the first champion, or a confirmed winner."""
        if not self.tests:
            return
        known = {self.tests[0].digests[0]}
        known |= {record["digests"][1] for record in self.confirmations if record["claim"] == "SUPPORTED"}
        for each in candidates:
            if each.digests[0] not in known:
                raise InvalidConfig(
                    f"{each.champion}: neither the champion's runs of {self.path} nor the fresh runs that "
                    "confirmed a winner: use one of these, or start another log"
                )

    def _add_in_turn(self, new: Sequence[CandidateTest]) -> list[CandidateTest]:
        """Test the candidates that can reach their thresholds; return the others."""
        left_out = []
        for each in new:
            threshold = self.next_threshold
            if each.largest_e_value < threshold:
                left_out.append(each.model_copy(update={"threshold": threshold}))
            else:
                self._add(each, threshold, each.e_value >= threshold)
        return left_out

    def _add_batch(self, new: Sequence[CandidateTest]) -> list[CandidateTest]:
        """Test all candidates; or none, if some cannot be accepted whatever the others are: return these."""
        lowest = 1 / self.rate
        if short := [
            each.model_copy(update={"threshold": lowest}) for each in new if each.largest_e_value < lowest
        ]:
            return short
        accepted = stats.select_discoveries([each.e_value for each in new], self.rate)
        threshold = len(new) / (self.rate * max(1, sum(accepted)))
        for each, is_accepted in zip(new, accepted, strict=True):
            self._add(each, threshold, is_accepted)
        return []

    def _add(self, each: CandidateTest, threshold: float, accepted: bool) -> None:
        test = {"test": len(self.tests) + 1, "threshold": threshold, "accepted": accepted}
        self.tests.append(each.model_copy(update=test | {"time": format_now()}))


def compute_evalues(judgment: Judgment, question: Question) -> tuple[float, float]:
    """E-value of "B is better than A by more than the margin", and the largest of as many pairs.

    Pairs are by seed, or else random. After a divergence the order decides.
    """
    sign = -1 if question.lower_is_better else 1
    count = len(judgment.pairs)
    if any(math.isinf(value) for pair in judgment.pairs for value in pair):
        won = [sign * (b - a) > question.margin for a, b in judgment.pairs]  # false if both diverged
        return stats.compute_sign_evalue(won), stats.compute_sign_evalue([True] * count)
    gains = [sign * (b - a) - question.margin for a, b in judgment.pairs]
    mean = sum(gains) / count
    spread = math.sqrt(sum((gain - mean) ** 2 for gain in gains))
    values = [value for pair in judgment.pairs for value in pair]
    e_value = 1.0 if stats.is_rounding_error(spread, values) else stats.compute_t_evalue(gains)
    return e_value, stats.find_largest_evalue(count)


@contextmanager
def open_log(
    path: Path, question: Question | None, rate: float | None, procedure: Procedure | None
) -> Iterator[CandidateLog]:
    """Hold the lock of a log and yield its content; a new log takes the given settings.

    Args:
        question: None takes that of the log.
        rate, procedure: None takes those of the log, or 5% and "online" for a new one.

    Raises:
        InvalidConfig: the log cannot be read or locked, was edited, or has other settings; a new log has no
            question.
    """
    if not path.parent.is_dir():
        raise InvalidConfig(f"--log {path}: no such folder")
    if kind := describe_special_file(path):
        raise InvalidConfig(f"--log {path}: is {kind}, not a regular file")
    lock = FileLock(f"{path}.lock", timeout=LOCK_SECONDS)
    try:
        Path(lock.lock_file).touch()  # FileLock waits for its time where no file can be created
        lock.acquire()
    except Timeout as error:
        raise InvalidConfig(
            f"--log {path}: another command has held {path}.lock for {LOCK_SECONDS} s: try again later"
        ) from error
    except OSError as error:
        raise InvalidConfig(f"--log {path}: {error.strerror}") from error
    try:
        yield _load_or_start_log(path, question, rate, procedure)
    finally:
        lock.release()


def load_log(path: Path) -> CandidateLog:
    """Read a log.

    Raises:
        InvalidConfig: a line cannot be read, or is not the successor of the line before it; with its number.
    """
    try:
        lines = read_user_text(path).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"--log {path}: {describe_read_error(error)}") from error
    complete = lines[:-1]  # a last line without its end was interrupted, and nothing was reported from it
    log: CandidateLog | None = None
    previous = ""
    for number, line in enumerate(complete, 1):
        place = f"{path}:{number}"
        try:
            record = parse_json(line)
            kind, follows = record.pop("kind"), record.pop("previous")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            if number < len(complete) and not line.endswith("}"):
                continue  # interrupted while it was written; the next line follows the one before it
            raise InvalidConfig(f"{place}: not a record of judge --log ({error!r})") from error
        if follows != previous or (kind == "log") != (log is None):
            raise InvalidConfig(
                f"{place}: does not follow the line before it: a line was edited, removed or added by hand. "
                "Restore the log, or start another"
            )
        try:
            if log is None:
                rate, procedure = record["rate"], record["procedure"]
                if not (isinstance(rate, float) and 0 < rate < 1) or procedure not in get_args(Procedure):
                    raise ValueError(f"rate {rate}, procedure {procedure}")
                log = CandidateLog(path, Question.model_validate(record["question"]), rate, procedure)
            elif kind == "tests":
                log.tests += map(CandidateTest.model_validate, record["tests"])
            elif kind == "confirmation":
                log.confirmations.append(record)
            else:
                raise ValueError(f"kind {kind}")
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, ValidationError):
                error = convert_validation_error(error, kind)
            raise InvalidConfig(f"{place}: not a record of judge --log ({error!r})") from error
        previous = digest_text(line)
    if log is None:
        raise InvalidConfig(f"--log {path}: not a log of judge")
    log.last_digest = previous
    return log


def _load_or_start_log(
    path: Path, question: Question | None, rate: float | None, procedure: Procedure | None
) -> CandidateLog:
    if path.exists() and path.stat().st_size:
        log = load_log(path)
        _require_settings(log, question, rate, procedure)
        return log
    if question is None:
        raise InvalidConfig(f"--log {path}: no such log: start it with --champion")
    return CandidateLog(path, question, DEFAULT_RATE if rate is None else rate, procedure or "online")


def _require_settings(
    log: CandidateLog, question: Question | None, rate: float | None, procedure: Procedure | None
) -> None:
    """Raise InvalidConfig if a command asks other than the log."""
    asked = question.to_dict() if question else {}
    asked |= {"rate": rate, "procedure": procedure}
    known = log.question.to_dict() | {"rate": log.rate, "procedure": log.procedure}
    differences = [
        f"{key.replace('_', ' ')} {value}, the log has {known[key]}"
        for key, value in asked.items()
        if value not in (None, known[key])
    ]
    if differences:
        raise InvalidConfig(f"--log {log.path}: {'; '.join(differences)}: another question takes another log")
