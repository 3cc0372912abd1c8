"""Only like is compared with like: claims, effects, rankings and the answer agree on incomparable pairs."""

from pathlib import Path
from typing import Any

import pytest
from rates import build_tuning_result
from rendering import make_report, read_table
from synthetic import CONTEXT, World, build_context, build_provenance, replace_result, write_runs

from attnlab.errors import InvalidConfig
from attnlab.report.answer import answer_question, describe_scope
from attnlab.report.replications.arm_pairs import compute_differences
from attnlab.report.report_builder import build_report
from attnlab.report.schema import Effect, ReplicationContext, Report
from attnlab.report.tables.wording import describe_claim
from attnlab.store.run_schema import Metric
from attnlab.sweep.plan.experiment_validation import complete_experiment

SEES = {"sees_future": 1, "sees_rows": 0, "next_token": 1, "prefix": 0, "difference": 5.0,
        "with_future": 0.055, "without_future": 4.2, "checked": 63, "longest": 192}  # fmt: skip
UNDECIDED = "INCONCLUSIVE"  # pairs that are comparable but equal have no spread and no interval
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


@pytest.mark.parametrize(
    ("unknown_in", "verdict"), [(("gqa",), "NOT COMPARABLE"), (("mha", "gqa", "mqa"), "SUPPORTED")]
)
def test_controlled_resource_that_one_arm_does_not_report_is_not_comparable(
    tmp_path: Path, unknown_in: tuple[str, ...], verdict: str
) -> None:
    runs = [
        replace_result(run, estimate=run.result.estimate.model_copy(update={"flops_per_token": None}))
        if run.arm in unknown_in
        else run
        for run in write_runs(tmp_path, World())
    ]
    context = build_context(World(), controlled=["flops"])
    report = build_report(context, runs, None, build_provenance())
    assert list_verdicts(report)[0] == verdict
    text = "training FLOPs per token: controlled, but gqa has no value"
    assert (report.verdict.claims[0].not_comparable == [text]) == (verdict == "NOT COMPARABLE")


def test_arm_without_a_finished_run_is_not_incomparable(tmp_path: Path) -> None:
    world = World(status={("gqa", seed): "crashed" for seed in range(5)})
    report = make_report(tmp_path, world)
    assert list_verdicts(report)[0] == "NO RESULT"
    assert not any(line.startswith("gqa: ") for line in report.warnings)


@pytest.mark.parametrize("kind", ["sees_future", "sees_rows"])
def test_leaking_arm_is_not_comparable_in_claims_effects_and_ranking(tmp_path: Path, kind: str) -> None:
    world = World(effects={"mha": 0.0, "gqa": -1.5, "mqa": 0.06}, leakage={"gqa": CAUSAL | {kind: 1}})
    report = make_report(tmp_path, world)
    assert list_verdicts(report) == ["NOT COMPARABLE", "SUPPORTED", "SUPPORTED"], (
        "a cache's bytes are counted"
    )
    assert get_effect(report, "gqa").verdict == "NOT COMPARABLE"
    assert [getattr(get_effect(report, "gqa"), key) for key in ("mean", "low", "high", "p")] == [None] * 4
    assert list_ranked_arms(report) == ["mha", "mqa"]
    assert all("gqa" not in panel.pareto_front for panel in report.tradeoff)
    assert report.leakage.arms == ["gqa"]
    assert any(line.startswith("gqa") for line in report.warnings)


