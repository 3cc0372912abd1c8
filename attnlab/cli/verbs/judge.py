"""`python -m attnlab judge A B`: is B better than A? One verdict as JSON on stdout, and an exit status that
says the same, for people and programs that propose changes. What is going on goes to stderr.

It is `compare` with two arms, another claim, and looks: B is better by more than the margin.
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

from attnlab.cli.flags import BUDGETS
from attnlab.cli.hydra import handed_on
from attnlab.cli.verbs import compare
from attnlab.errors import Refused, nearest
from attnlab.report.schema import Report, RunRow, Verdict, load
from attnlab.store.fingerprint import flatten
from attnlab.store.schema import LOST
from attnlab.sweep.plan import overrides

LOOKS = "looks=[4,6,9,12,16]"
ENDS = {  # word of the claim -> exit status, verdict
    Verdict.SUPPORTED: (0, "better"),
    Verdict.REFUTED: (3, "not better"),
    Verdict.INCONCLUSIVE: (4, "undecided"),
    Verdict.NO_RESULT: (4, "undecided"),
    Verdict.UNTRAINED: (4, "undecided"),
    Verdict.NOT_COMPARABLE: (5, "not comparable"),
}
HELD = {  # of --budget, beside the tokens
    "tokens": [],
    "parameters": ["held=[parameters,tokens]", "match=params", "match_by=model.ffn_width"],
    "flops": ["held=[flops_per_token,tokens]", "match=flops", "match_by=model.ffn_width"],
    "cache": ["held=[kv_bytes_per_token,tokens]"],
}
FIGURES = ("parameters", "flops_per_token", "kv_bytes_per_token", "tokens", "lr")  # of an arm


def main(options: argparse.Namespace) -> int:
    """Prints the verdict; returns its exit status."""
    began = time.time()
    experiment, rest = asked(options)
    flags = handed_on(options)
    given = [word for flag in ("metric", "margin", "budget") if (value := getattr(options, flag)) is not None
             for word in (f"--{flag}", value)]  # fmt: skip
    typed = shlex.join(["python", "-m", "attnlab", "judge", *options.words, *given, *flags])
    with redirect_stdout(sys.stderr):
        status = compare.ask(experiment, rest, flags, typed)
    source = _report(Path(overrides.text(rest, "paths.reports") or "reports"), experiment["name"], began)
    if source is None or status >= 128:
        return status
    ended, answer = verdict(load(source), source.with_name("report.html"))
    print(json.dumps(answer, indent=1, ensure_ascii=False))
    return status if status and ended == ENDS[Verdict.NO_RESULT][0] else ended


def asked(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The experiment that asks, A its first arm and B its second; and the words that are left over."""
    if len(options.words) < 2:
        raise Refused('judge which two? As in: python -m attnlab judge "heads=mha" "heads=gqa"')
    if options.budget is not None and options.budget not in BUDGETS:
        near = nearest(options.budget, BUDGETS)
        raise Refused(f"--budget {options.budget}: one of {', '.join(BUDGETS)}{near}")
    arms = [_arm(word) for word in options.words[:2]]
    rest = options.words[2:]
    hidden = {key for arm in arms for key in overrides.keys(arm)} & {*overrides.keys(rest)}
    if hidden:
        raise Refused(f"{', '.join(sorted(hidden))}: A or B sets it, so a word for both would hide it")
    words = [*HELD[options.budget or "tokens"], *rest]
    words += [f"metric={options.metric}"] if options.metric is not None else []
    if options.margin is not None:
        share = re.fullmatch(r"\s*([\d.]+)\s*%\s*", options.margin)
        words.append(f"margin={{training:{share[1]}%}}" if share else f"margin={options.margin}")
    said = overrides.keys(words)
    if "looks" not in said and "seed" not in said:
        words.append(LOOKS)
    experiment, left = compare.declare(arms, words)
    first, second = experiment["arms"]
    [claim] = experiment["claims"]
    claim["says"] = f"{second} is better than {first} by more than the margin"
    claim["threshold"] = -claim["threshold"] if claim["threshold"] != "margin" else "-margin"
    experiment["question"] = f"Is {' '.join(arms[1])} better than {' '.join(arms[0])}?"
    return experiment, left


def verdict(report: Report, page: Path) -> tuple[int, dict[str, Any]]:
    """The exit status of a report's one claim, and all that programs are told of it."""
    from attnlab.report.tables.wording import describe_claim, format_training  # late: scipy

    [claim] = report.verdict.claims
    ended, word = ENDS[claim.verdict]
    decision = claim.decision
    runs = report.runs
    return ended, {
        "verdict": word,
        "claim": claim.verdict,  # UNTRAINED and NO RESULT are undecided too
        "sentence": describe_claim(claim),
        "metric": claim.metric,
        "unit": claim.unit,
        "direction": claim.direction,
        "margin": report.experiment.margin,
        "estimate": decision.estimate,  # B less A
        "interval": {"low": decision.low, "high": decision.high, "level": decision.level},
        "as_training": format_training(claim.training) if claim.training else None,
        "exploratory": claim.exploratory,
        "seeds": decision.n,
        "cost": {
            "runs": len(runs),
            "failed": sum(run.status not in ("done", *LOST) for run in runs),
            "lost": sum(run.status in LOST for run in runs),  # to the machine: no outcome of a side
            "seconds": round(sum(run.seconds or 0 for run in runs), 1),
            **{side: _cost(runs, arm) for side, arm in zip(("a", "b"), report.experiment.arms, strict=True)},
        },
        "size": report.experiment.size,
        "report": str(page),
        "command": report.reproduce.command,
    }


def _cost(runs: Sequence[RunRow], arm: str) -> dict[str, Any]:
    """An arm's figures, of its first run that has them."""
    known = next((run.budget for run in runs if run.arm == arm and run.budget.known()), None)
    return {"arm": arm, **{figure: known.get(figure) if known else None for figure in FIGURES}}


def _report(folder: Path, name: str, since: float) -> Path | None:
    """The report of this command: the experiment's that was written last, and not before it began."""
    written = [path for path in folder.glob(f"{name}*/report.json") if path.stat().st_mtime >= since - 1]
    own = [path for path in written if load(path).experiment.name == name]
    return max(own, key=lambda path: path.stat().st_mtime, default=None)


def _arm(word: str) -> list[str]:
    """The overrides of a side: those typed, or what a yaml file sets."""
    if "=" in word or Path(word).suffix not in (".yaml", ".yml"):
        return word.split()
    try:
        values = OmegaConf.to_container(OmegaConf.load(word))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Refused(f"{word}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not values:
        raise Refused(f"{word}: not a mapping of keys of the config to values")
    return [f"++{key}={_written(leaf)}" for key, leaf in flatten(values)]


def _written(value: Any) -> str:
    """A value as an override has it."""
    if isinstance(value, str):
        return overrides.quoted(value)
    if isinstance(value, list):
        return f"[{','.join(_written(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
