"""Learning rates tuned: the toy's arms with one, two and four heads are best at 0.2, 0.4 and 0.8."""

import json
import math
from dataclasses import replace

import pytest
import yaml
from hydra.types import RunMode
from toys import Asked, shipped

from attnlab.errors import Refused
from attnlab.report.schema import RateFound
from attnlab.store.schema import Estimate, RunRecord
from attnlab.sweep.plan.arms import Arm
from attnlab.sweep.plan.composer import Composed, Composer
from attnlab.sweep.plan.plan import extend
from attnlab.sweep.plan.tuning import lr_grid
from attnlab.sweep.plan.tuning.found import Entry, Tuning, kept
from attnlab.sweep.plan.tuning.search import Grid

RATES = (0.2, 0.3, 0.4, 0.8)
TUNE = "tune={lr:[0.8,0.2,0.4,0.3],seeds:[7,8,9]}"
BEST = {"one": 0.2, "two": 0.4, "four": 0.8}
SEARCHED = {"one": (0.1333, 0.2, 0.3), "two": (0.3, 0.4, 0.8), "four": (0.4, 0.8, 1.6)}
ROUNDS: list = []


def toy_record(run, **changes):
    arm, _, rate = run.arm.partition(" lr=")
    loss = abs(float(rate or BEST[arm]) - BEST[arm]) + run.seed
    record = RunRecord(id=run.id, status="done", seed=run.seed, config=run.config, metrics={"val/loss": loss})
    return record.model_copy(update=changes)


@pytest.fixture(name="rounds")
def planned_rounds(planned):
    """What the toy's experiment is planned to be, before its tuning and after each round; made once."""
    if not ROUNDS:
        records = {}
        while True:
            [plan] = planned("+experiment=heads", TUNE, lookup=records.get)
            ROUNDS.append(plan)
            if all(run.id in records for run in plan.grid):
                break
            records |= {run.id: toy_record(run) for run in plan.grid if run.id not in records}
    return ROUNDS


def told(plan):
    return {(run.arm, run.seed) for run in plan.grid}


FIRST = {(f"{arm} lr={rate}", 7) for arm in BEST for rate in RATES}
SECOND = {(f"{arm} lr={rate}", seed) for arm in BEST for rate in SEARCHED[arm] for seed in (7, 8, 9)}


def test_tuning_extends_a_plan_to_what_planning_anew_gives(planned, monkeypatch):
    """Nothing is composed for it, and an arm is only checked where its schedule is another."""
    records = {}
    [plan] = planned("+experiment=heads", TUNE, lookup=records.get)
    for _ in range(2):
        records |= {run.id: toy_record(run) for run in plan.grid}
        [anew] = planned("+experiment=heads", TUNE, lookup=records.get)
        with monkeypatch.context() as forbidding:
            forbidding.setattr(Composer, "compose", None)
            [plan] = extend([plan], Asked(), records.get)
        assert plan == replace(anew, question=plan.question)
        assert len(plan.grid) > 12


@pytest.mark.rare
def test_the_first_rung_is_every_arm_at_every_rate_with_one_seed_for_a_third_of_the_steps(rounds):
    plan = rounds[0]
    assert told(plan) == FIRST
    assert plan.untuned == ["two", "one", "four"]
    widths = {run.arm.split()[0]: run.config["model"]["width"] for run in plan.grid}
    assert widths == {"two": 12, "one": 14, "four": 8}, "an arm is tuned as it is compared: matched"
    assert {(run.config["trainer"]["max_steps"], run.estimate.tokens) for run in plan.grid} == {(1, 10)}
    assert all("trainer.max_steps=1" in run.overrides for run in plan.grid)
    assert {run.config["trainer"]["max_steps"] for run in plan.runs} == {3}


