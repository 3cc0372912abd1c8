"""Every experiment that ships runs end to end in its debug size, and says so.

Surprising: all but one are run by a few processes of many commands each: the imports of a command, of torch
above all, cost more than a tiny experiment. Their pictures are empty, and one cache serves all. The other one
goes the way of a user, twice, with its timing, and is not rare.
Experiments of many arms have one seed here, and a grid of learning rates is trained in one of them only.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf
from sampling import sample
from toys import plan_of_shipped

from attnlab.cli.verbs import schema
from attnlab.config import CONF
from attnlab.report.schema import load
from attnlab.store.schema import Estimate

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
TUNED = sorted({path.stem for path in (CONF / "tuned").glob("*.yaml")} - {"none"})
BY_HAND = "gqa_vs_mha"
GRID = "mla_vs_gqa"
PARTS = 2
SAMPLE = 4
MANY_ARMS = 3  # and more
FEW_ARMS = 20  # and fewer: more take minutes
MANY = """
import json, sys
from attnlab.__main__ import main
from attnlab.report.charts import drawing
empty = {True: ("png", ""), False: ("svg", "<svg></svg>")}
drawing._answers = lambda tasks: ([empty[task["label"] is None] for task in tasks], "")
lines, ended = json.loads(sys.stdin.read()), {}
for name, line in lines.items():
    print(f"== {name}", flush=True)
    ended[name] = main(line)
    print(f"== {name} {ended[name]}", flush=True)
"""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_cost_at_the_head_of_a_file_is_what_its_looks_come_to(name: str) -> None:
    """At least every arm at the first look; at most all looks of the arms of claims that are not counted, and
    of what these go on from.
    """
    path = CONF / "experiment" / f"{name}.yaml"
    said = re.search(r"^# Cost at S: (\d+) to (\d+) runs", path.read_text("utf-8"), re.MULTILINE)
    if said is None:
        return
    declared = OmegaConf.load(path)
    overrides = OmegaConf.to_container(declared.arm_overrides, resolve=False)
    claims = [
        one for one in declared.claims if one.get("metric") != "kv_bytes_per_token" and "identity" not in one
    ]
    deep = {one[key] for one in claims for key in ("arm", "against") if key in one}
    deep |= {declared.baseline for one in claims if "against" not in one}
    for _ in overrides:  # as many times as parents can stand behind each other
        deep |= {
            line.removeprefix("parent=")
            for arm in deep
            for line in overrides[arm]
            if line.startswith("parent=")
        }
    looks = declared.get("looks") or [len(declared.seeds)]
    counts = [looks[-1] if arm in deep else looks[0] for arm in declared.arms]
    assert [int(number) for number in said.groups()] == [looks[0] * len(counts), sum(counts)]


def some(declared: Any) -> list[str]:
    """Of many arms those that something is claimed of, an eighth of the others, and what they go on from."""
    claimed = {claim[key] for claim in declared.claims for key in ("arm", "against") if key in claim}
    kept = {declared.baseline, *claimed, *declared.arms[::8]}
    overrides = OmegaConf.to_container(declared.arm_overrides, resolve=False)
    kept |= {
        item.removeprefix("parent=") for arm in kept for item in overrides[arm] if item.startswith("parent=")
    }
    return [arm for arm in declared.arms if arm in kept]


def line(name: str, folder: Path, cache: Path, *more: str) -> list[str]:
    declared = OmegaConf.load(CONF / "experiment" / f"{name}.yaml")
    seeds = "1" if len(declared.arms) >= MANY_ARMS or name == GRID else "1,2"
    return [
        f"+experiment={name}", "size=debug", f"seed={seeds}", "logger=none", f"paths.runs={folder / 'runs'}",
        f"paths.reports={folder / 'reports'}", f"paths.cache={cache}",
        *(["tune.widen=0" if name == GRID else "tune=null"] if "tune" in declared else []),
        *(["exchange=null", "margin=0.03"] if "exchange" in declared else []),  # at debug it tells nothing
        *([f"texts=[{declared.texts[0]}]"] if "texts" in declared else []),  # the others take minutes to read
        *([f"arms=[{','.join(some(declared))}]"] if len(declared.arms) > FEW_ARMS else []),
        *more,
    ]  # fmt: skip


def missing(name: str, folder: Path) -> str:
    """What an experiment's report lacks; empty where it is whole."""
    found = list((folder / "reports").glob(f"{name}~*/"))
    if len(found) != 1:
        return f"{len(found)} reports"
    try:
        load(found[0] / "report.json")
    except ValueError as error:
        return str(error)
    files = ("report.html", "report.md", "runs.csv")
    return ", ".join(file for file in files if (found[0] / file).stat().st_size <= 100)


@pytest.mark.rare
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_other_experiment_ends_in_a_report(part, tmp_path, texts_kept):
    others = [*sample((name for name in EXPERIMENTS if name not in (BY_HAND, GRID)), SAMPLE - 1), GRID]
    all_end_in_a_report(others[part::PARTS], tmp_path, texts_kept)
    if GRID in others[part::PARTS]:
        assert list((tmp_path / "reports").glob(f"{GRID}~*/tuned.yaml"))


