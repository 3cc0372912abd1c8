"""Learning-rate tuning: the toy's arms with one, two and four heads are best at 0.2, 0.4 and 0.8."""

import json
import math
from dataclasses import replace

import pytest
import yaml
from hydra.types import RunMode
from toys import InProcessChecker, shipped_loader

from attnlab.errors import InvalidConfig
from attnlab.report.schema import LearningRateResult
from attnlab.store import run_directories
from attnlab.store.run_schema import RunEstimate, RunResult
from attnlab.sweep.plan.arms import Arm
from attnlab.sweep.plan.composer import ComposedConfig, Composer
from attnlab.sweep.plan.plan import extend_plans
from attnlab.sweep.plan.tuning import lr_tuning
from attnlab.sweep.plan.tuning.lr_search import RateGrid
from attnlab.sweep.plan.tuning.tuning_results import ArmSearch, TuningState, load_committed_rates
from attnlab.sweep.status import work_left

RATES = (0.2, 0.3, 0.4, 0.8)
TUNE = "tune={lr:[0.8,0.2,0.4,0.3],seeds:[7,8,9]}"
BEST = {"one": 0.2, "two": 0.4, "four": 0.8}
SEARCHED = {"one": (0.1333, 0.2, 0.3), "two": (0.3, 0.4, 0.8), "four": (0.4, 0.8, 1.6)}
ROUNDS: list = []


def make_toy_result(run, **changes):
    arm, _, rate = run.arm.partition(" lr=")
    loss = abs(float(rate or BEST[arm]) - BEST[arm]) + run.seed
    result = RunResult(id=run.id, status="done", seed=run.seed, config=run.config, metrics={"val/loss": loss})
    return result.model_copy(update=changes)


@pytest.fixture(name="rounds")
def make_tuning_rounds(plan_toy):
    """The plans of the toy's experiment before tuning and after each round of it; made once per process."""
    if not ROUNDS:
        results = {}
        while True:
            [plan] = plan_toy("+experiment=heads", TUNE, lookup=results.get)
            ROUNDS.append(plan)
            if all(run.id in results for run in plan.tuning_runs):
                break
            results |= {run.id: make_toy_result(run) for run in plan.tuning_runs if run.id not in results}
    return ROUNDS


def list_tuning_runs(plan):
    return {(run.arm, run.seed) for run in plan.tuning_runs}


FIRST = {(f"{arm} lr={rate}", 7) for arm in BEST for rate in RATES}
SECOND = {(f"{arm} lr={rate}", seed) for arm in BEST for rate in SEARCHED[arm] for seed in (7, 8, 9)}


def test_extended_plan_equals_new_plan(plan_toy, monkeypatch):
    """Extending composes nothing, and checks an arm only where its schedule differs."""
    results = {}
    [plan] = plan_toy("+experiment=heads", TUNE, lookup=results.get)
    for _ in range(2):
        results |= {run.id: make_toy_result(run) for run in plan.tuning_runs}
        [replanned] = plan_toy("+experiment=heads", TUNE, lookup=results.get)
        with monkeypatch.context() as patch:
            patch.setattr(Composer, "compose", None)
            [plan] = extend_plans([plan], InProcessChecker(), results.get)
        assert plan == replace(replanned, composed_experiment=plan.composed_experiment)
        assert len(plan.tuning_runs) > 12
    assert {run.base_arm for run in plan.all_runs} == {*BEST}


def test_only_searches_that_are_not_over_may_add_runs(plan_toy, tmp_path):
    results = {}
    [plan] = plan_toy("+experiment=heads", TUNE)
    while plan.tuning.arms["two"].search.best_rate is None:
        results |= {run.id: make_toy_result(run) for run in plan.tuning_runs if run.base_arm == "two"}
        [plan] = extend_plans([plan], InProcessChecker(), results.get)
    for arm, seconds in (("one", 10.0), ("four", 20.0)):
        run = next(run for run in plan.tuning_runs if run.base_arm == arm)
        (tmp_path / run.id).mkdir()
        result = make_toy_result(run, estimate=run.estimate, seconds=seconds)
        run_directories.write_run_result(tmp_path / run.id, result)
    work = work_left.load_work_left([plan], tmp_path, {"slots": 2})
    n_possible = plan.tuning.grid.max_runs - len(RATES)
    assert (work.n_possible, work.n_possible_tuning) == (0, 2 * n_possible)
    assert 2 * (work.max_seconds - work.seconds) == pytest.approx(n_possible * (10.0 + 20.0))


