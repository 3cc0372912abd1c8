"""Learning rates tuned: the toy's arms with one, two and four heads are best at 0.2, 0.4 and 0.8."""

import json
import math

import pytest
import yaml

from attnlab.errors import Refused
from attnlab.store.schema import RunRecord

TUNE = "+tune={lr:[0.8,0.2,0.4],seeds:[7,8]}"
BEST = {"one": 0.2, "two": 0.4, "four": 0.8}


def toy_record(run, **changes):
    off = abs(run.config["optim"]["lr"] - BEST[run.arm.split()[0]])
    record = RunRecord(
        id=run.id, status="done", seed=run.seed, config={}, metrics={"val/loss": off + run.seed}
    )
    return record.model_copy(update=changes)


def test_the_grid_is_every_arm_at_every_rate_on_seeds_of_its_own_before_anything_is_known(planned):
    [plan] = planned("+experiment=heads", TUNE)
    assert {(run.arm, run.seed) for run in plan.grid} == {
        (f"{arm} lr={rate}", seed) for arm in BEST for rate in (0.2, 0.4, 0.8) for seed in (7, 8)
    }
    assert plan.untuned == list({"two": 0, "one": 0, "four": 0})
    widths = {run.arm.split()[0]: run.config["model"]["width"] for run in plan.grid}
    assert widths == {"two": 12, "one": 14, "four": 8}, "an arm is tuned as it is compared: matched"


def test_each_arm_gets_its_best_rate_and_a_rate_that_failed_once_is_out(planned):
    [before] = planned("+experiment=heads", TUNE)
    records = {run.id: toy_record(run) for run in before.grid}
    [plan] = planned("+experiment=heads", TUNE, lookup=records.get)
    assert {run.arm: run.config["optim"]["lr"] for run in plan.runs} == BEST
    assert {run.arm: run.estimate.lr for run in plan.runs} == BEST, "what a budget table shows"
    assert not plan.untuned
    assert all("optim.lr=0.8" in run.overrides for run in plan.runs if run.arm == "four")

    lost = next(run for run in before.grid if run.arm == "four lr=0.8" and run.seed == 8)
    records[lost.id] = toy_record(lost, status="diverged")
    [plan] = planned("+experiment=heads", TUNE, lookup=records.get)
    assert {run.arm: run.config["optim"]["lr"] for run in plan.runs} == {**BEST, "four": 0.4}

    for run in before.grid:
        if run.arm.startswith("one"):
            records[run.id] = toy_record(run, status="crashed")
    [plan] = planned("+experiment=heads", TUNE, lookup=records.get)
    assert plan.untuned == ["one"]


def test_what_was_tuned_is_read_back_and_other_settings_are_told(planned, tmp_path):
    [before] = planned("+experiment=heads", TUNE)
    records = {run.id: toy_record(run) for run in before.grid}
    [tuned] = planned("+experiment=heads", TUNE, lookup=records.get)
    tuned.tuned.write(tmp_path / "tuned.yaml", "heads")
    kept = yaml.safe_load((tmp_path / "tuned.yaml").read_text())["tuned"]
    given = "+tuned=" + json.dumps(kept).replace('"', "").replace(" ", "")
    [plan] = planned("+experiment=heads", TUNE, given)
    assert plan.grid == []
    assert {run.id for run in plan.runs} == {run.id for run in tuned.runs}
    assert plan.tuned.told() == {**tuned.tuned.told(), "committed": True}

    [longer] = planned("+experiment=heads", TUNE, given, "trainer.max_steps=5")
    assert not any(found["same_settings"] for found in longer.tuned.told()["arms"].values())
    [other_size] = planned("+experiment=heads", TUNE, given, "size=M")
    assert len(other_size.grid) == 18, "another size is tuned for itself"
    with pytest.raises(Refused, match="has not the grid of tune for arm two: tuned=none"):
        planned("+experiment=heads", "+tune={lr:[0.2,0.4],seeds:[7,8]}", given)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["+tune={lr:[0.1],seeds:[7]}"], "two or more different rates"),
        (["+tune={lr:[0.1,-1],seeds:[7]}"], "above 0"),
        (["+tune={lr:[0.1,0.2],seeds:[]}"], "list of integers"),
        (["+tune={lr:[0.1,0.2],seeds:[1]}"], "seed 1 of the comparison"),
        (["+tune={lr:[0.1,0.2]}"], "tune.seeds: Field required"),
        ([TUNE, "optim.lr=0.3"], "drop it, or set tune=null"),
        ([TUNE, "arms=[two,child]", "match=none", "claims=[]"], "arm child continues from two"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_in_one_line(planned, arguments, line):
    with pytest.raises(Refused, match=line) as refused:
        planned("+experiment=heads", *arguments)
    assert "\n" not in str(refused.value)


def test_a_sweep_trains_the_grid_once_and_its_report_shows_and_charges_it(attnlab):
    status, out, err = attnlab("+experiment=heads", TUNE, "claims=[]")
    assert status == 0, err
    assert "tuning the learning rate: 18 runs to train" in out
    folder = next((attnlab.folder / "reports").glob("heads~*"))
    report = json.loads((folder / "report.json").read_text())
    grid = report["budget"]["tuning"]
    picked = {cell["arm"]: row["lr"] for row in grid["rows"] for cell in row["cells"] if cell["picked"]}
    assert picked == BEST
    assert all(math.isfinite(cell["mean"]) for row in grid["rows"] for cell in row["cells"])
    spent = next(row for row in report["budget"]["rows"] if row["key"] == "tuning_tokens")
    assert {cell["value"] for cell in spent["cells"]} == {30 * 3 * 2}
    assert sum("end of the grid" in warning for warning in report["warnings"]) == 2  # one and four
    assert len(attnlab.trained()) == 18 + 6
    assert attnlab("+experiment=heads", TUNE, "claims=[]")[0] == 0
    assert len(attnlab.trained()) == 18 + 6, "nothing is trained twice"
    assert (folder / "tuned.yaml").exists()
    store = attnlab.folder / "runs"
    part = next(run for run in store.glob("*/run.json") if json.loads(run.read_text())["seed"] == 7)
    part.unlink()  # as if the grid had been interrupted
    status, out, _ = attnlab("+experiment=heads", TUNE, "claims=[]")
    assert (status, len(attnlab.trained())) == (0, 18 + 6 + 1)
    assert "tuning the learning rate: 1 runs to train" in out
