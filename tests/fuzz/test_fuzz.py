"""Random command lines are each rejected in one line, or train for two steps without a crash."""

import collections
import os
import resource
import shutil
import signal
import time
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from forked_command import Ending, import_verbs, run_forked
from hostile_attempts import Attempt, draw_attempt
from hydra.errors import HydraException
from in_process_runs import plan_runs, train_two_steps
from omegaconf.errors import OmegaConfBaseException
from random_lines import draw_line
from sampling import FULL
from workplace import WORDS, make_workplace, take_snapshot

from attnlab.cli.hydra_errors import format_hydra_error
from attnlab.sweep.execute import submission

torch.set_num_threads(1)
COUNT = int(os.environ.get("FUZZ", "100" if FULL else "60"))
FIRST = int(os.environ.get("FUZZ_FROM", "0"))
SECONDS = 60
ATTEMPTS = int(os.environ.get("FUZZ_ATTEMPTS", "400" if FULL else "150"))
ATTEMPTS_FROM = int(os.environ.get("FUZZ_ATTEMPTS_FROM", "0"))
MEMORY = 12 * 2**30


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "book.txt").write_text(WORDS)
    (tmp_path / "names.txt").write_text(
        "\n".join(f"{a}{b}{c}" for a in "abcde" for b in "fghi" for c in "jkl")
    )
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "part.txt").write_text(WORDS)
    return tmp_path


def try_line(line: list[str], folder: Path) -> str:
    """Plan and train a command line; return `refused: ...`, `trained` or `diverged`.

    Any other exception is a fault.
    """
    try:
        (spec,) = plan_runs(line)
        submission.validate_parents([spec], folder / "runs")
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        is_hydra_error = isinstance(error, HydraException | OmegaConfBaseException)
        message = format_hydra_error(error, []) if is_hydra_error else str(error)
    else:
        return train_two_steps(spec, folder)
    assert message.strip(), "refused without a word"
    assert "\n" not in message.strip(), f"refused in several lines: {message!r}"
    assert len(message) < 1500, f"a line of {len(message)} characters: {message[:300]}"
    return f"refused: {message}"


def try_random_lines(numbers: range, folder: Path) -> tuple[collections.Counter[str], list[str]]:
    """Try random lines; return counts of their ends, and the faults with their lines."""

    def raise_timeout(*_: object) -> None:
        raise AssertionError(f"not done within {SECONDS} s")

    end_counts, faults = collections.Counter[str](), list[str]()
    previous_handler = signal.signal(signal.SIGALRM, raise_timeout)
    memory = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (MEMORY, memory[1])
    )  # excessive allocations fail instead of killing the process
    try:
        for number in numbers:
            line = draw_line(number, folder)
            signal.alarm(SECONDS)
            try:
                end = try_line(line, folder)
            except (Exception, SystemExit) as error:
                end = "fault"
                description = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
                faults.append(f"{number}: {' '.join(line)}\n{description[-3000:]}")
                if log_path := os.environ.get("FUZZ_OUT"):
                    with open(log_path, "a") as file:
                        print("#####", faults[-1], file=file, flush=True)
            finally:
                signal.alarm(0)
                torch.use_deterministic_algorithms(False)
            end_counts[end.partition(":")[0]] += 1
            if end.startswith("refused") and (log_path := os.environ.get("FUZZ_REFUSED")):
                with open(log_path, "a") as file:
                    print(number, line[-3:], end, file=file, flush=True)
    finally:
        signal.signal(signal.SIGALRM, previous_handler)
        resource.setrlimit(resource.RLIMIT_AS, memory)
    return end_counts, faults


@pytest.mark.rare
@pytest.mark.timeout(7200)
def test_random_lines_are_rejected_or_train(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        end_counts, faults = try_random_lines(range(FIRST, FIRST + COUNT), folder)
    print(dict(end_counts))
    assert not faults, f"{len(faults)} of {COUNT}\n\n" + "\n\n".join(faults[:5])
    assert end_counts["trained"] >= COUNT // 40
    assert end_counts["refused"] >= COUNT // 4


@pytest.mark.rare
@pytest.mark.timeout(14400)
def test_hostile_attempts_end_in_a_line_and_change_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HOME", str(tmp_path / "place" / "home"))
    monkeypatch.syspath_prepend(str(tmp_path / "place" / "home"))
    import_verbs()
    place = make_workplace(tmp_path / "place")
    counts, faults = collections.Counter[str](), list[str]()
    for number in range(ATTEMPTS_FROM, ATTEMPTS_FROM + ATTEMPTS):
        started = time.monotonic()
        attempt, ending, problem = try_attempt(number, place, tmp_path / f"attempt{number}")
        counts["attempts"] += 1
        counts[f"{attempt.kind} ms"] += round(1000 * (time.monotonic() - started))
        counts["passed"] += ending.passed_first_check
        counts[f"{attempt.kind}"] += 1
        counts[f"{attempt.kind} passed"] += ending.passed_first_check
        counts[f"status {ending.status}"] += 1
        if problem:
            faults.append(f"{number}: {attempt.kind}: {attempt.words}: {problem}\n{ending.output[-2500:]}")
            log_line("FUZZ_OUT", f"##### {faults[-1]}")
        elif ending.status == 2:
            log_line("FUZZ_REFUSED", f"{number} {attempt.words[:3]} {ending.output[-300:].strip()}")
    with capfd.disabled():
        print(dict(counts))
    assert not faults, f"{len(faults)} of {ATTEMPTS}\n\n" + "\n\n".join(faults[:5])
    assert counts["passed"] >= ATTEMPTS // 2


def try_attempt(number: int, place: Path, folder: Path) -> tuple[Attempt, Ending, str]:
    """Run the attempt of a number; return it, its end and the fault, empty if there is none."""
    folder.mkdir()
    attempt = draw_attempt(number, place, folder)
    before, files = take_snapshot(place, ("cache",)), take_snapshot(folder)
    ending = run_forked(attempt.words, folder, SECONDS)
    problem = find_fault(ending)
    if (place / "home" / "executed").exists():
        (place / "home" / "executed").unlink()
        if attempt.kind not in ("option", "experiment"):  # those are of the command line, and code
            problem = "a stored file was executed"
    if (after := take_snapshot(place, ("cache",))) != before:
        problem = f"changed {sorted({*before.items()} ^ {*after.items()})[:4]}"
    later = take_snapshot(folder)
    lost = [name for name, state in files.items() if later.get(name) != state and name not in attempt.grows]
    if lost:
        problem = f"changed its input {lost}"
    shutil.rmtree(folder)
    return attempt, ending, problem


def find_fault(ending: Ending) -> str:
    """Describe why a command ended badly; empty if it ended as commands may."""
    if ending.status is None:
        return "hangs"
    if "Traceback (most recent call last)" in ending.output:
        return "a traceback"
    if ending.status not in (0, 1, 2, 3, 4):
        return f"exit status {ending.status}"
    message = ending.output.strip().rpartition("\n")[2]
    if ending.status == 2 and not message.startswith("attnlab: "):
        return "refused without a line"
    return "" if message.removeprefix("attnlab: ").strip() or ending.status != 2 else "an empty line"


def log_line(variable: str, text: str) -> None:
    """Append a line to the file that an environment variable names."""
    if path := os.environ.get(variable):
        with open(path, "a") as file:
            print(text, file=file, flush=True)