@pytest.mark.rare
def test_first_rung_has_all_rates_with_one_seed_and_third_of_steps(rounds):
    plan = rounds[0]
    assert list_tuning_runs(plan) == FIRST
    assert plan.untuned_arms == ["two", "one", "four"]
    widths = {run.arm.split()[0]: run.config["model"]["width"] for run in plan.tuning_runs}
    assert widths == {"two": 12, "one": 14, "four": 8}, "an arm is tuned as compared, with matched budget"
    assert {(run.config["trainer"]["max_steps"], run.estimate.tokens) for run in plan.tuning_runs} == {
        (1, 10)
    }
    assert all("trainer.max_steps=1" in run.overrides for run in plan.tuning_runs)
    assert {run.config["trainer"]["max_steps"] for run in plan.runs} == {3}


def test_arms_get_rate_with_best_median(rounds):
    plan = rounds[-1]
    assert {run.arm: run.config["optim"]["lr"] for run in plan.runs} == BEST
    assert {run.arm: run.estimate.lr for run in plan.runs} == BEST, "shown in the budget check"
    assert not plan.untuned_arms
    assert all("optim.lr=0.8" in run.overrides for run in plan.runs if run.arm == "four")
    assert list_tuning_runs(plan) == FIRST | SECOND
    assert [len(plan.tuning_runs) for plan in rounds] == [12, 12 + 2 + 6, 32, 32], "two was bracketed at once"


