"""`python -m attnlab compare "heads=mha" "heads=gqa position=rope"`: an experiment without a file.

Builds the experiment from the command line, runs it, and writes its file beside the report. The first
command line for the same arms, size and data is the preregistration.
"""

import argparse
import json
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from attnlab.cli.hydra_errors import explain_missing_option
from attnlab.cli.hydra_runner import extract_hydra_flags, list_config_dirs, run_hydra
from attnlab.cli.verbs.list import list_groups
from attnlab.cli.verdict_output import print_json, print_report, summarize_claims
from attnlab.config import CONF, format_search_path
from attnlab.errors import InvalidConfig
from attnlab.report.schema import load_report
from attnlab.store.atomic_files import replace_atomically
from attnlab.store.config_groups import TopLevelGroup
from attnlab.store.experiment_schema import Experiment
from attnlab.store.fingerprint import compute_digest
from attnlab.sweep.plan import overrides
from attnlab.sweep.plan.plan import KEYS_OF_LADDERS

USAGE = (
    'compare needs two or more arms, as in python -m attnlab compare "heads=mha" "heads=gqa position=rope"'
)
DEFAULT_SEEDS = [0, 1, 2, 3, 4, 5]
MARGIN_EXAMPLE = "margin={training:5%}"
EXPERIMENT_DEFAULTS: dict[str, Any] = {
    "seeds": DEFAULT_SEEDS, "looks": "anytime", "controlled": ["tokens"], "match": "none", "match_by": None,
    "metric": "val/loss", "direction": "lower", "margin": {"training": "5 %"},
    "margin_reason": "Default of compare: equivalent to 5% less training compute.",
    "compute_calibration": None,
}  # fmt: skip
SETTING_KEYS = (*EXPERIMENT_DEFAULTS, "metrics", "tune", "corpora", "unmatched", "ladder_arms")
COMPUTE_CALIBRATION = {"seeds": [200, 201, 202]}  # default for a margin in training compute


def main(options: argparse.Namespace) -> int:
    """Run the comparison and return the exit status of its sweep."""
    arms, rest = split_arms(options.words)
    flags = extract_hydra_flags(options)
    experiment, rest = build_experiment(arms, rest, list_config_dirs(flags))
    typed = shlex.join(["python", "-m", "attnlab", "compare", *options.words, *flags])
    status, source = run_inline_experiment(experiment, rest, flags, typed)
    if source is not None:
        report = load_report(source)
        if options.json:
            print_json(summarize_claims(report) | {"report": str(source)})
        else:
            print_report(report, source)
    return status


def find_newest_report(rest: Sequence[str], name: str, since: float) -> Path | None:
    """Find the newest report of the experiment that was written since the command started."""
    folder = Path(overrides.get_override_text(rest, "paths.reports") or "reports")
    recent = [path for path in folder.glob(f"{name}*/report.json") if path.stat().st_mtime >= since - 1]
    matching = [path for path in recent if load_report(path).experiment.name == name]
    return max(matching, key=lambda path: path.stat().st_mtime, default=None)


def write_experiment_file(folder: Path, experiment: dict[str, Any]) -> Path:
    """Write the experiment as a file of conf/experiment into its report's folder, and return the path."""
    file = folder / f"{experiment['name']}.yaml"
    with replace_atomically(file) as temporary:
        temporary.write_text(format_experiment_yaml(experiment), encoding="utf-8")
    return file


def run_inline_experiment(
    experiment: dict[str, Any], extra_overrides: Sequence[str], flags: Sequence[str], typed_command: str
) -> tuple[int, Path | None]:
    """Run an experiment that is in no file, with its progress on stderr.

    Args:
        typed_command: The command that the report shows.

    Returns:
        The exit status, and the new report.json, with the experiment's file beside it. None where there is
        none, as of a ladder or for `sweep.show`, whose output is on stdout.
    """
    start_time = time.time()
    has_own_output = {"ladder", "sweep.show"} & {*overrides.index_by_key(extra_overrides)}
    with (
        redirect_stdout(sys.stdout if has_own_output else sys.stderr),
        tempfile.TemporaryDirectory() as folder,
    ):
        file = Path(folder) / "experiment" / f"{experiment['name']}.yaml"
        file.parent.mkdir()
        file.write_text(format_experiment_yaml(experiment), encoding="utf-8")
        command = f"++sweep.command={overrides.quote_value(typed_command)}"
        search_path = format_search_path(Path(folder))
        status = run_hydra(
            [*flags, search_path, f"+experiment={experiment['name']}", *extra_overrides, command]
        )
    source = None if has_own_output else find_newest_report(extra_overrides, experiment["name"], start_time)
    if source is not None and status < 128:
        print(f"experiment file: {write_experiment_file(source.parent, experiment)}", file=sys.stderr)
        print(f"page: {source.with_name('report.html')}", file=sys.stderr)
    return status, source if status < 128 else None


