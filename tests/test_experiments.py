"""Every shipped experiment runs end to end at size=debug.

Surprising: a few processes run many commands each, since importing torch costs more than a tiny experiment.
Their charts are blank, and they share one cache. One experiment runs twice as a user's command, with timing.
Experiments with many arms have one seed here, and only one trains its learning-rate grid.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from experiment_files import list_claim_arms, load_expanded
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf
from sampling import sample
from toys import plan_shipped

from attnlab.cli.verbs import schema
from attnlab.config import CONF
from attnlab.report.schema import load_report
from attnlab.store.run_schema import RunEstimate

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
TUNED = sorted({path.stem for path in (CONF / "tuned").glob("*.yaml")} - {"none"})
USER_EXPERIMENT = "gqa_vs_mha"
GRID_EXPERIMENT = "mla_vs_gqa"
PARTS = 2
SAMPLE = 4
MANY_ARMS = 3  # and above
FEW_ARMS = 20  # and below: more take minutes
SESSION = """
import json, sys
from attnlab.__main__ import main
from attnlab.report.charts import chart_renderer
empty = {True: ("png", ""), False: ("svg", "<svg></svg>")}
chart_renderer._run_renderer = lambda tasks: ([empty[task["label"] is None] for task in tasks], "")
lines, ended = json.loads(sys.stdin.read()), {}
for name, line in lines.items():
    print(f"== {name}", flush=True)
    ended[name] = main(line)
    print(f"== {name} {ended[name]}", flush=True)
"""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cost_comment_equals_the_runs_of_the_interim_analyses(name: str) -> None:
    """Check the range of runs in the comment.

    Lower bound: every arm at the first interim analysis. Upper bound: all analyses of the arms of claims that
    are decided by sampling, and of their parents.
    """
    path = CONF / "experiment" / f"{name}.yaml"
    cost = re.search(r"^# Cost at S: (\d+) to (\d+) runs", path.read_text("utf-8"), re.MULTILINE)
    if cost is None:
        return
    experiment = load_expanded(path)
    overrides = OmegaConf.to_container(experiment.arm_overrides, resolve=False)
    claims = [
        claim
        for claim in experiment.claims
        if claim.get("metric") != "kv_bytes_per_token" and "identity" not in claim
    ]
    extended_arms = {arm for claim in claims for arm in list_claim_arms(claim, experiment.baseline)}
    for _ in overrides:  # as often as parents can be nested
        extended_arms |= {
            override.removeprefix("parent=")
            for arm in extended_arms
            for override in overrides[arm]
            if override.startswith("parent=")
        }
    looks = experiment.get("looks") or [len(experiment.seeds)]
    counts = [looks[-1] if arm in extended_arms else looks[0] for arm in experiment.arms]
    assert [int(number) for number in cost.groups()] == [looks[0] * len(counts), sum(counts)]


def select_arms(experiment: Any) -> list[str]:
    """Select arms with claims, an eighth of the others, and the parents of both."""
    claimed_arms = {arm for claim in experiment.claims for arm in list_claim_arms(claim, experiment.baseline)}
    selected = {experiment.baseline, *claimed_arms, *experiment.arms[::8]}
    overrides = OmegaConf.to_container(experiment.arm_overrides, resolve=False)
    selected |= {
        override.removeprefix("parent=")
        for arm in selected
        for override in overrides[arm]
        if override.startswith("parent=")
    }
    return [arm for arm in experiment.arms if arm in selected]


def make_line(name: str, folder: Path, cache: Path, *overrides_added: str) -> list[str]:
    experiment = load_expanded(CONF / "experiment" / f"{name}.yaml")
    seeds = "1" if len(experiment.arms) >= MANY_ARMS or name == GRID_EXPERIMENT else "1,2"
    return [
        f"+experiment={name}", "size=debug", f"seed={seeds}", "logger=none", f"paths.runs={folder / 'runs'}",
        f"paths.reports={folder / 'reports'}", f"paths.cache={cache}",
        *(["tune.extend=0" if name == GRID_EXPERIMENT else "tune=null"] if "tune" in experiment else []),
        *(["compute_calibration=null", "margin=0.03"] if "compute_calibration" in experiment else []),
        *([f"corpora=[{experiment.corpora[0]}]"] if "corpora" in experiment else []),
        *([f"arms=[{','.join(select_arms(experiment))}]"] if len(experiment.arms) > FEW_ARMS else []),
        *overrides_added,
    ]  # fmt: skip


def describe_missing_files(name: str, folder: Path) -> str:
    """Describe the missing parts of an experiment's report; empty if it is complete."""
    reports = list((folder / "reports").glob(f"{name}~*/"))
    if len(reports) != 1:
        return f"{len(reports)} reports"
    try:
        load_report(reports[0] / "report.json")
    except ValueError as error:
        return str(error)
    files = ("report.html", "report.md", "runs.csv")
    return ", ".join(file for file in files if (reports[0] / file).stat().st_size <= 100)


@pytest.mark.rare
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_other_experiments_produce_a_report(part, tmp_path, corpus_cache):
    names = [
        *sample((name for name in EXPERIMENTS if name not in (USER_EXPERIMENT, GRID_EXPERIMENT)), SAMPLE - 1),
        GRID_EXPERIMENT,
    ]
    run_all_to_reports(names[part::PARTS], tmp_path, corpus_cache)
    if GRID_EXPERIMENT in names[part::PARTS]:
        assert list((tmp_path / "reports").glob(f"{GRID_EXPERIMENT}~*/tuned.yaml"))


