"""`python -m attnlab judge A B`: test whether B is better than A by more than the margin.

Prints one verdict as JSON on stdout and encodes it in the exit status, for people and programs that propose
changes. Progress goes to stderr. Works like `compare` with two arms, a superiority claim and interim
analyses.
"""

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from attnlab.cli.flags import BUDGET_NAMES
from attnlab.cli.hydra_runner import extract_hydra_flags, list_config_dirs
from attnlab.cli.verbs import compare
from attnlab.config import CONF
from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.report.schema import Report, RunRow, Verdict, load_report
from attnlab.store.experiment_files import load_yaml_node
from attnlab.store.fingerprint import flatten_config
from attnlab.store.run_schema import LOST_STATUSES
from attnlab.sweep.plan import overrides

INTERIM_ANALYSES = "looks=[4,6,9,12,16]"
EXIT_BY_VERDICT = {  # verdict of the claim -> exit status, verdict of `judge`
    Verdict.SUPPORTED: (0, "better"),
    Verdict.REFUTED: (3, "not better"),
    Verdict.INCONCLUSIVE: (4, "inconclusive"),
    Verdict.NO_RESULT: (4, "inconclusive"),
    Verdict.UNTRAINED: (4, "inconclusive"),
    Verdict.DEMONSTRATION: (4, "inconclusive"),
    Verdict.NOT_COMPARABLE: (5, "not comparable"),
}
BUDGET_OVERRIDES = {  # value of --budget -> overrides; tokens are always controlled
    "tokens": [],
    "parameters": ["controlled=[parameters,tokens]", "match=params", "match_by=model.ffn_width"],
    "flops": ["controlled=[flops_per_token,tokens]", "match=flops", "match_by=model.ffn_width"],
    "cache": ["controlled=[kv_bytes_per_token,tokens]"],
}
COST_KEYS = ("parameters", "flops_per_token", "kv_bytes_per_token", "tokens", "lr")


def main(options: argparse.Namespace) -> int:
    """Print the verdict, or the noise of runs that were trained elsewhere; return the exit status."""
    if any(flag is not None for flag in (options.champion, options.log, options.confirm)):
        from attnlab.cli.verbs import judge_candidates  # late: pyarrow

        return judge_candidates.main(options)
    if options.noise is not None or is_file_comparison(options):
        from attnlab.cli.verbs import judge_files  # late: pyarrow

        return judge_files.main(options)
    for flag in list_file_flags(options):
        raise InvalidConfig(f"{flag}: only for runs that were trained elsewhere, as in judge a.csv b.csv")
    start_time = time.time()
    flags = extract_hydra_flags(options)
    experiment, rest = build_judge_experiment(options, list_config_dirs(flags))
    flag_words = [
        word
        for flag in ("metric", "margin", "budget")
        if (value := getattr(options, flag)) is not None
        for word in (f"--{flag}", value)
    ]
    typed_command = shlex.join(["python", "-m", "attnlab", "judge", *options.words, *flag_words, *flags])
    with redirect_stdout(sys.stderr):
        status = compare.run_inline_experiment(experiment, rest, flags, typed_command)
    source = compare.find_newest_report(rest, experiment["name"], start_time)
    if source is None or status >= 128:
        return status
    file = compare.write_experiment_file(source.parent, experiment)
    print(f"experiment file: {file}", file=sys.stderr)
    page = source.with_name("report.html")
    exit_status, summary = summarize_verdict(load_report(source), page)
    print(json.dumps(summary, indent=1, ensure_ascii=False), flush=True)
    print(f"report: {page}", file=sys.stderr)
    return status if status and exit_status == EXIT_BY_VERDICT[Verdict.NO_RESULT][0] else exit_status


def list_file_flags(options: argparse.Namespace) -> list[str]:
    """The given flags that are for runs that were trained elsewhere."""
    names = (
        "reduce", "arm_column", "looks", "declare", "lower_is_better", "higher_is_better", "same_unit",
        "fdr", "batch",
    )  # fmt: skip
    return [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]


def is_file_comparison(options: argparse.Namespace) -> bool:
    """Whether A and B are files or folders of runs, rather than overrides.

    Raises:
        InvalidConfig: one is and the other is not, or a path does not exist.
    """
    words = options.words[: 1 if options.arm_column is not None else 2]
    kinds = {word: _is_result_path(word) for word in words}
    if len({*kinds.values()}) > 1:
        override = next(word for word, is_path in kinds.items() if not is_path)
        raise InvalidConfig(
            f"{override}: the other side is a file of runs that were trained elsewhere: give two files, or "
            "two configs"
        )
    return bool(words) and all(kinds.values())


def _is_result_path(word: str) -> bool:
    """Whether a word is a path of runs: an existing one, or one with a suffix that is no config's."""
    path = Path(word)
    if path.suffix in (".yaml", ".yml") or ("=" in word and not path.exists()):
        return False
    return path.exists() or path.suffix in (".csv", ".jsonl", ".ndjson", ".parquet") or "/" in word