def test_incomparable_pair_has_no_difference_anywhere(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": -1.5, "mqa": 0.06}, leakage={"gqa": SEES}, sample="the cat sat")
    report = make_report(tmp_path, world)
    first = report.verdict.claims[0]
    assert [getattr(first.decision, key) for key in ("estimate", "low", "high", "p")] == [None] * 4
    fields = ("interval", "required_seeds", "threshold_sign_flip", "training_equivalent", "sign_flip")
    assert [getattr(first, key) for key in fields] == [None] * 5
    assert {pair.difference for pair in get_effect(report, "gqa").pairs} == {None}
    assert {line.arm for line in report.curves.differences} == {"mqa"}
    differences = {arm.arm: arm.difference for arm in report.text.token_categories[0].arms}
    assert differences["gqa"] is None
    assert differences["mqa"] is not None
    assert compute_differences(report, "gqa", "mha", "val/loss") == {}, (
        "so a ladder and several texts have none either"
    )
    assert len(compute_differences(report, "mqa", "mha", "val/loss")) == 5


def test_leakage_reason_gives_the_loss_with_own_and_other_future(tmp_path: Path) -> None:
    first = make_report(tmp_path, World(leakage={"gqa": SEES})).verdict.claims[0]
    reason = "gqa sees future tokens in 5 of 5 runs: loss 0.055 nats with the true future tokens, "
    reason += "4.2 with substituted ones"
    assert first.not_comparable == [reason]
    assert describe_claim(first) == f"gqa vs mha: {reason} (NOT COMPARABLE). 5 paired seeds."


def test_leakage_in_one_run_makes_the_arm_incomparable(tmp_path: Path) -> None:
    world = World()
    runs = write_runs(tmp_path, world)
    runs = [replace_result(r, leakage=SEES) if (r.arm, r.seed) == ("gqa", 2) else r for r in runs]
    assert (
        list_verdicts(make_report(runs, world))[0]
        == "NOT COMPARABLE"
    )


def test_leaking_baseline_leaves_nothing_to_compare_or_rank(tmp_path: Path) -> None:
    report = make_report(tmp_path, World(leakage={"mha": SEES}))
    assert list_verdicts(report)[:2] == ["NOT COMPARABLE"] * 2
    assert list_ranked_arms(report) == []


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


def test_arm_preregistered_to_leak_that_does_not_leak_is_reported(tmp_path: Path) -> None:
    report = make_report(tmp_path, World(leakage={"gqa": CAUSAL}), leakage=["gqa"])
    assert "gqa is preregistered under leakage, but sees no future tokens." in report.leakage.notes
    assert "gqa" in list_ranked_arms(report)


def test_seeing_later_tokens_that_are_no_targets_stays_comparable(tmp_path: Path) -> None:
    report = make_report(tmp_path, World(leakage={"gqa": SEES | {"next_token": 0}}))
    assert "NOT COMPARABLE" not in list_verdicts(report)
    assert "gqa sees later tokens, but they are not targets of this task." in report.failures.caveats


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


def test_metrics_that_cannot_exclude_a_prefix_are_not_comparable(tmp_path: Path) -> None:
    world = World(leakage={"gqa": CAUSAL | {"prefix": 8}, "mha": CAUSAL})
    report = make_report(
        tmp_path, world, claims=[make_claim("gqa", "train/loss"), make_claim("mqa", "train/loss")]
    )
    assert list_verdicts(report) == ["NOT COMPARABLE", "SUPPORTED"]
    assert "compare val/loss" in report.verdict.claims[0].not_comparable[0]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"unit": "bpe", "validation": "12" * 32}, "per char in mha: compare val/bits_per_byte"),
        ({"unit": "bpe", "validation": "12" * 32, "val_text": "9"}, "the arms share no validation corpus"),
        ({"validation": "12" * 32, "val_windows": 4}, "val_windows 4 and 128"),
        ({"validation": "12" * 32, "name": "induction", "val_text": "9"}, "use the same data for both"),
        ({"validation": "12" * 32}, "different tokens or targets"),
    ],
)
def test_losses_on_different_data_or_units_are_not_comparable(
    tmp_path: Path, facts: dict[str, Any], says: str
) -> None:
    report = make_report(tmp_path, World(data={"gqa": facts}))
    assert list_verdicts(report) == ["NOT COMPARABLE", "SUPPORTED", "SUPPORTED"]
    assert says in describe_claim(report.verdict.claims[0])
    assert get_effect(report, "gqa").verdict == "NOT COMPARABLE"
    assert "gqa" not in list_ranked_arms(report)


def test_losses_per_byte_of_one_text_compare_tokenizers(tmp_path: Path) -> None:
    changes = {"claims": [make_claim("gqa", "val/bits_per_byte")]}
    other = {"unit": "bpe", "validation": "12" * 32}
    report = make_report(
        tmp_path / "a", World(data={"gqa": other}, extra={"val/bits_per_byte": 2.0}), **changes
    )
    assert list_verdicts(report) == ["SUPPORTED"]
    other |= {"val_text": "12" * 32}
    report = make_report(
        tmp_path / "b", World(data={"gqa": other}, extra={"val/bits_per_byte": 2.0}), **changes
    )
    assert list_verdicts(report) == ["NOT COMPARABLE"]


def test_seeds_may_differ_in_data_if_both_arms_of_a_pair_share_it(tmp_path: Path) -> None:
    world = World()
    runs = [
        replace_result(run, estimate=run.result.estimate.model_copy(
            update={"data": run.result.estimate.data | {"validation": str(run.seed)}}
        ))
        for run in write_runs(tmp_path, world)
    ]  # fmt: skip
    assert "NOT COMPARABLE" not in list_verdicts(
        make_report(runs, world)
    )