def test_each_arm_gets_the_rate_with_the_best_median_between_two_worse_ones(rounds):
    plan = rounds[-1]
    assert {run.arm: run.config["optim"]["lr"] for run in plan.runs} == BEST
    assert {run.arm: run.estimate.lr for run in plan.runs} == BEST, "what a budget table shows"
    assert not plan.untuned
    assert all("optim.lr=0.8" in run.overrides for run in plan.runs if run.arm == "four")
    assert told(plan) == FIRST | SECOND
    assert [len(plan.grid) for plan in rounds] == [12, 12 + 2 + 6, 32, 32], "two was bracketed at once"


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (None, None),
        ({}, 2.5),
        ({"status": "diverged"}, math.inf),
        ({"status": "killed"}, None),
        ({"status": "out_of_memory"}, None),
        ({"status": "crashed"}, None),
        ({"metrics": {"train/loss": 1.0}}, None),
    ],
)
def test_what_diverged_is_the_worst_and_what_a_machine_lost_is_not_known(record, value):
    whole = RunRecord(id="run", status="done", seed=7, config={}, metrics={"val/loss": 2.5})
    assert (
        lr_grid._value(whole.model_copy(update=record) if record is not None else None, "val/loss") == value
    )


def tuning(found, direction="lower"):
    """A tuning of one arm, in which rates and seeds give what `found` says."""
    one = Tuning(Grid((1, 2, 4), (7, 8, 9), 0, 1.0), "val/loss", direction, "S")
    one.arms["one"] = Entry(one.search(found), "a", "a", 10, 20, 40)
    return one


def test_an_arm_has_no_rate_while_a_result_is_missing_or_where_the_best_rate_diverges():
    lost = tuning(lambda rate, seed: None if (rate, seed) == (2, 8) else rate)
    assert lost.picked("one") is None
    assert lost.lack("one") == "its learning rate is not known: no result at 2 with seed 8"
    bad = tuning(lambda rate, seed: 1 if seed == 7 else math.inf)
    assert bad.picked("one") is None
    assert bad.lack("one") == "even at its best learning rate, 1, half of the runs or more diverged"
    once = tuning(lambda rate, seed: math.inf if (rate, seed) == (2, 8) else abs(rate - 2))
    assert once.picked("one") == 2
    assert once.told().arms["one"].rows[1] == RateFound(lr=2, values=[0, "diverged", 0], median=0, tried=3)


def test_where_more_is_better_the_largest_median_is_picked_and_shown_as_it_was_measured():
    higher = tuning(lambda rate, seed: math.inf if rate == 4 else 1 - abs(rate - 2), "higher")
    assert higher.picked("one") == 2
    assert [row.median for row in higher.told().arms["one"].rows] == [0, 1, "diverged"]


def test_a_pick_at_an_end_is_told():
    assert tuning(lambda rate, seed: rate).told().arms["one"].at_end
    assert not tuning(lambda rate, seed: abs(rate - 2)).told().arms["one"].at_end


def written(plan, tmp_path):
    """What the plan's tuned.yaml holds."""
    plan.tuned.write(tmp_path / "tuned.yaml", "heads")
    return yaml.safe_load((tmp_path / "tuned.yaml").read_text())["tuned"]


def override(content):
    return "+tuned=" + json.dumps(content).replace('"', "").replace(" ", "")


def test_what_was_tuned_is_read_back_and_other_settings_are_told(planned, rounds, tmp_path):
    content = override(written(rounds[-1], tmp_path))
    [plan] = planned("+experiment=heads", TUNE, content)
    assert plan.grid == []
    assert {run.id for run in plan.runs} == {run.id for run in rounds[-1].runs}
    assert plan.tuned.told() == rounds[-1].tuned.told().model_copy(update={"committed": True})

    [longer] = planned("+experiment=heads", TUNE, content, "trainer.max_steps=5", "arms=[two]", "claims=[]")
    assert not any(found.same_settings for found in longer.tuned.told().arms.values())
    assert longer.tuned.stale() == [
        "two: its learning rate was tuned for other settings; tuned=none trains it anew"
    ]
    [looked] = planned("+experiment=heads", TUNE, content, "+measure.maps=9", "arms=[two]", "claims=[]")
    assert not looked.tuned.stale(), "what is measured changes no rate"
    [other_size] = planned("+experiment=heads", TUNE, content, "size=M", "arms=[two]", "claims=[]")
    assert len(other_size.grid) == 4, "another size is tuned for itself"
    less = written(rounds[-1], tmp_path)
    less["S"]["arms"]["two"]["rows"].pop(1)
    with pytest.raises(Refused, match="has no rate for arm two; tuned=none trains it anew"):
        planned("+experiment=heads", TUNE, override(less), "arms=[two]", "claims=[]")


