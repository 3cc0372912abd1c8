"""`judge --champion A --log LOG B C ...`: many candidates, with the false discoveries of the log bounded."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from attnlab.cli.verbs import judge_files
from attnlab.cli.verdict_output import EXIT_BY_VERDICT, print_json, print_lines
from attnlab.errors import InvalidConfig
from attnlab.external import candidate_log, file_report
from attnlab.external.candidate_log import CandidateLog, CandidateTest, Procedure
from attnlab.external.judgment import judge_runs
from attnlab.external.question import Declaration, Question, format_now
from attnlab.external.result_files import ExternalRun, digest_runs, read_runs
from attnlab.report.number_format import format_number
from attnlab.report.schema import Verdict
from attnlab.report.tables.wording import DELTA


def main(options: argparse.Namespace) -> int:
    """Test candidates, or confirm a winner on fresh seeds."""
    for flag in ("noise", "declare", "looks", "arm_column", "budget"):
        if getattr(options, flag) is not None:
            raise InvalidConfig(f"--{flag.replace('_', '-')}: has no effect with --log")
    if options.log is None:
        flag = "--champion" if options.champion is not None else "--confirm"
        raise InvalidConfig(f"{flag}: add --log FILE, which counts the candidates")
    if (options.champion is None) == (options.confirm is None):
        raise InvalidConfig("--log: give either --champion FILE and candidates, or --confirm CANDIDATE")
    question = _read_question(options)
    return _confirm(options, question) if options.confirm is not None else _test(options, question)


def _read_question(options: argparse.Namespace) -> Question | None:
    """The question of the flags; None if all are left to the log."""
    flags = (options.metric, options.margin, options.reduce)
    has_direction = options.lower_is_better or options.higher_is_better
    if has_direction or any(flag is not None for flag in flags) or not Path(options.log).exists():
        return judge_files.read_question(options)
    return None


def _test(options: argparse.Namespace, question: Question | None) -> int:
    if not options.words:
        raise InvalidConfig("--champion: name the files of the candidates")
    rate = _read_rate(options.fdr)
    procedure: Procedure | None = "batch" if options.batch else None
    path = Path(options.log)
    if question is None:
        question = candidate_log.load_log(path).question
    champion_runs = read_runs(Path(options.champion), question.metric)
    candidates = [
        _read_candidate(word, options, question, champion_runs) for word in dict.fromkeys(options.words)
    ]  # before the log is opened: an invalid file leaves no trace
    with candidate_log.open_log(path, question, rate, procedure) as log:
        known = len(log.tests)
        tests = log.test_candidates(candidates)
        output = _summarize(log, tests)
    winners = [test for test in tests if test.accepted]
    conclusions = [_describe_budget(log)]
    if winners:
        best = max(winners, key=lambda test: test.e_value)
        command = f"judge --log {shlex.quote(options.log)} --confirm {shlex.quote(best.candidate)}"
        output["confirm"] = f"python -m attnlab {command} FRESH_CHAMPION FRESH_CANDIDATE"
        conclusions.insert(0, f"confirm on seeds that the log has not seen: {output['confirm']}")
    if options.json:
        print_json(output)
    else:
        tests.sort(key=lambda test: not test.accepted)  # first those that must not be cut
        outcomes = [_describe_test(test, question, is_known=test.test <= known) for test in tests]
        print_lines(outcomes, conclusions, options.log)
    return EXIT_BY_VERDICT[Verdict.SUPPORTED if winners else Verdict.INCONCLUSIVE][0]


def _confirm(options: argparse.Namespace, question: Question | None) -> int:
    """Judge a winner on fresh seeds, as `judge A B` does."""
    if len(options.words) != 2:
        raise InvalidConfig("--confirm: give two files of fresh runs, the champion's first")
    if options.batch or options.fdr is not None:
        raise InvalidConfig(f"{'--batch' if options.batch else '--fdr'}: has no effect with --confirm")
    path = Path(options.log)
    with candidate_log.open_log(path, question, None, None) as log:
        winner = log.find_winner(options.confirm)
        sides = {word: read_runs(Path(word), log.question.metric) for word in options.words}
        runs = [run for side in sides.values() for run in side]
        digests = [*map(digest_runs, sides.values())]
        known = [record for record in log.confirmations if record["test"] == winner.test]
        others = [record for record in known if record["digests"] != digests]
        _require_fresh_seeds(log, runs, winner)
        declaration = Declaration(
            question=log.question, files=tuple(options.words), arm_column=None, declared=winner.time,
            digest=log.last_digest,
        )  # fmt: skip
        exit_status, output = judge_files.judge_sides(sides, log.question, declaration, options)
        record = {
            "test": winner.test,
            "candidate": winner.candidate,
            "files": options.words,
            "digests": digests,
            "seeds": _list_seeds(runs),
            "claim": output["claim"],
            "estimate": output["estimate"],
            "interval": output["interval"],
            "exploratory": output["exploratory"],
            "time": format_now(),
        }
        if others == known:  # the same runs again are no further confirmation
            log.append("confirmation", record)
    if others:
        outcomes = ", ".join(record["claim"] for record in others)
        print(
            f"this winner has other confirmations ({outcomes}): report all, or add runs to one",
            file=sys.stderr,
        )
    output |= {"confirms": winner.candidate, "earlier_confirmations": len(others)}
    if options.json:
        print_json(output)
    return exit_status


def _read_candidate(
    word: str, options: argparse.Namespace, question: Question, champion_runs: list[ExternalRun]
) -> CandidateTest:
    runs = read_runs(Path(word), question.metric)
    digests = digest_runs(champion_runs), digest_runs(runs)
    if digests[0] == digests[1]:
        raise InvalidConfig(f"{word}: the same runs as those of the champion {options.champion}")
    judgment = judge_runs(champion_runs, runs, question, same_unit=options.same_unit)
    counts = len(judgment.values[0]), len(judgment.values[1]), len(judgment.pairs)
    e_value, largest = candidate_log.compute_evalues(judgment, question)
    return CandidateTest(
        champion=options.champion, candidate=word, digests=digests,
        seeds=tuple(_list_seeds([*champion_runs, *runs])), runs=counts,
        estimate=judgment.decision.estimate, e_value=e_value, largest_e_value=largest,
    )  # fmt: skip


def _list_seeds(runs: list[ExternalRun]) -> list[str]:
    return list(dict.fromkeys(run.seed for run in runs if run.seed is not None))


def _require_fresh_seeds(log: CandidateLog, runs: list[ExternalRun], winner: CandidateTest) -> None:
    """Raise InvalidConfig unless every run has a seed that no test has used, nor another confirmation.

    Runs may be added to an earlier confirmation of the winner: its verdict is anytime-valid.
    """
    used = {seed: f"test {test.test} of {test.candidate}" for test in log.tests for seed in test.seeds}
    for record in log.confirmations:
        if record["test"] != winner.test:
            used |= {seed: f"the confirmation of {record['candidate']}" for seed in record["seeds"]}
    for run in runs:
        if run.seed is None:
            raise InvalidConfig(
                f"{run.place}: --confirm needs the seed of every run, to know that it is fresh"
            )
        if run.seed in used:
            raise InvalidConfig(f"{run.place}: seed {run.seed} was used in {used[run.seed]}: train others")


def _summarize(log: CandidateLog, tests: list[CandidateTest]) -> dict[str, Any]:
    return {
        "log": str(log.path),
        "procedure": log.procedure,
        "false_discovery_rate": log.rate,
        "tests": len(log.tests),
        "accepted": log.discoveries,
        "next_threshold": log.next_threshold if log.procedure == "online" else None,
        "digest": log.last_digest,
        "candidates": [test.to_dict() for test in tests],
    }


def _describe_test(test: CandidateTest, question: Question, *, is_known: bool) -> str:
    if not test.test:
        return f"not tested: {test.describe_shortage()}"
    difference = format_number(test.estimate, file_report.count_digits(question.margin), sign=True)
    estimate = "a run diverged" if test.estimate is None else f"{DELTA} {difference}"
    outcome = "ACCEPTED" if test.accepted else "not accepted"
    repeated = f" (in the log since {test.time})" if is_known else ""
    return (
        f"test {test.test}{repeated}: {test.candidate}: {outcome}: {estimate}, e-value {test.e_value:.3g}, "
        f"needed {test.threshold:.3g}"
    )


def _describe_budget(log: CandidateLog) -> str:
    following = f"the next needs an e-value of {log.next_threshold:.3g}"
    ending = "the batch takes no more" if log.procedure == "batch" else following
    return (
        f"{log.path}: {log.discoveries} of {len(log.tests)} candidates accepted, of which "
        f"{100 * log.rate:g}% at most are expected to be false; {ending}; digest {log.last_digest[:16]}"
    )


def _read_rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1:
        raise InvalidConfig(f"--fdr {text}: a number between 0 and 1, such as 0.05")
    return rate
