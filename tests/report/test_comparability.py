"""Only like is compared with like: claims, effects, rankings and the answer agree on which pairs are not."""

from pathlib import Path
from typing import Any

import pytest
from report.synthetic import CONTEXT, World, experiment, provenance, write_runs
from report.synthetic import but as with_record

from attnlab.errors import Refused
from attnlab.report.across.pairs import differences
from attnlab.report.answer import answer
from attnlab.report.build import build
from attnlab.report.schema import Effect, Report
from attnlab.report.tables.wording import describe_claim
from attnlab.store.schema import Metric
from attnlab.sweep.plan.experiment import complete

SEES = {"sees_future": 1, "sees_rows": 0, "next_token": 1, "prefix": 0, "difference": 5.0,
        "with_future": 0.055, "without_future": 4.2, "checked": 63, "longest": 192}  # fmt: skip
UNDECIDED = "INCONCLUSIVE"  # of pairs that are compared, and all the same: no spread, no interval
CAUSAL = SEES | {"sees_future": 0, "difference": 0.0, "with_future": 1.78, "without_future": 1.78}


def report(folder: Path, world: World, **changes: Any) -> Report:
    return build(experiment(world, **changes), write_runs(folder, world), None, provenance())


def claim(arm: str, metric: str = "val/loss", **more: Any) -> dict[str, Any]:
    return {
        "says": f"{arm} is as good", "arm": arm, "metric": metric, "is": "within", "threshold": 0.5, **more
    }  # fmt: skip


def row(found: Report, arm: str, metric: str = "val/loss") -> Effect:
    return next(one for one in found.effects if (one.arm, one.metric) == (arm, metric))


def verdicts(found: Report) -> list[str]:
    return [one.verdict for one in found.verdict.claims]


def ranked(found: Report) -> list[str]:
    return [arm.arm for arm in answer(found).arms if arm.ranked]


@pytest.mark.parametrize("kind", ["sees_future", "sees_rows"])
def test_an_arm_that_leaks_is_not_comparable_in_claim_effect_and_rank(tmp_path: Path, kind: str) -> None:
    world = World(effects={"mha": 0.0, "gqa": -1.5, "mqa": 0.06}, leakage={"gqa": CAUSAL | {kind: 1}})
    found = report(tmp_path, world)
    assert verdicts(found) == ["NOT COMPARABLE", "SUPPORTED", "SUPPORTED"], "a cache's bytes are counted"
    assert row(found, "gqa").word == "NOT COMPARABLE"
    assert [getattr(row(found, "gqa"), key) for key in ("mean", "low", "high", "p")] == [None] * 4
    assert ranked(found) == ["mha", "mqa"]
    assert all("gqa" not in panel.front for panel in found.tradeoff)
    assert found.leakage.arms == ["gqa"]
    assert any(line.startswith("gqa") for line in found.warnings)


