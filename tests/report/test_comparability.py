"""Only like is compared with like: claims, effects, rankings and the answer agree on incomparable pairs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rates import build_tuning_result
from rendering import make_report, read_table
from synthetic import CONTEXT, KV, World, replace_fields, replace_result, write_runs

from attnlab.errors import InvalidConfig
from attnlab.report.answer import answer_question, describe_scope
from attnlab.report.replications.arm_pairs import compute_differences
from attnlab.report.schema import Effect, ReplicationContext, Report
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts.results import Run
from attnlab.store.run_schema import Metric
from attnlab.sweep.plan.experiment_validation import complete_experiment

SEES = {"sees_future": 1, "sees_rows": 0, "next_token": 1, "prefix": 0, "difference": 5.0,
        "with_future": 0.055, "without_future": 4.2, "checked": 63, "longest": 192}  # fmt: skip
CAUSAL = SEES | {"sees_future": 0, "difference": 0.0, "with_future": 1.78, "without_future": 1.78}


def make_claim(arm: str, metric: str = "val/loss", **more: Any) -> dict[str, Any]:
    return {
        "says": f"{arm} is as good", "arm": arm, "metric": metric, "is": "within", "threshold": 0.5, **more
    }  # fmt: skip


def get_effect(report: Report, arm: str, metric: str = "val/loss") -> Effect:
    return next(item for item in report.effects if (item.arm, item.metric) == (arm, metric))


def list_verdicts(report: Report) -> list[str]:
    return [item.verdict for item in report.verdict.claims]


def list_ranked_arms(report: Report) -> list[str]:
    return [row["arm"] for row in read_table(report, "arms") if row["is_ranked"]]


def replace_estimate(run: Run, **changes: Any) -> dict[str, Any]:
    """The change of a run's result that replaces fields of its estimate."""
    return {"estimate": replace_fields(run.result.estimate, **changes)}


def change_data(run: Run) -> dict[str, Any]:
    return replace_estimate(run, data=run.result.estimate.data | {"validation": str(run.seed)})


def change_unit(run: Run) -> dict[str, Any]:
    other = {"val/loss": Metric("val/loss", unit="bits")}
    return {"metric_definitions": run.result.metric_definitions | other}


@pytest.mark.parametrize(
    ("arms", "change", "says"),
    [
        (("gqa",), lambda run: replace_estimate(run, flops_per_token=None),
         "training FLOPs per token: controlled, but gqa has no value"),
        (("mha", "gqa", "mqa"), lambda run: replace_estimate(run, flops_per_token=None), None),
        (("gqa",), lambda run: {"leakage": SEES} if run.seed == 2 else {}, "in 1 of 5 runs"),
        (("gqa",), change_unit, "unit bits and nats"),
        (("mha", "gqa", "mqa"), change_data, None),
        (("gqa",), lambda run: {"status": "crashed", "metrics": {}}, None),
        (("gqa",), lambda run: {"recomputed": {"val/loss": run.result.metrics["val/loss"] + 1e-4}}, None),
    ],
)  # fmt: skip
def test_results_that_differ_in_one_arm_are_not_comparable(
    tmp_path: Path, arms: tuple[str, ...], change: Callable[[Run], dict[str, Any]], says: str | None
) -> None:
    runs = write_runs(tmp_path, World())
    runs = [replace_result(run, **change(run)) if run.arm in arms else run for run in runs]
    report = make_report(runs, controlled=["flops"])
    first = report.verdict.claims[0]
    assert (first.verdict == "NOT COMPARABLE") == bool(says)
    assert (
        says in describe_claim(first)
        if says
        else not any(line.startswith("gqa: ") for line in report.warnings)
    )


@pytest.mark.parametrize("kind", ["sees_future", "sees_rows"])
def test_leaking_arm_is_not_comparable_and_has_no_difference_anywhere(tmp_path: Path, kind: str) -> None:
    leakage = {"gqa": CAUSAL | {kind: 1}}
    world = World(effects={"mha": 0.0, "gqa": -1.5, "mqa": 0.06}, leakage=leakage, sample="the cat sat")
    report = make_report(tmp_path, world)
    assert list_verdicts(report) == ["NOT COMPARABLE", "SUPPORTED", "SUPPORTED"], (
        "a cache's bytes are counted"
    )
    effect, first = get_effect(report, "gqa"), report.verdict.claims[0]
    assert effect.verdict == "NOT COMPARABLE"
    assert [getattr(effect, key) for key in ("mean", "low", "high", "p")] == [None] * 4
    assert {pair.difference for pair in effect.pairs} == {None}
    assert list_ranked_arms(report) == ["mha", "mqa"]
    assert all("gqa" not in panel.pareto_front for panel in report.tradeoff)
    assert report.leakage.arms == ["gqa"]
    assert any(line.startswith("gqa") for line in report.warnings)
    assert [getattr(first.decision, key) for key in ("estimate", "low", "high", "p")] == [None] * 4
    fields = ("interval", "required_seeds", "threshold_sign_flip", "training_equivalent", "sign_flip")
    assert [getattr(first, key) for key in fields] == [None] * 5
    assert {line.arm for line in report.curves.differences} == {"mqa"}
    differences = {arm.arm: arm.difference for arm in report.text.token_categories[0].arms}
    assert differences["gqa"] is None
    assert differences["mqa"] is not None
    assert [len(compute_differences(report, arm, "mha", "val/loss")) for arm in ("gqa", "mqa")] == [0, 5], (
        "so a ladder and several texts have none either"
    )


