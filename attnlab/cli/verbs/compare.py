"""`python -m attnlab compare "heads=mha" "heads=gqa position=rope" [overrides]`: a question without a file.

It writes the experiment file that asks the question, runs that, and prints it, so that it can be kept.
"""

import argparse
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from attnlab.cli.hydra import handed_on, hydra
from attnlab.errors import Refused
from attnlab.store.values import Top
from attnlab.sweep.plan import overrides

USAGE = (
    'compare takes two arms or more, as in: python -m attnlab compare "heads=mha" "heads=gqa position=rope"'
)
SEEDS = [0, 1, 2, 3, 4, 5]
SHARE = "margin={training:5%}"
DEFAULTS: dict[str, Any] = {
    "seeds": SEEDS, "looks": "anytime", "held": ["tokens"], "match": "none", "match_by": None,
    "metric": "val/loss", "direction": "lower", "margin": {"training": "5 %"},
    "margin_reason": "The default of compare: what 5 % less training would cost.", "exchange": None,
}  # fmt: skip
EXCHANGE = {"seeds": [200, 201, 202]}  # of a margin that is declared in training, unless others are given


def main(options: argparse.Namespace) -> int:
    """Runs the comparison; returns the exit status of its sweep."""
    arms, rest = split(options.words)
    experiment, rest = declare(arms, rest)
    flags = handed_on(options)
    typed = shlex.join(["python", "-m", "attnlab", "compare", *options.words, *flags])
    status = ask(experiment, rest, flags, typed)
    name = experiment["name"]
    text = yaml(experiment)
    print(f"To keep the question, save this as conf/experiment/{name}.yaml:\n\n{text}", end="")
    return status


def ask(experiment: dict[str, Any], rest: Sequence[str], flags: Sequence[str], typed: str) -> int:
    """Runs an experiment that is in no file; `typed` is the command that the report names."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment" / f"{experiment['name']}.yaml"
        file.parent.mkdir()
        file.write_text(yaml(experiment), encoding="utf-8")
        where = f"hydra.searchpath=['file://{folder}']"
        command = f"++sweep.command={overrides.quoted(typed)}"
        return hydra([*flags, where, f"+experiment={experiment['name']}", *rest, command])


def split(words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """The arms and the overrides for all of them.

    The first two words are arms; so is each later one that has a blank in it or sets what an arm sets:
    as an override it would be hidden.
    """
    if len(words) < 2:
        raise Refused(USAGE)
    arms = [word.split() for word in words[:2]]
    rest = []
    for word in words[2:]:
        set_by_arms = {key for arm in arms for key in overrides.keys(arm)}
        own = overrides.keys(word.split())
        arms.append(word.split()) if " " in word.strip() or set(own) & set_by_arms else rest.append(word)
    if not all(arms):
        raise Refused(f"an arm sets nothing; {USAGE}")
    return arms, rest


def declare(arms: Sequence[Sequence[str]], rest: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The experiment that asks whether the later arms do as well as the first; and what is left over of
    `rest` where its other words say what the experiment declares.
    """
    names = [_name(arm) for arm in arms]
    if len(set(names)) < len(names):
        names = [f"{name}_{i}" for i, name in enumerate(names)]
    said, left = _said(rest)
    given = _completed(said)
    question = f"Does {' or '.join(' '.join(arm) for arm in arms[1:])} do as well as {' '.join(arms[0])}?"
    experiment = {
        "name": "_vs_".join(names), "question": question, "arms": names,
        "arm_overrides": {name: list(arm) for name, arm in zip(names, arms, strict=True)},
        "baseline": names[0], **given, "claims": [_claim(name, names[0], given) for name in names[1:]],
    }  # fmt: skip
    return experiment, left


def _said(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """What of the experiment the words declare, and the words that declare nothing."""
    said: dict[str, Any] = {}
    left = list[str]()
    for override in overrides.parse(words):
        key = override.key_or_group
        if key == "seed":
            said["seeds"] = list(overrides.read([str(override.input_line)]).seeds or ())
        elif key in DEFAULTS and not override.is_sweep_override():
            said[key] = override.value()
        else:
            left.append(str(override.input_line))
    return said, left


def _completed(said: Mapping[str, Any]) -> dict[str, Any]:
    """With the defaults of what was not said. Refused for a margin that does not fit."""
    given = {**DEFAULTS, **said}
    if "margin" in said and "margin_reason" not in said:
        given["margin_reason"] = "Given on the command line."
    if isinstance(given["looks"], list) and "seeds" not in said:
        del given["seeds"]  # the last look has its own
    margin = given["margin"]
    usual = given["direction"] != "higher" and given["metric"] == DEFAULTS["metric"]
    if "margin" not in said and not usual:
        raise Refused(
            f"compare of {given['metric']}: what 5 % less training would cost is asked of "
            f"{DEFAULTS['metric']} alone; give its margin as a number, as in margin=0.03"
        )
    if not _is_number(margin) and not isinstance(margin, dict):
        raise Refused(f"margin={margin}: give a number, as in margin=0.03, or a share, as in {SHARE}")
    if not _is_number(margin) and "exchange" not in said:
        given["exchange"] = EXCHANGE
    return given


def _claim(name: str, baseline: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """That an arm is worse than the baseline by less than the margin."""
    higher = given["direction"] == "higher"
    margin = given["margin"]
    return {
        "says": f"{name} is worse than {baseline} by less than the margin",
        "arm": name,
        "is": "above" if higher else "below",
        "threshold": (-margin if higher else margin) if _is_number(margin) else "margin",
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def yaml(experiment: dict[str, Any]) -> str:
    """The experiment as a file of conf/experiment."""
    head = f"# @package _global_\n# Question: {experiment['question']}\n"
    return head + OmegaConf.to_yaml(OmegaConf.create(experiment))


def _name(arm: Sequence[str]) -> str:
    """What an arm sets, in a word: values of groups, and key_value of other keys."""
    parts = []
    for override in overrides.parse(arm):
        key = override.key_or_group
        value = str(override.input_line).partition("=")[2]
        is_option = "." not in key and key not in Top.model_fields  # a run's id is no arm's name
        parts.append(value if is_option else f"{key.rpartition('.')[2]}_{value}")
    return re.sub(r"[^A-Za-z0-9]+", "_", "_".join(parts)).strip("_").lower() or "arm"