def test_one_that_diverged_is_written_and_read_as_that(tmp_path):
    one = tuning(lambda rate, seed: math.inf if (rate, seed) == (2, 8) else abs(rate - 2))
    one.write(tmp_path / "tuned.yaml", "heads")
    content = yaml.safe_load((tmp_path / "tuned.yaml").read_text())["tuned"]["S"]
    again = lr_grid._again(lr_grid.Kept.model_validate(content["arms"]["one"]), one)
    assert again == one.arms["one"].search


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda kept: kept.pop("lr"), "heads at size S has not the form of today: lr: Field required"),
        (lambda kept: kept.update(widen=1), "with another tune or metric than today's"),
        (lambda kept: kept.update(seeds=[7, 8, 10]), "with another tune or metric than today's"),
        (lambda kept: kept.update(metric="train/loss"), "with another tune or metric than today's"),
    ],
)
def test_what_was_tuned_otherwise_is_refused_with_the_way_out(rounds, tmp_path, change, line):
    plan, content = rounds[-1], written(rounds[-1], tmp_path)
    assert kept(plan.experiment.model_copy(update={"tuned": content}), plan.tuned) is not None
    change(content["S"])
    with pytest.raises(Refused, match=line) as refused:
        kept(plan.experiment.model_copy(update={"tuned": content}), plan.tuned)
    assert str(refused.value).endswith("; tuned=none trains it anew")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["tune={lr:[0.1],seeds:[7,8,9]}"], "two or more rates"),
        (["tune={lr:[0.1,0.1005],seeds:[7,8,9]}"], "each 1% or more above the one before"),
        (["tune={lr:[0.1,-1],seeds:[7,8,9]}"], "above 0"),
        (["tune={lr:[0.1,0.2],seeds:[7,8]}"], "give 3 or more different seeds, or one bad one picks"),
        (["tune={lr:[0.1,0.2],seeds:[7,8,8]}"], "give 3 or more different seeds"),
        (["tune={lr:[0.1,0.2],seeds:[1,7,8]}"], "seed 1 of the comparison"),
        (["tune={lr:[0.1,0.2]}"], "tune.seeds: Field required"),
        (["tune={lr:[0.1,0.2],seeds:[7,8,9],share:0}"], "tune.share: .*greater than 0"),
        ([TUNE, "optim.lr=0.3"], "drop it, or set tune=null"),
        ([TUNE, "arms=[two,child]", "match=none"], "arm child continues from two"),
        ([TUNE, "+measurement={_target_: toy_variant.Heads}"], "arm two trains nothing"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_in_one_line(planned, arguments, line):
    few = [] if any(word.startswith("arms=") for word in arguments) else ["arms=[two]"]
    with pytest.raises(Refused, match=line) as refused:
        planned("+experiment=heads", *few, "claims=[]", *arguments)
    assert "\n" not in str(refused.value)


def test_a_share_of_the_steps_is_at_least_one_and_needs_steps():
    class Checked:
        @staticmethod
        def check(config):
            return Estimate(steps=config["trainer"]["max_steps"])

    def steps(most, share):
        composed = Composed({"seed": 0, "optim": {"lr": 1.0}, "trainer": {"max_steps": most}}, {})
        asked = Grid((0.1, 0.2), (7, 8, 9), 0, share)
        return lr_grid._short(Arm("two", composed, {}, (), Estimate(), {}), asked, Checked()).estimate.steps

    assert [steps(300, 1 / 3), steps(200, 1 / 3), steps(2, 1 / 3), steps(200, 1)] == [100, 66, 1, 200]
    with pytest.raises(Refused, match=r"a share of trainer.max_steps, which is None: tune=null"):
        steps(None, 1 / 3)


def test_without_an_experiment_there_is_nothing_to_tune(planned):
    with pytest.raises(Refused, match="without an experiment nothing is declared; name one"):
        planned(TUNE)
    assert planned("tune=null")
    assert "tune" in shipped().load_configuration("config", [], RunMode.RUN), "so tune=... needs no +"