def test_losses_by_length_need_the_same_lengths(tmp_path: Path) -> None:
    measure = {"lengths": [1, 4], "trained": None}
    changes = {"claims": [make_claim("gqa", "length/4")]}
    same = World(extra={"length/4": 2.0}, config={arm: {"measure": measure} for arm in ("mha", "gqa")})
    assert list_verdicts(make_report(tmp_path / "a", same, **changes)) == ["SUPPORTED"]
    same.config["gqa"] = {"measure": measure | {"trained": 16}}
    report = make_report(tmp_path / "b", same, **changes)
    assert list_verdicts(report) == ["NOT COMPARABLE"]
    assert "trained length 16 and 64" in describe_claim(report.verdict.claims[0])


def test_best_of_validations_needs_the_same_schedule(tmp_path: Path) -> None:
    every = {arm: {"measure": {"every": 100}} for arm in ("mha", "gqa", "mqa")}
    world = World(config=every | {"gqa": {"measure": {"every": 1}}})
    report = make_report(
        tmp_path, world, claims=[make_claim("gqa", "val/best_loss"), make_claim("mqa", "val/best_loss")]
    )
    assert list_verdicts(report) == ["NOT COMPARABLE", "SUPPORTED"]


def test_metric_with_two_definitions_is_not_comparable(tmp_path: Path) -> None:
    world = World()
    runs = [
        replace_result(
            run,
            metric_definitions=run.result.metric_definitions | {"val/loss": Metric("val/loss", unit="bits")},
        )
        if run.arm == "gqa" else run
        for run in write_runs(tmp_path, world)
    ]  # fmt: skip
    report = make_report(runs, world)
    assert list_verdicts(report)[0] == "NOT COMPARABLE"
    assert "unit bits and nats" in describe_claim(report.verdict.claims[0])


def test_tokens_of_a_parent_count_in_the_budget(tmp_path: Path) -> None:
    world = World()
    first = write_runs(tmp_path, world)
    parent = next(run for run in first if run.arm == "mqa").id
    world = World(config={"gqa": {"parent": parent}})
    runs = write_runs(tmp_path / "store", world)
    for run in first:
        (tmp_path / run.id).rename(tmp_path / "store" / f"{run.id}x")
    runs = [
        type(run)(run.arm, run.seed, run.id, run.result, ancestor_tokens=7 if run.arm == "gqa" else 0)
        for run in runs
    ]
    report = make_report(runs, world)
    assert list_verdicts(report)[0] == "NOT COMPARABLE"
    assert "tokens: controlled" in describe_claim(report.verdict.claims[0])


def test_arm_that_changes_model_and_training_gives_a_warning(tmp_path: Path) -> None:
    optim = {"lr": 3e-3, "weight_decay": 0.1}
    report = make_report(tmp_path, World(config={"gqa": {"optim": optim}}))
    [line] = [line for line in report.warnings if line.startswith("gqa changes the model")]
    assert "optim.weight_decay" in line
    assert not any("changes the model" in line for line in make_report(tmp_path / "b", World()).warnings)


def test_arm_that_trains_nothing_has_no_changed_training(tmp_path: Path) -> None:
    world = World(config={"gqa": {"parent": "0" * 16, "measurement": {"_target_": "other"}}})
    runs = [
        replace_result(run, estimate=run.result.estimate.model_copy(update={"steps": 0, "tokens": 0}))
        if run.arm == "gqa" and run.result
        else run
        for run in write_runs(tmp_path, world)
    ]
    warnings = make_report(runs, world).warnings
    assert not any("changes the model" in line for line in warnings)


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
    runs = [
        replace_result(
            run,
            **facts.get(run.arm, {}),
            config={**run.result.config, **{key: values.get(run.arm) for key, values in groups.items()}},
        )
        for run in write_runs(folder, World())
    ]
    return make_report(runs)


@pytest.mark.parametrize(
    ("facts", "callbacks", "reason"),
    [
        (
            {"gqa": SEEN},
            {"gqa": {"mine": CALLBACK}},
            "(gqa: Callback.on_validation_batch_end receives validation",
        ),
        (
            {"mha": SEEN},
            {"mha": {"mine": CALLBACK}},
            "(mha: Callback.on_validation_batch_end receives validation",
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


def test_equal_recomputed_losses_change_no_verdict(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, World())
    plain = make_report(runs)
    runs = [
        replace_result(run, recomputed={"val/loss": run.result.metrics["val/loss"] + 1e-4}) for run in runs
    ]
    assert make_report(runs) == plain


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