def test_leaking_baseline_leaves_nothing_to_compare_or_rank(tmp_path: Path) -> None:
    report = make_report(tmp_path, World(leakage={"mha": SEES}))
    assert list_verdicts(report)[:2] == ["NOT COMPARABLE"] * 2
    assert list_ranked_arms(report) == []
    reason = "mha sees future tokens in 5 of 5 runs: loss 0.055 nats with the true future tokens, "
    reason += "4.2 with substituted ones"
    first = report.verdict.claims[0]
    assert first.not_comparable == [reason]
    assert describe_claim(first) == f"gqa vs mha: {reason} (NOT COMPARABLE). 5 paired seeds."


def test_leakage_by_design_is_decided_labeled_and_never_ranked(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": -1.5}, leakage={"gqa": SEES})
    report = make_report(
        tmp_path, world, leakage=["gqa"], claims=[make_claim("gqa", **{"is": "below", "threshold": -1.0})]
    )
    assert list_verdicts(report) == ["SUPPORTED"]
    assert report.verdict.claims[0].leaking_by_design == ["gqa"]
    assert describe_claim(report.verdict.claims[0]).endswith(" gqa sees future tokens (by design).")
    assert get_effect(report, "gqa").verdict == "SEES FUTURE TOKENS"
    assert get_effect(report, "gqa").mean == pytest.approx(-1.5)
    assert list_ranked_arms(report) == ["mha"]
    assert all(panel.pareto_front == ["mha"] for panel in report.tradeoff)
    assert "gqa sees future tokens" in answer_question(report)


@pytest.mark.parametrize(
    ("leakage", "changes", "note"),
    [
        (CAUSAL, {"leakage": ["gqa"]}, "gqa is preregistered under leakage, but sees no future tokens."),
        (SEES | {"next_token": 0}, {}, "gqa sees later tokens, but they are not targets of this task."),
    ],
)
def test_arm_that_sees_no_targets_stays_comparable_with_a_note(
    tmp_path: Path, leakage: dict[str, float], changes: dict[str, Any], note: str
) -> None:
    report = make_report(tmp_path, World(leakage={"gqa": leakage}), **changes)
    assert "NOT COMPARABLE" not in list_verdicts(report)
    assert note in (*report.leakage.notes, *report.failures.caveats)
    assert "gqa" in list_ranked_arms(report)


def test_targets_in_the_longest_prefix_are_excluded_from_every_arm(tmp_path: Path) -> None:
    world = World(leakage={"gqa": CAUSAL | {"prefix": 8}, "mha": CAUSAL})
    report, plain = make_report(tmp_path / "a", world), make_report(tmp_path / "b", World())
    losses = [1 / i for i in range(7, CONTEXT)]  # of positions from 7 on, added to each run's own
    shift = sum(losses) / len(losses)
    for arm in ("gqa", "mqa"):
        for pair, whole in zip(get_effect(report, arm).pairs, get_effect(plain, arm).pairs, strict=True):
            assert pair.value - whole.value == pytest.approx(shift)
            assert pair.against - whole.against == pytest.approx(shift)
    assert report.leakage.excluded_targets == 7
    assert any("excludes the first 7 targets of each window" in note for note in report.leakage.notes)


OTHER_TEXT = {"validation": "12" * 32}
BPE = OTHER_TEXT | {"unit": "bpe"}
BYTES = {"val/bits_per_byte": 2.0}
LENGTHS = {"measure": {"lengths": [1, 4], "trained": None}}


@pytest.mark.parametrize(
    ("world", "metric", "says"),
    [
        (World(data={"gqa": BPE}), "val/loss", "per char in mha: compare val/bits_per_byte"),
        (World(data={"gqa": BPE | {"val_text": "9"}}), "val/loss", "the arms share no validation corpus"),
        (World(data={"gqa": OTHER_TEXT | {"val_windows": 4}}), "val/loss", "val_windows 4 and 128"),
        (World(data={"gqa": OTHER_TEXT | {"name": "induction", "val_text": "9"}}), "val/loss",
         "use the same data for both"),
        (World(data={"gqa": OTHER_TEXT}), "val/loss", "different tokens or targets"),
        (World(data={"gqa": BPE}, extra=BYTES), "val/bits_per_byte", None),
        (World(data={"gqa": BPE | {"val_text": "12" * 32}}, extra=BYTES), "val/bits_per_byte", "corpora"),
        (World(extra={"length/4": 2.0}, config={"mha": LENGTHS, "gqa": LENGTHS}), "length/4", None),
        (World(extra={"length/4": 2.0}, config={
            "mha": LENGTHS, "gqa": {"measure": LENGTHS["measure"] | {"trained": 16}}}),
         "length/4", "trained length 16 and 64"),
        (World(config={arm: {"measure": {"every": 1 if arm == "gqa" else 100}} for arm in KV}),
         "val/best_loss", "every"),
        (World(leakage={"gqa": CAUSAL | {"prefix": 8}, "mha": CAUSAL}), "train/loss", "compare val/loss"),
    ],
)  # fmt: skip
def test_measurements_under_different_conditions_are_not_comparable(
    tmp_path: Path, world: World, metric: str, says: str | None
) -> None:
    report = make_report(tmp_path, world, claims=[make_claim("gqa", metric), make_claim("mqa")])
    assert list_verdicts(report) == ["NOT COMPARABLE" if says else "SUPPORTED", "SUPPORTED"]
    assert says is None or says in describe_claim(report.verdict.claims[0])
    if metric == "val/loss":
        assert get_effect(report, "gqa").verdict == "NOT COMPARABLE"
        assert "gqa" not in list_ranked_arms(report)


def test_tokens_of_a_parent_count_in_the_budget(tmp_path: Path) -> None:
    runs = [replace(run, ancestor_tokens=7 * (run.arm == "gqa")) for run in write_runs(tmp_path, World())]
    report = make_report(runs)
    assert list_verdicts(report)[0] == "NOT COMPARABLE"
    assert "tokens: controlled" in describe_claim(report.verdict.claims[0])


@pytest.mark.parametrize(
    ("config", "estimate", "keys"),
    [
        ({"optim": {"lr": 3e-3, "weight_decay": 0.1}}, {}, ["optim.weight_decay"]),
        ({}, {}, []),
        ({"parent": "0" * 16, "measurement": {"_target_": "other"}}, {"steps": 0, "tokens": 0}, []),
    ],
)
def test_arm_that_changes_model_and_training_gives_a_warning(
    tmp_path: Path, config: dict[str, Any], estimate: dict[str, int], keys: list[str]
) -> None:
    runs = [
        replace_result(run, **replace_estimate(run, **estimate)) if run.arm == "gqa" else run
        for run in write_runs(tmp_path, World(config={"gqa": config}))
    ]
    lines = [line for line in make_report(runs).warnings if line.startswith("gqa changes the model")]
    assert len(lines) == len(keys)
    assert all(key in line for key, line in zip(keys, lines, strict=True))


TUNING = build_tuning_result(World().effects, lambda rate, seed: abs(rate - 0.01))
OTHER_SIZE = ReplicationContext(kind="rung", name="40k", combined_report="x", ladder=None, rates="S")


@pytest.mark.parametrize("changes", [{"tuning": TUNING}, {"replication": OTHER_SIZE}])
@pytest.mark.parametrize(("min_lr", "is_warned"), [(6e-4, False), (1e-3, True)])
def test_last_learning_rate_in_proportion_to_a_tuned_one_gives_no_warning(
    tmp_path: Path, min_lr: float, is_warned: bool, changes: dict[str, Any]
) -> None:
    config = {
        "mha": {"optim": {"lr": 3e-3, "min_lr": 3e-4}},
        "gqa": {"optim": {"lr": 6e-3, "min_lr": min_lr}},
    }
    warnings = make_report(tmp_path, World(config=config), **changes).warnings
    assert any("gqa changes the model and also optim.min_lr:" in line for line in warnings) == is_warned


BASE = {
    "name": "mine", "arms": ["a", "b"], "arm_overrides": {"a": ["mask=causal"], "b": ["mask=full"]},
    "baseline": "a", "seeds": [0, 1], "metric": "val/loss", "margin": 0.1, "margin_reason": "far",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"leakage": ["c"]}, "unknown arm c"),
        ({"leakage": ["a"]}, "a is the baseline"),
        ({"leakage": "b"}, "leakage"),
        ({"arm_overrides": {"a": [], "b": ["sweep.train=mine"]}}, "set it on the command line"),
        ({"arm_overrides": {"a": [], "b": ["logger=csv"]}}, "set it on the command line"),
        ({"arm_overrides": {"a": [], "b": ["++paths.cache=x"]}}, "set it on the command line"),
    ],
)
def test_invalid_arm_settings_are_errors(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        complete_experiment(BASE | change)
    assert complete_experiment(BASE | {"leakage": ["b"]}).leakage == ["b"]


@pytest.mark.parametrize(
    ("config", "shared"),
    [
        ({"optim": {"lr": 3e-3, "seed": 7}}, "share optim.seed=7"),
        ({"parent": "6add82a4e4a3256e"}, "start from one run (6add82a4e4a3256e)"),
    ],
)
def test_seeds_that_share_a_parent_or_an_initialization_give_a_warning(
    tmp_path: Path, config: dict[str, Any], shared: str
) -> None:
    report = make_report(tmp_path, World(config={"gqa": config}))
    lines = [line for line in report.warnings if line.startswith("All seeds of")]
    assert lines == [f"All seeds of gqa {shared}, so the interval understates the variation."]


CALLBACK = {"_target_": "mine.Callback", "size": 2}
SEEN = {"interference": ("Callback.on_validation_batch_end receives validation batches",)}


def make_report_of_parts(folder: Path, facts: dict[str, dict[str, Any]], **groups: dict[str, Any]) -> Report:
    """Build a report in which the results of some arms have other fields and groups of the config."""
    world = World(config={arm: {key: values.get(arm) for key, values in groups.items()} for arm in KV})
    return make_report([replace_result(run, **facts.get(run.arm, {})) for run in write_runs(folder, world)])


@pytest.mark.parametrize(
    ("facts", "callbacks", "reason"),
    [
        *(
            ({arm: SEEN}, {arm: {"mine": CALLBACK}}, f"({arm}: Callback.on_validation_batch_end receives ")
            for arm in ("gqa", "mha")
        ),
        (
            {"gqa": SEEN, "mha": SEEN},
            {"gqa": {"mine": CALLBACK}, "mha": {"mine": {**CALLBACK, "size": 3}}},
            "the arms do not treat the validation data alike (gqa: ",
        ),
        ({"gqa": SEEN, "mha": SEEN}, {"gqa": {"mine": CALLBACK}, "mha": {"mine": CALLBACK}}, None),
        ({}, {"gqa": {"mine": CALLBACK}}, None),
        (
            {"gqa": {"recomputed": {"val/loss": 3.0}}},
            {},
            "the logits of its final weights give 3: a part changes the loss",
        ),
        ({arm: {"recomputed": {"val/loss": 3e38}} for arm in ("gqa", "mha")}, {}, "final weights give 3e+38"),
    ],
)
def test_parts_that_use_validation_data_or_change_the_loss_make_an_arm_incomparable(
    tmp_path: Path, facts: dict[str, Any], callbacks: dict[str, Any], reason: str | None
) -> None:
    report = make_report_of_parts(tmp_path, facts, callbacks=callbacks)
    claim, _, counted = report.verdict.claims
    assert (claim.verdict == "NOT COMPARABLE") == bool(reason)
    assert counted.verdict == "SUPPORTED", "a cache's bytes are counted"
    assert (get_effect(report, "gqa").verdict == "NOT COMPARABLE") == bool(reason)
    if reason:
        assert reason in claim.not_comparable[0]
        assert f"{claim.not_comparable[0]} (NOT COMPARABLE)" in describe_claim(claim)


def test_callbacks_and_own_parts_of_one_arm_are_named_beside_the_verdict(tmp_path: Path) -> None:
    shared = {"_target_": "mine.Shared"}
    report = make_report_of_parts(
        tmp_path,
        {},
        callbacks={"gqa": {"mine": CALLBACK, "out": None}, "mha": {}},
        optim={arm: {"_target_": "attnlab.training.language_model.LanguageModel"} for arm in ("mha", "mqa")}
        | {"gqa": {"_target_": "mine.Model", "schedule": shared}},
        data={arm: {"task": shared} for arm in ("mha", "gqa", "mqa")},
        logger={"gqa": {"_target_": "mine.Logger"}},
    )
    notes = (
        "Only gqa has callbacks.mine (mine.Callback, size=2)",
        "Only gqa has optim (mine.Model)",
        "Only gqa has optim.schedule (mine.Shared)",
    )
    claim, other, _ = report.verdict.claims
    assert claim.unshared_parts == notes
    assert other.unshared_parts == (), "of other arms"
    assert describe_claim(claim).endswith(f" {'. '.join(notes)}.")
    assert ". ".join(notes) in describe_scope(report)