def test_a_pair_that_is_not_compared_has_no_difference_anywhere(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": -1.5, "mqa": 0.06}, leakage={"gqa": SEES}, sample="the cat sat")
    found = report(tmp_path, world)
    first = found.verdict.claims[0]
    assert [getattr(first.decision, key) for key in ("estimate", "low", "high", "p")] == [None] * 4
    beside = ("interval", "deciding", "flipped", "training", "sign_flip")
    assert [getattr(first, key) for key in beside] == [None] * 5
    assert {pair.difference for pair in row(found, "gqa").pairs} == {None}
    assert {line.arm for line in found.curves.differences} == {"mqa"}
    told = {arm.arm: arm.difference for arm in found.text.kinds[0].arms}
    assert told["gqa"] is None
    assert told["mqa"] is not None
    assert differences(found, "gqa", "mha", "val/loss") == [], (
        "so a ladder and several texts have none either"
    )
    assert len(differences(found, "mqa", "mha", "val/loss")) == 5


def test_the_reason_has_the_loss_before_the_own_future_and_before_another(tmp_path: Path) -> None:
    first = report(tmp_path, World(leakage={"gqa": SEES})).verdict.claims[0]
    reason = "gqa sees future tokens in 5 of 5 runs: a token costs 0.055 nats before its own future, "
    reason += "4.2 before another"
    assert first.not_comparable == [reason]
    assert describe_claim(first) == f"gqa vs mha: {reason} (NOT COMPARABLE). 5 paired seeds."


def test_what_only_one_run_of_an_arm_saw_is_enough(tmp_path: Path) -> None:
    world = World()
    runs = write_runs(tmp_path, world)
    runs = [with_record(r, leakage=SEES) if (r.arm, r.seed) == ("gqa", 2) else r for r in runs]
    assert verdicts(build(experiment(world), runs, None, provenance()))[0] == "NOT COMPARABLE"


def test_a_baseline_that_leaks_leaves_nothing_to_compare_or_rank(tmp_path: Path) -> None:
    found = report(tmp_path, World(leakage={"mha": SEES}))
    assert verdicts(found)[:2] == ["NOT COMPARABLE"] * 2
    assert ranked(found) == []


def test_leakage_by_design_is_decided_and_labeled_and_never_ranked(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": -1.5}, leakage={"gqa": SEES})
    found = report(
        tmp_path, world, leakage=["gqa"], claims=[claim("gqa", **{"is": "below", "threshold": -1.0})]
    )
    assert verdicts(found) == ["SUPPORTED"]
    assert found.verdict.claims[0].by_design == ["gqa"]
    assert describe_claim(found.verdict.claims[0]).endswith(" gqa sees future tokens (by design).")
    assert row(found, "gqa").word == "SEES FUTURE TOKENS"
    assert row(found, "gqa").mean == pytest.approx(-1.5)
    assert ranked(found) == ["mha"]
    assert all(panel.front == ["mha"] for panel in found.tradeoff)
    assert "by design" in answer(found).sentence


def test_an_arm_that_is_preregistered_to_leak_and_does_not_is_told(tmp_path: Path) -> None:
    found = report(tmp_path, World(leakage={"gqa": CAUSAL}), leakage=["gqa"])
    assert "gqa is preregistered under leakage, and sees no future tokens." in found.leakage.notes
    assert "gqa" in ranked(found)


def test_later_tokens_that_are_no_targets_are_told_and_compared(tmp_path: Path) -> None:
    found = report(tmp_path, World(leakage={"gqa": SEES | {"next_token": 0}}))
    assert "NOT COMPARABLE" not in verdicts(found)
    assert "gqa sees later tokens, which are not the targets of this task." in found.failures.caveats


def test_targets_in_the_longest_prefix_are_left_out_of_every_arm(tmp_path: Path) -> None:
    world = World(leakage={"gqa": CAUSAL | {"prefix": 8}, "mha": CAUSAL})
    found, plain = report(tmp_path / "a", world), report(tmp_path / "b", World())
    losses = [1 / i for i in range(7, CONTEXT)]  # of positions 7 on, beside each run's own
    shift = sum(losses) / len(losses)
    for arm in ("gqa", "mqa"):
        for pair, whole in zip(row(found, arm).pairs, row(plain, arm).pairs, strict=True):
            assert pair.value - whole.value == pytest.approx(shift)
            assert pair.against - whole.against == pytest.approx(shift)
    assert found.leakage.left_out == 7
    assert any(note.startswith("The first 7 targets of each window") for note in found.leakage.notes)


def test_metrics_that_cannot_leave_a_prefix_out_are_not_compared(tmp_path: Path) -> None:
    world = World(leakage={"gqa": CAUSAL | {"prefix": 8}, "mha": CAUSAL})
    found = report(tmp_path, world, claims=[claim("gqa", "train/loss"), claim("mqa", "train/loss")])
    assert verdicts(found) == ["NOT COMPARABLE", "SUPPORTED"]
    assert "compare val/loss" in found.verdict.claims[0].not_comparable[0]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"unit": "bpe", "validation": "12" * 32}, "per char in mha: compare val/bits_per_byte"),
        ({"unit": "bpe", "validation": "12" * 32, "val_text": "9"}, "they share no text"),
        ({"validation": "12" * 32, "val_windows": 4}, "val_windows 4 and 128"),
        ({"validation": "12" * 32, "name": "induction", "val_text": "9"}, "use the same data for both"),
        ({"validation": "12" * 32}, "other tokens or targets"),
    ],
)
def test_losses_on_other_data_or_in_other_units_are_not_compared(
    tmp_path: Path, facts: dict[str, Any], says: str
) -> None:
    found = report(tmp_path, World(data={"gqa": facts}))
    assert verdicts(found) == ["NOT COMPARABLE", "SUPPORTED", "SUPPORTED"]
    assert says in describe_claim(found.verdict.claims[0])
    assert row(found, "gqa").word == "NOT COMPARABLE"
    assert "gqa" not in ranked(found)


def test_losses_per_byte_of_one_text_compare_tokenizers(tmp_path: Path) -> None:
    asked = {"claims": [claim("gqa", "val/bits_per_byte")]}
    other = {"unit": "bpe", "validation": "12" * 32}
    found = report(tmp_path / "a", World(data={"gqa": other}, extra={"val/bits_per_byte": 2.0}), **asked)
    assert verdicts(found) == [UNDECIDED]
    other |= {"val_text": "12" * 32}
    found = report(tmp_path / "b", World(data={"gqa": other}, extra={"val/bits_per_byte": 2.0}), **asked)
    assert verdicts(found) == ["NOT COMPARABLE"]


