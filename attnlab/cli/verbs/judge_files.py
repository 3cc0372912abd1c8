"""`judge A.csv B.csv` and `judge --noise FILE`: verdicts on runs that were trained elsewhere."""

import argparse
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.cli.verdict_output import print_json, print_lines, print_report, summarize_verdict
from attnlab.errors import InvalidConfig
from attnlab.external import file_report, judgment, noise_floor
from attnlab.external.question import (
    Declaration,
    Question,
    format_looks,
    load_declaration,
    parse_looks,
    write_declaration,
)
from attnlab.external.result_files import ExternalRun, read_runs, validate_reduction
from attnlab.report.schema import format_json
from attnlab.store.atomic_files import replace_atomically

FILE_FLAGS = (
    "reduce", "arm_column", "looks", "declare", "lower_is_better", "higher_is_better", "same_unit", "fdr",
    "batch", "page",
)  # fmt: skip


def list_file_flags(options: argparse.Namespace) -> list[str]:
    """The given flags that are for runs that were trained elsewhere."""
    return [f"--{name.replace('_', '-')}" for name in FILE_FLAGS if getattr(options, name)]


def main(options: argparse.Namespace) -> int:
    """Print the verdict, the noise, or the declaration."""
    if options.budget is not None:
        raise InvalidConfig("--budget: runs that were trained elsewhere have no budget to match")
    if options.reduce is not None:
        validate_reduction(options.reduce)
    if options.noise is not None:
        return _print_noise_floor(options)
    for flag in ("fdr", "batch"):
        if getattr(options, flag):
            raise InvalidConfig(f"--{flag}: add --champion and --log")
    count = 1 if options.arm_column is not None else 2
    if len(options.words) != count:
        raise InvalidConfig(
            f"judge takes {count} {'file with' if count == 1 else 'files without'} --arm-column"
        )
    if options.declare is not None and not Path(options.declare).exists():
        return _declare(options)
    return _print_verdict(options)


def _print_noise_floor(options: argparse.Namespace) -> int:
    if options.words:
        raise InvalidConfig(f"--noise reads one file: remove {' '.join(options.words)}")
    has_direction = options.lower_is_better or options.higher_is_better
    needs_direction = options.reduce == "best"
    for flag in list_file_flags(options):
        if flag != "--reduce" and not (needs_direction and flag.endswith("is-better")):
            raise InvalidConfig(f"{flag}: has no effect with --noise")
    if needs_direction and not has_direction:
        raise InvalidConfig("--reduce best: add --lower-is-better or --higher-is-better")
    metric, margin = _require_metric(options), _read_margin(options.margin)
    runs = read_runs(Path(options.noise), metric)
    noise = noise_floor.measure_noise_floor(
        runs, metric, options.reduce or "last", margin, options.lower_is_better
    )
    if options.json:
        print_json(noise)
    else:
        print_lines([], noise_floor.format_noise_floor(noise))
    return 0


def _declare(options: argparse.Namespace) -> int:
    """Record the question in a new file, before the runs exist."""
    for flag in ("same_unit", "page"):
        if getattr(options, flag):
            raise InvalidConfig(f"--{flag.replace('_', '-')}: give it when the runs are judged")
    path = Path(options.declare)
    words = shlex.join(options.words)
    if options.arm_column is not None:
        words += f" --arm-column {shlex.quote(options.arm_column)}"
    declaration = write_declaration(path, read_question(options), options.words, options.arm_column)
    if options.json:
        print_json(declaration.to_dict())
        return 0
    print_lines(
        [],
        [
            f"declared in {path} at {declaration.declared}, SHA-256 {declaration.digest[:16]}: "
            f"{_describe_question(declaration.question)}. When the runs exist, judge them with:",
            f"python -m attnlab judge {words} --declare {shlex.quote(options.declare)}",
        ],
    )
    return 0