def build_judge_experiment(
    options: argparse.Namespace, config_dirs: Sequence[Path] = (CONF,)
) -> tuple[dict[str, Any], list[str]]:
    """Build the experiment with baseline A and treatment B; return it and the remaining words."""
    if len(options.words) < 2:
        raise InvalidConfig('judge needs two arms, as in python -m attnlab judge "heads=mha" "heads=gqa"')
    if options.budget is not None and options.budget not in BUDGET_NAMES:
        suggestions = format_suggestions(options.budget, BUDGET_NAMES)
        raise InvalidConfig(
            f"--budget {options.budget}: must be one of {', '.join(BUDGET_NAMES)}{suggestions}"
        )
    arms = [_read_arm(word, config_dirs) for word in options.words[:2]]
    rest = options.words[2:]
    overridden_keys = {key for arm in arms for key in overrides.index_by_key(arm)} & {
        *overrides.index_by_key(rest)
    }
    if overridden_keys:
        raise InvalidConfig(
            f"{', '.join(sorted(overridden_keys))}: set for both arms, but A or B sets it too: set "
            "it in one place"
        )
    words = [*BUDGET_OVERRIDES[options.budget or "tokens"], *rest]
    words += [f"metric={options.metric}"] if options.metric is not None else []
    if options.margin is not None:
        percentage = re.fullmatch(r"\s*([\d.]+)\s*%\s*", options.margin)
        words.append(f"margin={{training:{percentage[1]}%}}" if percentage else f"margin={options.margin}")
    override_keys = overrides.index_by_key(words)
    if "looks" not in override_keys and "seed" not in override_keys:
        words.append(INTERIM_ANALYSES)
    names = [
        compare.format_name(Path(word).stem) if _is_yaml_path(word) else compare.format_arm_name(arm)
        for word, arm in zip(options.words, arms, strict=False)
    ]
    experiment, remaining = compare.build_experiment(arms, words, config_dirs, "judge_", names)
    first, second = experiment["arms"]
    [claim] = experiment["claims"]
    claim["says"] = f"{second} is better than {first} by more than the margin"
    claim["threshold"] = -claim["threshold"] if claim["threshold"] != "margin" else "-margin"
    question = f"Is {' '.join(arms[1])} better than {' '.join(arms[0])}?"
    experiment["question"] = overrides.escape_interpolations(question)
    return experiment, remaining


def summarize_verdict(report: Report, page: Path) -> tuple[int, dict[str, Any]]:
    """Return the exit status of a report's only claim, and the JSON output."""
    from attnlab.report.tables.wording import describe_claim, format_training  # late: scipy

    [claim] = report.verdict.claims
    exit_status, word = EXIT_BY_VERDICT[claim.verdict]
    decision = claim.decision
    runs = report.runs
    return exit_status, {
        "verdict": word,
        "claim": claim.verdict,  # distinguishes the inconclusive ones
        "sentence": describe_claim(claim),
        "metric": claim.metric,
        "unit": claim.unit,
        "direction": claim.direction,
        "margin": report.experiment.margin,
        "estimate": decision.estimate,  # B − A
        "interval": {"low": decision.low, "high": decision.high, "level": decision.level},
        "as_training": format_training(claim.training_equivalent) if claim.training_equivalent else None,
        "exploratory": claim.exploratory,
        "seeds": decision.n,
        "cost": {
            "runs": len(runs),
            "failed": sum(run.status not in ("done", *LOST_STATUSES) for run in runs),
            "lost": sum(
                run.status in LOST_STATUSES for run in runs
            ),  # machine failures, no outcome of an arm
            "seconds": round(sum(run.seconds or 0 for run in runs), 1),
            **{
                side: _collect_arm_cost(runs, arm)
                for side, arm in zip(("a", "b"), report.experiment.arms, strict=True)
            },
        },
        "size": report.experiment.size,
        "report": str(page),
        "command": report.reproduce.command,
    }


def _collect_arm_cost(runs: Sequence[RunRow], arm: str) -> dict[str, Any]:
    """Collect an arm's costs from its first run that recorded them."""
    budget = next((run.budget for run in runs if run.arm == arm and run.budget.get_known_values()), None)
    return {"arm": arm, **{key: budget.get(key) if budget else None for key in COST_KEYS}}


def _is_yaml_path(word: str) -> bool:
    return "=" not in word and Path(word).suffix in (".yaml", ".yml")


def _read_arm(word: str, config_dirs: Sequence[Path]) -> list[str]:
    """Return the overrides of an arm, typed or from a yaml file.

    In a file, a key that is a group of `config_dirs` selects an option, as on a command line.
    """
    if not _is_yaml_path(word):
        return word.split()
    load_yaml_node(Path(word))
    try:
        values = OmegaConf.to_container(OmegaConf.load(word))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidConfig(f"{word}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not values:
        raise InvalidConfig(f"{word}: not a mapping of keys of the config to values")
    if "defaults" in values:
        raise InvalidConfig(
            f"{word}: defaults: select an option by its group's key instead, as in heads: gqa"
        )
    lines = []
    for key, value in flatten_config(values):
        is_group = any((folder / key.lstrip("+")).is_dir() for folder in config_dirs)
        is_option = is_group and isinstance(value, str)
        prefix = "" if key.startswith("+") else "++"
        lines.append(f"{key}={value}" if is_option else f"{prefix}{key}={_format_override_value(value)}")
    return lines


def _format_override_value(value: Any) -> str:
    """Format a value of a yaml file in Hydra's override grammar."""
    if isinstance(value, str):
        return overrides.quote_yaml_text(value)
    if isinstance(value, list):
        return f"[{','.join(_format_override_value(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_format_override_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