def test_seeds_may_have_other_data_if_both_arms_of_a_pair_have_the_same(tmp_path: Path) -> None:
    world = World()
    runs = [
        with_record(run, estimate=run.record.estimate.model_copy(
            update={"data": run.record.estimate.data | {"validation": str(run.seed)}}
        ))
        for run in write_runs(tmp_path, world)
    ]  # fmt: skip
    assert "NOT COMPARABLE" not in verdicts(build(experiment(world), runs, None, provenance()))


def test_losses_at_a_length_are_compared_at_the_same_length(tmp_path: Path) -> None:
    measure = {"lengths": [1, 4], "trained": None}
    asked = {"claims": [claim("gqa", "length/4")]}
    same = World(extra={"length/4": 2.0}, config={arm: {"measure": measure} for arm in ("mha", "gqa")})
    assert verdicts(report(tmp_path / "a", same, **asked)) == [UNDECIDED]
    same.config["gqa"] = {"measure": measure | {"trained": 16}}
    found = report(tmp_path / "b", same, **asked)
    assert verdicts(found) == ["NOT COMPARABLE"]
    assert "trained length 16 and 64" in describe_claim(found.verdict.claims[0])


def test_what_is_found_at_validations_needs_as_many_of_them(tmp_path: Path) -> None:
    every = {arm: {"measure": {"every": 100}} for arm in ("mha", "gqa", "mqa")}
    world = World(config=every | {"gqa": {"measure": {"every": 1}}})
    found = report(tmp_path, world, claims=[claim("gqa", "val/best_loss"), claim("mqa", "val/best_loss")])
    assert verdicts(found) == ["NOT COMPARABLE", "SUPPORTED"]


def test_a_metric_that_two_arms_declare_differently_is_not_compared(tmp_path: Path) -> None:
    world = World()
    runs = [
        with_record(run, declared=run.record.declared | {"val/loss": Metric("val/loss", unit="bits")})
        if run.arm == "gqa" else run
        for run in write_runs(tmp_path, world)
    ]  # fmt: skip
    found = build(experiment(world), runs, None, provenance())
    assert verdicts(found)[0] == "NOT COMPARABLE"
    assert "unit bits and nats" in describe_claim(found.verdict.claims[0])


def test_tokens_of_a_parent_count(tmp_path: Path) -> None:
    world = World()
    first = write_runs(tmp_path, world)
    parent = next(run for run in first if run.arm == "mqa").id
    world = World(config={"gqa": {"parent": parent}})
    runs = write_runs(tmp_path / "store", world)
    for run in first:
        (tmp_path / run.id).rename(tmp_path / "store" / f"{run.id}x")
    runs = [
        type(run)(run.arm, run.seed, run.id, run.record, ancestor_tokens=7 if run.arm == "gqa" else 0)
        for run in runs
    ]
    found = build(experiment(world), runs, None, provenance())
    assert verdicts(found)[0] == "NOT COMPARABLE"
    assert "tokens declared held" in describe_claim(found.verdict.claims[0])


def test_an_arm_that_changes_the_model_and_the_training_is_warned_of(tmp_path: Path) -> None:
    optim = {"lr": 3e-3, "weight_decay": 0.1}
    found = report(tmp_path, World(config={"gqa": {"optim": optim}}))
    [line] = [line for line in found.warnings if line.startswith("gqa changes the model")]
    assert "optim.weight_decay" in line
    assert not any("changes the model" in line for line in report(tmp_path / "b", World()).warnings)


BASE = {
    "name": "mine", "arms": ["a", "b"], "arm_overrides": {"a": ["mask=causal"], "b": ["mask=full"]},
    "baseline": "a", "seeds": [0, 1], "metric": "val/loss", "margin": 0.1, "margin_reason": "far",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"leakage": ["c"]}, "it has no arm c"),
        ({"leakage": ["a"]}, "a is the baseline"),
        ({"leakage": "b"}, "leakage"),
        ({"arm_overrides": {"a": [], "b": ["sweep.train=mine"]}}, "set it on the command line"),
        ({"arm_overrides": {"a": [], "b": ["logger=csv"]}}, "set it on the command line"),
        ({"arm_overrides": {"a": [], "b": ["++paths.cache=x"]}}, "set it on the command line"),
    ],
)
def test_what_an_experiment_may_not_say_of_its_arms(change: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=says):
        complete(BASE | change)
    assert complete(BASE | {"leakage": ["b"]}).leakage == ["b"]


def test_seeds_that_share_an_initialization_are_warned_of(tmp_path: Path) -> None:
    found = report(tmp_path, World(config={"gqa": {"optim": {"lr": 3e-3, "seed": 7}}}))
    shared = [line for line in found.warnings if line.startswith("All seeds of")]
    assert shared == ["All seeds of gqa share optim.seed=7: the interval covers less than it says."]