def _print_verdict(options: argparse.Namespace) -> int:
    declaration = None
    if options.declare is not None:
        declaration = load_declaration(Path(options.declare))
        _require_agreement(declaration, options)
    question = declaration.question if declaration else read_question(options)
    arm_column = declaration.arm_column if declaration else options.arm_column
    first, *rest = options.words
    if arm_column is not None:
        sides = judgment.split_by_arm(read_runs(Path(first), question.metric, arm_column), first, arm_column)
        names = [str(side[0].arm) for side in sides]
    else:
        sides = [read_runs(Path(word), question.metric) for word in (first, *rest)]
        names = file_report.name_arms(options.words)
        if Path(first).resolve() == Path(rest[0]).resolve():
            raise InvalidConfig(f"{first}: both sides are the same file")
    runs = dict(zip(names, sides, strict=True))
    exit_status, summary = judge_sides(runs, question, declaration, options)
    if options.json:
        print_json(summary)
    return exit_status


def judge_sides(
    runs: Mapping[str, Sequence[ExternalRun]],
    question: Question,
    declaration: Declaration | None,
    options: argparse.Namespace,
) -> tuple[int, dict[str, Any]]:
    """Judge B against A, write the report and print it for people; return the exit status and the JSON."""
    a, b = runs.values()
    result = judgment.judge_runs(a, b, question, same_unit=options.same_unit)
    files = [options.words[0], options.words[-1]]
    report = file_report.build_file_report(
        runs, files, result, question, declaration, _format_command(options)
    )
    source = Path("reports") / report.experiment.name / "report.json"
    written: Path | None = source
    try:
        source.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(source) as temporary:
            temporary.write_text(format_json(report.to_dict()), "utf-8")
        if options.page:
            from attnlab.report.pages.report_files import render_report  # late: the charts take a second

            print(f"page: {render_report(source)}", file=sys.stderr)
    except OSError as error:  # costs the report, not the verdict
        print(f"{source.parent}: no report: {error.strerror}", file=sys.stderr)
        written = None
    if not options.json:
        print_report(report, written)
    return summarize_verdict(report, written)


def _format_command(options: argparse.Namespace) -> str:
    """The command with all flags that it was given."""
    words = ["python", "-m", "attnlab", "judge", *options.words]
    for name in ("metric", "margin", *FILE_FLAGS, "log", "confirm"):
        if value := getattr(options, name):
            words += [f"--{name.replace('_', '-')}", *([value] if isinstance(value, str) else [])]
    return shlex.join(words)


def _require_agreement(declaration: Declaration, options: argparse.Namespace) -> None:
    """Raise InvalidConfig if a command asks other than was declared; it may leave settings out."""
    direction = options.lower_is_better or options.higher_is_better
    asked = {
        "metric": options.metric,
        "lower_is_better": options.lower_is_better if direction else None,
        "margin": _read_margin(options.margin),
        "reduce": options.reduce,
        "looks": None if options.looks is None else parse_looks(options.looks),
    }
    differences = declaration.list_differences(asked, options.words, options.arm_column)
    if differences:
        raise InvalidConfig(
            f"--declare {options.declare}: {'; '.join(differences)}: judge as declared, or without "
            "--declare, as EXPLORATORY"
        )


def read_question(options: argparse.Namespace) -> Question:
    """The question of the flags.

    Raises:
        InvalidConfig: a flag is missing or malformed.
    """
    metric = _require_metric(options)
    if not (options.lower_is_better or options.higher_is_better):
        raise InvalidConfig("add --lower-is-better or --higher-is-better, which a file does not say")
    margin = _read_margin(options.margin)
    if margin is None:
        raise InvalidConfig("--margin is missing: the smallest difference that matters, in the metric's unit")
    looks = parse_looks(options.looks or "anytime")
    return Question(
        metric=metric, lower_is_better=options.lower_is_better, margin=margin,
        reduce=options.reduce or "last", looks=looks,
    )  # fmt: skip


def _describe_question(question: Question) -> str:
    direction = "lower" if question.lower_is_better else "higher"
    looks = (
        "after any number of runs"
        if question.looks == "anytime"
        else f"at {format_looks(question.looks)} a side"
    )
    return f"is {question.metric} of B {direction} by more than {question.margin:g}, {looks}"


def _require_metric(options: argparse.Namespace) -> str:
    if options.metric is None:
        raise InvalidConfig("--metric is missing: name a column, tag or metric of the files")
    return str(options.metric)


def _read_margin(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        margin = float(text)
    except ValueError:
        margin = math.nan
    if not 0 < margin < math.inf:
        raise InvalidConfig(f"--margin {text}: for files, give a positive number in the metric's unit")
    return margin
