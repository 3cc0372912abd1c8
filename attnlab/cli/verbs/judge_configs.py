"""`judge` on configs: an experiment of two arms with a superiority claim, built and run as by `compare`."""

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from attnlab.cli.flags import BUDGET_NAMES
from attnlab.cli.hydra_runner import extract_hydra_flags, list_config_dirs
from attnlab.cli.verbs import compare
from attnlab.cli.verbs.judge_files import list_file_flags
from attnlab.cli.verdict_output import EXIT_BY_VERDICT, print_json, print_report, summarize_verdict
from attnlab.config import CONF
from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.report.schema import Verdict, load_report
from attnlab.store.experiment_files import load_yaml_node
from attnlab.store.fingerprint import flatten_config
from attnlab.sweep.plan import overrides

INTERIM_ANALYSES = "looks=[4,6,9,12,16]"
BUDGET_OVERRIDES = {  # value of --budget -> overrides; tokens are always controlled
    "tokens": [],
    "parameters": ["controlled=[parameters,tokens]", "match=params", "match_by=model.ffn_width"],
    "flops": ["controlled=[flops_per_token,tokens]", "match=flops", "match_by=model.ffn_width"],
    "cache": ["controlled=[kv_bytes_per_token,tokens]"],
}


def main(options: argparse.Namespace) -> int:
    """Train both arms and print the verdict; return the exit status."""
    for flag in list_file_flags(options):
        raise InvalidConfig(f"{flag}: only for runs that were trained elsewhere, as in judge a.csv b.csv")
    flags = extract_hydra_flags(options)
    experiment, rest = build_judge_experiment(options, list_config_dirs(flags))
    flag_words = [
        word
        for flag in ("metric", "margin", "budget")
        if (value := getattr(options, flag)) is not None
        for word in (f"--{flag}", value)
    ]
    typed_command = shlex.join(["python", "-m", "attnlab", "judge", *options.words, *flag_words, *flags])
    status, source = compare.run_inline_experiment(experiment, rest, flags, typed_command)
    if source is None:
        return status
    report = load_report(source)
    exit_status, summary = summarize_verdict(report, source)
    if options.json:
        print_json(summary)
    else:
        print_report(report, source)
    return status if status and exit_status == EXIT_BY_VERDICT[Verdict.NO_RESULT][0] else exit_status


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