def split_arms(words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Split the words into arms and overrides for all arms.

    The first two words are arms. A later word is an arm too if it contains a blank or sets a key that an arm
    sets: as an override it would have no effect.
    """
    if len(words) < 2:
        raise InvalidConfig(USAGE)
    arms = [word.split() for word in words[:2]]
    rest = []
    for word in words[2:]:
        arm_keys = {key for arm in arms for key in overrides.index_by_key(arm)}
        word_keys = overrides.index_by_key(word.split())
        arms.append(word.split()) if " " in word.strip() or set(word_keys) & arm_keys else rest.append(word)
    if not all(arms):
        raise InvalidConfig(f"an arm has no override: {USAGE}")
    return arms, rest


def build_experiment(
    arms: Sequence[Sequence[str]],
    rest: Sequence[str],
    config_dirs: Sequence[Path] = (CONF,),
    name_prefix: str = "",
    arm_names: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Build the experiment that compares later arms with the first, and return the words that it leaves over.

    Words of `rest` that set keys of the experiment replace its defaults, and other overrides become its
    overrides of all arms. Swept values and settings of the execution are left over. No report replaces that
    of a comparison with other terms: the name has `name_prefix`, for other claims, and a hash of all stated
    terms, and of the arms unless their names determine them. It is none of an experiment in `config_dirs`,
    since Hydra would run that one. Without `arm_names`, arms are named by their overrides.
    """
    for words in (rest, *arms):
        overrides.reject_duplicate_keys(overrides.parse_overrides(words), can_sweep=words is rest)
    for arm in arms:
        _reject_swept_keys(arm)
    if "hydra.searchpath" not in overrides.index_by_key(rest):  # it may add options
        _reject_unknown_options([word for arm in arms for word in arm], config_dirs)
    names = list(arm_names) or [format_arm_name(arm) for arm in arms]
    has_ambiguous_names = _has_ambiguous_names(names, arms, config_dirs)
    if len(set(names)) < len(names):
        names = [f"{name}_{i}" for i, name in enumerate(names)]
    explicit_settings, common_overrides, remaining = _extract_settings(rest)
    settings = _apply_defaults(explicit_settings)
    others = " or ".join(" ".join(arm) for arm in arms[1:])
    question = overrides.escape_interpolations(f"Is {others} non-inferior to {' '.join(arms[0])}?")
    name = name_prefix + "_vs_".join(names)
    terms = [*common_overrides, *_list_stated_terms(explicit_settings, settings)]
    if has_ambiguous_names:
        terms.append(f"arms={json.dumps([list(arm) for arm in arms])}")
    if terms:
        name += f"_{compute_digest(sorted(terms), 8)}"
    if any((folder / "experiment" / f"{name}.yaml").is_file() for folder in config_dirs):
        name = f"compare_{name}"
    experiment = {
        "name": name, "question": question, "overrides": common_overrides, "arms": names,
        "arm_overrides": {name: list(arm) for name, arm in zip(names, arms, strict=True)},
        "baseline": names[0], **settings,
        "claims": [_build_claim(name, names[0], settings) for name in names[1:]],
    }  # fmt: skip
    return experiment, remaining


def _reject_swept_keys(arm: Sequence[str]) -> None:
    """Check that an arm has one value per key.

    Raises:
        InvalidConfig: It has several, as in heads=gqa,mqa.
    """
    points = overrides.parse_command(arm).points
    if len(points) > 1:
        raise InvalidConfig(
            f"{' '.join(arm)}: an arm has one value per key: write {shlex.join(map(' '.join, points))}"
        )


def _reject_unknown_options(words: Sequence[str], config_dirs: Sequence[Path]) -> None:
    """Check that the selected options exist, since Hydra finds out only while the arms are composed.

    Raises:
        InvalidConfig: An option is in none of `config_dirs`.
    """
    for override in overrides.parse_overrides(words):
        group, option = override.key_or_group, override.value()
        folders = [folder / group for folder in config_dirs if (folder / group).is_dir()]
        if not folders or not isinstance(option, str):
            continue
        if not any((folder / f"{option.removesuffix('.yaml')}.yaml").is_file() for folder in folders):
            raise InvalidConfig(explain_missing_option(f"{group}/{option}", (), config_dirs))


def _extract_settings(words: Sequence[str]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Split the words into settings of the experiment, overrides of all arms, and words for the command.

    Settings that a ladder would replace are words for the command too, so that planning rejects them.
    """
    has_ladder = "ladder" in overrides.index_by_key(words)
    settings: dict[str, Any] = {}
    common_overrides = list[str]()
    remaining = list[str]()
    for override in overrides.parse_overrides(words):
        key = override.key_or_group
        line = str(override.input_line)
        if key == "seed":
            settings["seeds"] = list(overrides.parse_command([line]).seeds or ())
        elif override.is_sweep_override() or overrides.get_root_key(key) in overrides.EXECUTION_GROUPS:
            remaining.append(line)
        elif key in SETTING_KEYS:
            settings[key] = override.value()
            if has_ladder and key in KEYS_OF_LADDERS:
                remaining.append(line)
        elif key in Experiment.model_fields and key not in ("size", "ladder"):
            remaining.append(line)
        else:
            common_overrides.append(line)
    return settings, common_overrides, remaining


def _apply_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of missing settings; InvalidConfig for a margin that does not fit the metric."""
    completed = {**EXPERIMENT_DEFAULTS, **settings}
    if "margin" in settings and "margin_reason" not in settings:
        completed["margin_reason"] = "Given on the command line."
    if isinstance(completed["looks"], list) and "seeds" not in settings:
        del completed["seeds"]  # the last interim analysis sets the seeds
    margin = completed["margin"]
    has_default_metric = (
        completed["direction"] != "higher" and completed["metric"] == EXPERIMENT_DEFAULTS["metric"]
    )
    if "margin" not in settings and not has_default_metric:
        raise InvalidConfig(
            f"compare of {completed['metric']}: the default margin, 5% less training compute, "
            f"applies only to {EXPERIMENT_DEFAULTS['metric']}: give the margin as a number, as in "
            "margin=0.03"
        )
    if not _is_number(margin) and not isinstance(margin, dict):
        raise InvalidConfig(
            f"margin={margin}: give a number, as in margin=0.03, or a proportion of training "
            f"compute, as in {MARGIN_EXAMPLE}"
        )
    if not _is_number(margin) and "compute_calibration" not in settings:
        completed["compute_calibration"] = COMPUTE_CALIBRATION
    return completed


def _list_stated_terms(explicit_settings: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """List the explicit settings that decide the verdict and differ from the defaults.

    Seeds decide it only with planned analyses: anytime-valid ones allow more seeds in the same report.
    """
    ignored = {"margin_reason", "metrics", *(["seeds"] if settings["looks"] == "anytime" else [])}
    return [
        f"{key}={json.dumps(value, sort_keys=True)}"
        for key, value in explicit_settings.items()
        if key in Experiment.list_decisive_keys()
        and key not in ignored
        and value != EXPERIMENT_DEFAULTS.get(key)
    ]


def _build_claim(arm: str, baseline: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Build the claim that an arm is non-inferior to the baseline by the margin."""
    is_higher_better = settings["direction"] == "higher"
    margin = settings["margin"]
    return {
        "says": f"{arm} is non-inferior to {baseline}: worse by less than the margin",
        "arm": arm,
        "is": "above" if is_higher_better else "below",
        "threshold": (-margin if is_higher_better else margin) if _is_number(margin) else "margin",
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_experiment_yaml(experiment: dict[str, Any]) -> str:
    """Format the experiment as a file of conf/experiment."""
    head = f"# @package _global_\n# Question: {experiment['question']}\n"
    return head + OmegaConf.to_yaml(OmegaConf.create(experiment))


def format_arm_name(arm: Sequence[str]) -> str:
    """Format an arm's overrides as a name: values of groups, and key_value for other keys."""
    parts = []
    for override in overrides.parse_overrides(arm):
        key = override.key_or_group
        value = str(override.input_line).partition("=")[2]
        is_option = (
            "." not in key and key not in TopLevelGroup.model_fields
        )  # a parent id, for example, gets its key
        parts.append(value if is_option else f"{key.rpartition('.')[2]}_{value}")
    return format_name("_".join(parts))


def format_name(text: str) -> str:
    """Replace everything but letters and digits by underscores."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").lower() or "arm"


def _has_ambiguous_names(
    names: Sequence[str], arms: Sequence[Sequence[str]], config_dirs: Sequence[Path]
) -> bool:
    """Whether other overrides could have the names, unlike the name of one option that no other group has."""
    name_by_override = {
        f"{group}={option}": format_name(option)
        for group, options in list_groups(config_dirs).items()
        for option in options
    }
    counts = Counter(name_by_override.values())
    return any(
        [name_by_override.get(word.lstrip("+")) for word in arm] != [name] or counts[name] > 1
        for name, arm in zip(names, arms, strict=True)
    )