@pytest.mark.parametrize(
    ("changes", "value"),
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
def test_divergence_is_infinite_loss_and_lost_run_unknown(changes, value):
    done = RunResult(id="run", status="done", seed=7, config={}, metrics={"val/loss": 2.5})
    assert (
        lr_tuning._get_metric_or_inf(
            done.model_copy(update=changes) if changes is not None else None, "val/loss"
        )
        == value
    )


def make_tuning(look_up_metric, direction="lower"):
    """Make the tuning of one arm; `look_up_metric` maps (rate, seed) to the metric."""
    tuning = TuningState(RateGrid((1, 2, 4), (7, 8, 9), 0, 1.0), "val/loss", direction, "S")
    tuning.arms["one"] = ArmSearch(tuning.search_rates(look_up_metric), "a", "a", 10, 20, 40)
    return tuning


def test_missing_result_or_divergence_leaves_arm_without_rate():
    lost = make_tuning(lambda rate, seed: None if (rate, seed) == (2, 8) else rate)
    assert lost.get_picked_rate("one") is None
    assert lost.explain_missing_rate("one") == "its learning rate is unknown: no result at 2 with seed 8"
    bad = make_tuning(lambda rate, seed: 1 if seed == 7 else math.inf)
    assert bad.get_picked_rate("one") is None
    assert (
        bad.explain_missing_rate("one")
        == "at least half of its runs diverged even at its best learning rate, 1"
    )
    once = make_tuning(lambda rate, seed: math.inf if (rate, seed) == (2, 8) else abs(rate - 2))
    assert once.get_picked_rate("one") == 2
    assert once.summarize().arms["one"].rows[1] == LearningRateResult(
        lr=2, values=[0, "diverged", 0], median=0, seeds_tried=3
    )


def test_higher_direction_picks_largest_median():
    higher = make_tuning(lambda rate, seed: math.inf if rate == 4 else 1 - abs(rate - 2), "higher")
    assert higher.get_picked_rate("one") == 2
    assert [row.median for row in higher.summarize().arms["one"].rows] == [0, 1, "diverged"]


def test_pick_at_grid_edge_is_marked():
    assert make_tuning(lambda rate, seed: rate).summarize().arms["one"].at_grid_edge
    assert not make_tuning(lambda rate, seed: abs(rate - 2)).summarize().arms["one"].at_grid_edge


def dump_tuned_yaml(plan, tmp_path):
    """Return the content of the plan's tuned.yaml."""
    plan.tuning.write_yaml(tmp_path / "tuned.yaml", "heads")
    return yaml.safe_load((tmp_path / "tuned.yaml").read_text())["tuned"]


def format_tuned_override(content):
    return "+tuned=" + json.dumps(content).replace('"', "").replace(" ", "")


def test_committed_rates_are_reused_and_stale_settings_reported(plan_toy, rounds, tmp_path):
    content = format_tuned_override(dump_tuned_yaml(rounds[-1], tmp_path))
    [plan] = plan_toy("+experiment=heads", TUNE, content)
    assert plan.tuning_runs == []
    assert {run.id for run in plan.runs} == {run.id for run in rounds[-1].runs}
    assert plan.tuning.summarize() == rounds[-1].tuning.summarize().model_copy(update={"committed": True})

    [longer] = plan_toy("+experiment=heads", TUNE, content, "trainer.max_steps=5", "arms=[two]", "claims=[]")
    assert not any(arm.same_settings for arm in longer.tuning.summarize().arms.values())
    assert longer.tuning.describe_stale_rates() == [
        "two: its learning rate was tuned for other settings; tuned=none tunes it again"
    ]
    [measured] = plan_toy("+experiment=heads", TUNE, content, "+measure.maps=9", "arms=[two]", "claims=[]")
    assert not measured.tuning.describe_stale_rates(), "measurements do not affect rates"
    [other_size] = plan_toy("+experiment=heads", TUNE, content, "size=M", "arms=[two]", "claims=[]")
    assert len(other_size.tuning_runs) == 4, "another size is tuned for itself"
    incomplete = dump_tuned_yaml(rounds[-1], tmp_path)
    incomplete["S"]["arms"]["two"]["rows"].pop(1)
    with pytest.raises(InvalidConfig, match="has no learning rate for arm two; tuned=none tunes it again"):
        plan_toy("+experiment=heads", TUNE, format_tuned_override(incomplete), "arms=[two]", "claims=[]")


def test_diverged_loss_survives_tuned_yaml(tmp_path):
    tuning = make_tuning(lambda rate, seed: math.inf if (rate, seed) == (2, 8) else abs(rate - 2))
    tuning.write_yaml(tmp_path / "tuned.yaml", "heads")
    content = yaml.safe_load((tmp_path / "tuned.yaml").read_text())["tuned"]["S"]
    replayed = lr_tuning._replay_search(lr_tuning.TunedArm.model_validate(content["arms"]["one"]), tuning)
    assert replayed == tuning.arms["one"].search


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda tuned: tuned.pop("lr"), "heads at size S has an outdated format: lr: Field required"),
        (lambda tuned: tuned.update(extend=1), "with other settings of tune or another metric"),
        (lambda tuned: tuned.update(seeds=[7, 8, 10]), "with other settings of tune or another metric"),
        (lambda tuned: tuned.update(metric="train/loss"), "with other settings of tune or another metric"),
    ],
)
def test_incompatible_committed_rates_fail_with_hint(rounds, tmp_path, change, line):
    plan, content = rounds[-1], dump_tuned_yaml(rounds[-1], tmp_path)
    assert (
        load_committed_rates(plan.experiment.model_copy(update={"tuned": content}), plan.tuning) is not None
    )
    change(content["S"])
    with pytest.raises(InvalidConfig, match=line) as error:
        load_committed_rates(plan.experiment.model_copy(update={"tuned": content}), plan.tuning)
    assert str(error.value).endswith("; tuned=none tunes it again")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["tune={lr:[0.1],seeds:[7,8,9]}"], "two or more increasing rates"),
        (["tune={lr:[0.1,0.1005],seeds:[7,8,9]}"], "each at least 1% above the previous one"),
        (["tune={lr:[0.1,-1],seeds:[7,8,9]}"], "above 0"),
        (
            ["tune={lr:[0.1,0.2],seeds:[7,8]}"],
            "give 3 or more different seeds, so that no single seed decides",
        ),
        (["tune={lr:[0.1,0.2],seeds:[7,8,8]}"], "give 3 or more different seeds"),
        (["tune={lr:[0.1,0.2],seeds:[1,7,8]}"], "seed 1 with the comparison"),
        (["tune={lr:[0.1,0.2]}"], "tune.seeds: Field required"),
        (["tune={lr:[0.1,0.2],seeds:[7,8,9],share:0}"], "tune.share: .*greater than 0"),
        ([TUNE, "optim.lr=0.3"], "remove it, or set tune=null"),
        ([TUNE, "arms=[two,child]", "match=none"], "arm child continues from two"),
        ([TUNE, "+measurement={_target_: toy_variant.Heads}"], "arm two does not train"),
    ],
)
def test_invalid_grid_fails_in_one_line(plan_toy, arguments, line):
    arms = [] if any(word.startswith("arms=") for word in arguments) else ["arms=[two]"]
    with pytest.raises(InvalidConfig, match=line) as error:
        plan_toy("+experiment=heads", *arms, "claims=[]", *arguments)
    assert "\n" not in str(error.value)


def test_shortened_training_has_at_least_one_step():
    class StepsChecker:
        @staticmethod
        def check(config):
            return RunEstimate(steps=config["trainer"]["max_steps"])

    def steps(max_steps, share):
        composed = ComposedConfig({"seed": 0, "optim": {"lr": 1.0}, "trainer": {"max_steps": max_steps}}, {})
        grid = RateGrid((0.1, 0.2), (7, 8, 9), 0, share)
        return lr_tuning._shorten_training(
            Arm("two", composed, {}, (), RunEstimate(), {}), grid, StepsChecker()
        ).estimate.steps

    assert [steps(300, 1 / 3), steps(200, 1 / 3), steps(2, 1 / 3), steps(200, 1)] == [100, 66, 1, 200]
    with pytest.raises(InvalidConfig, match=r"needs an integer trainer.max_steps, not None"):
        steps(None, 1 / 3)


def test_tuning_needs_experiment(plan_toy):
    with pytest.raises(InvalidConfig, match=r"only an experiment can set this key; add \+experiment=NAME"):
        plan_toy(TUNE)
    assert plan_toy("tune=null")
    assert "tune" in shipped_loader().load_configuration("config", [], RunMode.RUN), "so tune=... needs no +"