class InProcessChecker:
    """attnlab's trainer without a checking process."""

    def check(self, config):
        from attnlab.training.run import check

        return RunEstimate.model_validate(check(config))

    def count_resource(self, config, name):
        from attnlab.training.run import count_resource

        return count_resource(config, name)


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("name", TUNED)
def test_committed_learning_rates_match_current_settings(name, tmp_path, corpus_cache, monkeypatch):
    monkeypatch.setattr("attnlab.training.estimates.training_memory.estimate_peak_memory", lambda *_given: 0)
    texts = OmegaConf.load(CONF / "experiment" / f"{name}.yaml").get("corpora")
    for place in OmegaConf.load(CONF / "tuned" / f"{name}.yaml").tuned:
        size, _, text = place.partition("@")
        words = [f"+experiment={name}", f"size={size}", *([f"corpora=[{text or texts[0]}]"] if texts else [])]
        words += [f"paths.runs={tmp_path}", f"paths.cache={corpus_cache}"]
        plan = plan_shipped(words, InProcessChecker())
        assert plan.tuning.committed, "not found anew"
        assert plan.tuning.describe_stale_rates() == [], "for these settings"


def run_all_to_reports(names, tmp_path, cache):
    lines = {name: make_line(name, tmp_path, cache, "measure.timing=false") for name in names}
    result = subprocess.run(
        [sys.executable, "-c", SESSION],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=880,
        cwd=ROOT,
    )
    problems = {name: describe_missing_files(name, tmp_path) for name in names}
    problems |= {name: "failed" for name in names if f"== {name} 0\n" not in result.stdout}
    assert not any(problems.values()), f"{problems}\n{result.stdout}\n{result.stderr}"
    for path in (tmp_path / "runs").glob("*/run.json"):
        run = json.loads(path.read_text())
        recorded_names = {*run["metrics"], *run["censored"], *run["memory"], *run["speed"]}
        expected_names = set(run["estimate"]["metric_names"])
        assert recorded_names <= expected_names, "a claim about the others would be refused"


@pytest.mark.rare
def test_command_produces_a_report_and_its_repetition_trains_nothing(tmp_path):
    command = [sys.executable, "-m", "attnlab", *make_line(USER_EXPERIMENT, tmp_path, tmp_path / "cache")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert not describe_missing_files(USER_EXPERIMENT, tmp_path)
    assert list((tmp_path / "runs" / "timing").glob("*.json"))
    second_result = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert second_result.returncode == 0
    assert ", 0 to train" in second_result.stdout, second_result.stdout


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_file_starts_with_its_question(name):
    lines = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert lines[1] == "# yaml-language-server: $schema=../schemas/experiment.json"
    assert lines[2].startswith("# Question: ")
    assert any(line.startswith("# Cost at S:") for line in lines)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_file_is_complete(name):
    experiment = load_expanded(CONF / "experiment" / f"{name}.yaml")
    assert experiment["name"] == name
    assert {"S", "M", "L"} <= set(experiment["size_overrides"])
    claimed_arms = {arm for claim in experiment.claims for arm in list_claim_arms(claim, experiment.baseline)}
    assert claimed_arms <= set(experiment["arms"])
    assert len(experiment["margin_reason"]) > 20


SCHEMA = CONF / "schemas" / "experiment.json"


def find_schema_errors(experiment: object) -> list[str]:
    validator = Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(experiment)]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_validates_against_its_schema(name):
    path = CONF / "experiment" / f"{name}.yaml"
    schema_path = path.read_text("utf-8").splitlines()[1].partition("$schema=")[2]
    assert (path.parent / schema_path).resolve() == SCHEMA.resolve()
    assert find_schema_errors(OmegaConf.to_container(OmegaConf.load(path))) == []


def test_stored_schema_equals_the_printed_one():
    assert SCHEMA.read_text("utf-8") == schema.format_schema("experiment")


@pytest.mark.parametrize(
    ("change", "expected_error"),
    [
        (lambda experiment: experiment["claims"][0].update(treshold=1), "$.claims[0]: Additional properties"),
        (
            lambda experiment: experiment["claims"][0].pop("threshold"),
            "$.claims[0]: 'threshold' is a required",
        ),
        (
            lambda experiment: experiment["claims"][0].update({"is": "under"}),
            "$.claims[0].is: 'under' is not one of",
        ),
        (lambda experiment: experiment.update(tune={"lr": [0.1], "seed": [1]}), "$.tune: "),
        (lambda experiment: experiment.update(margin="small"), "$.margin: "),
        (lambda experiment: experiment.pop("baseline"), "$: 'baseline' is a required"),
    ],
)
def test_misspelled_key_violates_the_schema(change, expected_error):
    experiment = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{USER_EXPERIMENT}.yaml"))
    change(experiment)
    assert any(line.startswith(expected_error) for line in find_schema_errors(experiment)), (
        find_schema_errors(experiment)
    )


def test_every_experiment_key_has_a_description():
    schema_document = json.loads(SCHEMA.read_text("utf-8"))
    for definition in (
        schema_document,
        schema_document["$defs"]["Claim"],
        schema_document["$defs"]["TuningConfig"],
    ):
        assert all(key["description"] for key in definition["properties"].values())
    assert schema_document["additionalProperties"] is True
    assert schema_document["$defs"]["Claim"]["additionalProperties"] is False
    assert schema_document["$defs"]["TuningConfig"]["additionalProperties"] is False
