"""`python -m attnlab judge A.csv B.csv` and `--noise FILE`: verdicts on runs that were trained elsewhere."""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnlab.cli.verbs.judge import EXIT_BY_VERDICT, list_file_flags
from attnlab.errors import InvalidConfig
from attnlab.external import judgment, judgment_page, noise_floor
from attnlab.external.question import (
    Declaration,
    Question,
    format_looks,
    load_declaration,
    parse_looks,
    write_declaration,
)
from attnlab.external.result_files import ExternalRun, digest_runs, read_runs, validate_reduction


def main(options: argparse.Namespace) -> int:
    """Print the verdict, or the noise, as JSON on stdout and as text on stderr."""
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
    print(noise_floor.format_noise_floor(noise), file=sys.stderr)
    print(json.dumps(noise, indent=1, ensure_ascii=False), flush=True)
    return 0


def _declare(options: argparse.Namespace) -> int:
    """Record the question in a new file, before the runs exist."""
    if options.same_unit:
        raise InvalidConfig("--same-unit: give it when the runs are judged")
    path = Path(options.declare)
    words = shlex.join(options.words)
    if options.arm_column is not None:
        words += f" --arm-column {shlex.quote(options.arm_column)}"
    declaration = write_declaration(path, read_question(options), options.words, options.arm_column)
    print(
        f"declared in {path} at {declaration.declared}, SHA-256 {declaration.digest[:16]}: "
        f"{_describe_question(declaration.question)}. When the runs exist, judge them with:\n"
        f"python -m attnlab judge {words} --declare {shlex.quote(options.declare)}",
        file=sys.stderr,
    )
    print(json.dumps(json.loads(path.read_text("utf-8")), indent=1), flush=True)
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
        runs = read_runs(Path(first), question.metric, arm_column)
        sides = judgment.split_by_arm(runs, first, arm_column)
        names = [str(side[0].arm) for side in sides]
    else:
        sides = [read_runs(Path(word), question.metric) for word in (first, *rest)]
        names = list(options.words)
        if Path(first).resolve() == Path(rest[0]).resolve():
            raise InvalidConfig(f"{first}: both sides are the same file")
    exit_status, output = judge_sides(sides, names, question, declaration, same_unit=options.same_unit)
    print(json.dumps(output, indent=1, ensure_ascii=False), flush=True)
    return exit_status


def judge_sides(
    sides: Sequence[Sequence[ExternalRun]],
    names: Sequence[str],
    question: Question,
    declaration: Declaration | None,
    *,
    same_unit: bool,
) -> tuple[int, dict[str, Any]]:
    """Judge B against A, print the sentence and write the page; return the exit status and the JSON."""
    result = judgment.judge_runs(sides[0], sides[1], question, same_unit=same_unit)
    claim = result.verdict
    exit_status, word = EXIT_BY_VERDICT[claim]
    runs = [run for side in sides for run in side]
    timeless = sum(run.started is None for run in runs)
    reasons = (
        declaration.list_earlier(runs)
        if declaration
        else ["nothing was declared before the runs (--declare)"]
    )
    output: dict[str, Any] = {
        "verdict": word,
        "claim": claim,
        **judgment.summarize_judgment(result, question),
        "exploratory": bool(reasons),
        "exploratory_reasons": reasons,
        "run_times": f"{timeless} of {len(runs)} runs do not say when they began" if timeless else "known",
        "declared": declaration.declared if declaration else None,
        "declaration_digest": declaration.digest if declaration else None,
        "names": list(names),
        "digests": [digest_runs(side) for side in sides],
    }
    print(output["sentence"], result.pairing, result.describe_counts(), sep="\n", file=sys.stderr)
    for reason in reasons:
        print(f"EXPLORATORY: {reason}", file=sys.stderr)
    if timeless and declaration:
        print(f"{output['run_times']}: only the age of their files was checked", file=sys.stderr)
    if question.reduce == "best":
        print("--reduce best: the best of several evaluations is optimistic", file=sys.stderr)
    output["report"] = judgment_page.try_to_write(output, Path("reports"))
    if output["report"] is not None:
        print(f"report: {output['report']}", file=sys.stderr)
    return exit_status, output


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
    return Question(metric, options.lower_is_better, margin, options.reduce or "last", looks)


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