class Here:
    """What the trainer says of a config, asked in this process, but for memory."""

    def check(self, config):
        from attnlab.training.run import check

        return Estimate.model_validate(check(config))

    def count_resource(self, config, name):
        from attnlab.training.run import count_resource

        return count_resource(config, name)


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("name", TUNED)
def test_a_committed_rate_was_found_with_the_settings_of_today(name, tmp_path, texts_kept, monkeypatch):
    monkeypatch.setattr("attnlab.training.estimates.memory.peak", lambda *_given: 0)
    texts = OmegaConf.load(CONF / "experiment" / f"{name}.yaml").get("texts")
    for place in OmegaConf.load(CONF / "tuned" / f"{name}.yaml").tuned:
        size, _, text = place.partition("@")
        asked = [f"+experiment={name}", f"size={size}", *([f"texts=[{text or texts[0]}]"] if texts else [])]
        asked += [f"paths.runs={tmp_path}", f"paths.cache={texts_kept}"]
        plan = plan_of_shipped(asked, Here())
        assert plan.tuned.committed, "not found anew"
        assert plan.tuned.stale() == [], "for these settings"


def all_end_in_a_report(names, tmp_path, cache):
    lines = {name: line(name, tmp_path, cache, "measure.timing=false") for name in names}
    told = subprocess.run(
        [sys.executable, "-c", MANY],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=880,
        cwd=ROOT,
    )
    wrong = {name: missing(name, tmp_path) for name in names}
    wrong |= {name: "failed" for name in names if f"== {name} 0\n" not in told.stdout}
    assert not any(wrong.values()), f"{wrong}\n{told.stdout}\n{told.stderr}"
    for path in (tmp_path / "runs").glob("*/run.json"):
        run = json.loads(path.read_text())
        found = {*run["metrics"], *run["censored"], *run["memory"], *run["speed"]}
        assert found <= set(run["estimate"]["figures"]), "a claim about the others would be refused"


@pytest.mark.rare
def test_a_command_ends_in_a_report_and_a_second_one_trains_nothing(tmp_path):
    command = [sys.executable, "-m", "attnlab", *line(BY_HAND, tmp_path, tmp_path / "cache")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not missing(BY_HAND, tmp_path)
    assert list((tmp_path / "runs" / "timing").glob("*.json"))
    again = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert again.returncode == 0
    assert ", 0 to train" in again.stdout, again.stdout


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_begins_with_its_question_in_prose(name):
    lines = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert lines[1] == "# yaml-language-server: $schema=../schemas/experiment.json"
    assert lines[2].startswith("# Question: ")
    assert any(line.startswith("# Cost at S:") for line in lines)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_declared_in_full(name):
    found = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{name}.yaml"))
    assert found["name"] == name
    assert {"S", "M", "L"} <= set(found["size_overrides"])
    assert {claim["arm"] for claim in found["claims"]} <= set(found["arms"])
    assert len(found["margin_reason"]) > 20


SCHEMA = CONF / "schemas" / "experiment.json"


def faults(declared: object) -> list[str]:
    validator = Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(declared)]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_fits_the_schema_that_its_head_names(name):
    path = CONF / "experiment" / f"{name}.yaml"
    named = path.read_text("utf-8").splitlines()[1].partition("$schema=")[2]
    assert (path.parent / named).resolve() == SCHEMA.resolve()
    assert faults(OmegaConf.to_container(OmegaConf.load(path))) == []


def test_the_schema_in_the_repository_is_the_one_that_is_printed():
    assert SCHEMA.read_text("utf-8") == schema.text("experiment")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda found: found["claims"][0].update(treshold=1), "$.claims[0]: Additional properties"),
        (lambda found: found["claims"][0].pop("threshold"), "$.claims[0]: 'threshold' is a required"),
        (lambda found: found["claims"][0].update({"is": "under"}), "$.claims[0].is: 'under' is not one of"),
        (lambda found: found.update(tune={"lr": [0.1], "seed": [1]}), "$.tune: "),
        (lambda found: found.update(margin="small"), "$.margin: "),
        (lambda found: found.pop("baseline"), "$: 'baseline' is a required"),
    ],
)
def test_what_is_misspelt_in_an_experiment_does_not_fit_the_schema(change, fault):
    found = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{BY_HAND}.yaml"))
    change(found)
    assert any(line.startswith(fault) for line in faults(found)), faults(found)


def test_every_key_of_an_experiment_is_described_in_its_schema():
    whole = json.loads(SCHEMA.read_text("utf-8"))
    for record in (whole, whole["$defs"]["Claim"], whole["$defs"]["Tune"]):
        assert all(key["description"] for key in record["properties"].values())
    assert whole["additionalProperties"] is True
    assert whole["$defs"]["Claim"]["additionalProperties"] is False
    assert whole["$defs"]["Tune"]["additionalProperties"] is False
