"""`python -m attnlab judge A.csv B.csv` and `--noise FILE`: verdicts on runs that were trained elsewhere."""

import argparse
import json
import math
import sys
from pathlib import Path

from attnlab.cli.verbs.judge import EXIT_BY_VERDICT, list_file_flags
from attnlab.errors import InvalidConfig
from attnlab.external import judgment, noise_floor
from attnlab.external.result_files import read_runs, validate_reduction
from attnlab.report.schema import Verdict

VERDICTS = {True: Verdict.SUPPORTED, False: Verdict.REFUTED, None: Verdict.INCONCLUSIVE}


def main(options: argparse.Namespace) -> int:
    """Print the verdict, or the noise, as JSON on stdout and as text on stderr."""
    if options.budget is not None:
        raise InvalidConfig("--budget: runs that were trained elsewhere have no budget to match")
    if options.metric is None:
        raise InvalidConfig("--metric is missing: name a column, tag or metric of the files")
    validate_reduction(options.reduce or "last")
    return _print_noise_floor(options) if options.noise is not None else _print_verdict(options)


def _print_noise_floor(options: argparse.Namespace) -> int:
    if options.words:
        raise InvalidConfig(f"--noise reads one file: remove {' '.join(options.words)}")
    for flag in list_file_flags(options):
        if flag != "--reduce":
            raise InvalidConfig(f"{flag}: has no effect with --noise")
    margin = None if options.margin is None else _read_margin(options.margin)
    runs = read_runs(Path(options.noise), options.metric)
    noise = noise_floor.measure_noise_floor(runs, options.metric, options.reduce or "last", margin)
    print(noise_floor.format_noise_floor(noise), file=sys.stderr)
    print(json.dumps(noise, indent=1, ensure_ascii=False), flush=True)
    return 0


def _print_verdict(options: argparse.Namespace) -> int:
    first, *rest = options.words
    if not (options.lower_is_better or options.higher_is_better):
        raise InvalidConfig("add --lower-is-better or --higher-is-better, which a file does not say")
    if options.margin is None:
        raise InvalidConfig("--margin is missing: the smallest difference that matters, in the metric's unit")
    margin, how = _read_margin(options.margin), options.reduce or "last"
    count = 1 if options.arm_column is not None else 2
    if len(options.words) != count:
        raise InvalidConfig(
            f"judge takes {count} {'file with' if count == 1 else 'files without'} --arm-column"
        )
    if options.arm_column is not None:
        runs = read_runs(Path(first), options.metric, options.arm_column)
        sides = judgment.split_by_arm(runs, first, options.arm_column)
    else:
        sides = [read_runs(Path(word), options.metric) for word in (first, *rest)]
        if Path(first).resolve() == Path(rest[0]).resolve():
            raise InvalidConfig(f"{first}: both sides are the same file")
    verdict = judgment.judge_runs(
        *sides, margin=margin, lower_is_better=options.lower_is_better, how=how,
        design=options.design or "anytime", same_unit=options.same_unit,
    )  # fmt: skip
    claim = VERDICTS[verdict.decision.holds]
    exit_status, word = EXIT_BY_VERDICT[claim]
    summary = judgment.summarize_judgment(verdict, options.metric, margin, options.lower_is_better)
    print(summary["sentence"], verdict.pairing, sep="\n", file=sys.stderr)
    if how in ("min", "max"):
        print(f"--reduce {how}: the best of several evaluations is optimistic", file=sys.stderr)
    document = {"verdict": word, "claim": claim, **summary, "reduce": how}
    print(json.dumps(document, indent=1, ensure_ascii=False), flush=True)
    return exit_status


def _read_margin(text: str) -> float:
    try:
        margin = float(text)
    except ValueError:
        margin = math.nan
    if not 0 < margin < math.inf:
        raise InvalidConfig(f"--margin {text}: for files, give a positive number in the metric's unit")
    return margin
