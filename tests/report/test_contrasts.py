"""Claims about contrasts of arms: exact values, staircases, interactions, parts left out, and their pages."""

import math
from pathlib import Path

import pytest
from synthetic import World, _write_run, build_provenance, declare_claim

from attnlab.report.charts.chart_renderer import render_charts
from attnlab.report.replications.arm_pairs import compute_differences
from attnlab.report.report_builder import build_report
from attnlab.report.schema import Report
from attnlab.report.section import Heading, Section, Table, list_charts, list_tables
from attnlab.report.sections import PageContext, contrasts_section
from attnlab.report.verdicts.results import SweepContext, read_run
from attnlab.store import fingerprint
from attnlab.sweep.plan.experiment_validation import complete_experiment

# by hand: gate -0.1 -0.1 -0.1, xsa -0.2 -0.1 -0.3, both -0.2 0.0 -0.1, so the interaction is
# both - gate - xsa + mha = +0.1, +0.2, +0.3: mean 0.2, standard deviation 0.1
LOSSES = {
    "mha": [2.0, 2.1, 2.2],
    "gate": [1.9, 2.0, 2.1],
    "xsa": [1.8, 2.0, 1.9],
    "gate_xsa": [1.8, 2.1, 2.1],
}
T_975_2 = 4.302652729911275  # of Student's t with two degrees of freedom, from a table
OVERRIDES = {"mha": [], "gate": ["epilogue=gate"], "xsa": ["epilogue=exclusive"], "gate_xsa": ["seed_=1"]}


def make_report(
    tmp_path: Path,
    claims: list[dict],
    losses: dict = LOSSES,
    overrides: dict = OVERRIDES,
) -> Report:
    """Build the report of these losses, by arm and seed; a None is a diverged run."""
    seeds = list(range(len(losses["mha"])))
    settings = {
        "name": "gqa_vs_mha",
        "arms": [*overrides],
        "arm_overrides": overrides,
        "baseline": "mha",
        "seeds": seeds,
        "metric": "val/loss",
        "margin": 0.3,
        "margin_reason": "because",
        "claims": claims,
    }
    experiment = complete_experiment(settings)
    world = World(effects=dict.fromkeys(losses, 0.0), seeds=seeds)
    runs = []
    for arm, values in losses.items():
        for seed, loss in zip(seeds, values, strict=True):
            folder = tmp_path / "runs" / fingerprint.compute_digest([arm, seed], 16)
            _write_run(folder, world, arm, seed, loss or 0.0, "done" if loss is not None else "diverged")
            runs.append(read_run(folder, arm, seed))
    return build_report(SweepContext(experiment), runs, None, build_provenance())


def build_section(report: Report) -> Section | None:
    return contrasts_section.build(report, PageContext())


def test_interaction_has_the_value_computed_by_hand(tmp_path):
    claim = {"says": "both gains add up", "interaction": ["gate", "xsa"], "is": "within", "threshold": 0.3}
    report = make_report(tmp_path, [claim])
    [result] = report.verdict.claims
    assert result.weights == {"gate_xsa": 1, "gate": -1, "xsa": -1, "mha": 1}
    assert (result.arm, result.against) == ("gate_xsa + mha", "gate + xsa")
    half = T_975_2 * 0.1 / math.sqrt(3)
    assert result.decision.estimate == pytest.approx(0.2)
    assert result.interval is not None
    assert (result.interval.low, result.interval.high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-5)
    assert result.verdict == "INCONCLUSIVE"  # 0.2 + 0.25 is beyond the margin
    differences = compute_differences(report, result.arm, result.against, result.metric)
    assert [*differences.values()] == pytest.approx([0.1, 0.2, 0.3]), "as ladders and corpora compute them"
    [group] = report.claim_groups
    means = {effect.name: effect.mean for effect in group.effects}
    assert means == pytest.approx(
        {
            "gate alone": -0.1,
            "gate with xsa": 0.1,
            "xsa alone": -0.2,
            "xsa with gate": 0.0,
            "interaction": 0.2,
        }
    )
    assert means["gate with xsa"] - means["gate alone"] == pytest.approx(means["interaction"])


def test_contrast_with_fractions_compares_with_the_mean_of_two_arms(tmp_path):
    claim = {
        "says": "both is below the mean of the others",
        "contrast": {"gate_xsa": 1, "gate": -0.5, "xsa": -0.5},
        "is": "below",
        "threshold": 0,
    }
    [result] = make_report(tmp_path, [claim]).verdict.claims
    # 1.8 - 1.85, 2.1 - 2.0, 2.1 - 2.0
    assert result.decision.estimate == pytest.approx((-0.05 + 0.1 + 0.1) / 3, abs=1e-6)
    assert (result.arm, result.against) == ("gate_xsa", "0.5 gate + 0.5 xsa")


def test_steps_of_a_staircase_add_up_to_the_difference_of_its_ends(tmp_path):
    claim = {
        "says": "{arm} is below {against}",
        "chain": ["mha", "gate", "xsa", "gate_xsa"],
        "is": "below",
        "threshold": 0,
    }
    losses = LOSSES | {"xsa": [1.8, None, 1.9]}
    report = make_report(tmp_path, [claim], losses)
    assert [(one.arm, one.against) for one in report.verdict.claims] == [
        ("gate", "mha"), ("xsa", "gate"), ("gate_xsa", "xsa"), ("gate_xsa", "mha"),
    ]  # fmt: skip
    assert report.verdict.claims[0].says == "gate is below mha"
    assert [one.decision.n for one in report.verdict.claims] == [3, 3, 3, 3]  # diverged: by ranks
    [group] = report.claim_groups
    assert group.seeds == [0, 2], "only seeds that all arms of the staircase have finished"
    *steps, ends = [effect.mean for effect in group.effects]
    assert steps == pytest.approx([-0.1, -0.15, 0.1])
    assert math.fsum(steps) == pytest.approx(ends, abs=1e-9)


def test_parts_left_out_are_ranked_by_the_loss_that_their_omission_costs(tmp_path):
    overrides = {"mha": [], "all": ["a.norm=rms", "a.act=silu", "b.norm=x"]}
    claim = {"says": "{arm} is above {against}", "leave_one_out": "all", "is": "above", "threshold": 0}
    losses = {
        "mha": [2.0, 2.1], "all": [1.0, 1.1], "without_a_norm": [1.1, 1.3], "without_act": [1.5, 1.7],
        "without_b_norm": [1.0, 1.1],
    }  # fmt: skip
    report = make_report(tmp_path, [claim], losses, overrides)
    assert report.experiment.arms == [*losses]
    [table] = list_tables([build_section(report)]).values()
    effects = {row["effect"]: row["estimate"] for row in table.iterate_records()}
    assert [*effects] == ["without_act", "without_a_norm", "without_b_norm"]
    assert [*effects.values()] == pytest.approx([0.55, 0.15, 0.0])


def test_diverged_arms_have_the_worst_value_on_their_side(tmp_path):
    claim = {"says": "both gains add up", "interaction": ["gate", "xsa"], "is": "above", "threshold": 0}
    bad_whole = make_report(tmp_path / "a", [claim], LOSSES | {"gate_xsa": [1.8, None, 2.1]})
    [result] = bad_whole.verdict.claims
    assert (result.basis, result.decision.n) == ("ranks", 3)
    assert result.decision.estimate == pytest.approx(0.3), "the median of 0.1, 0.3 and infinity"
    bad_part = make_report(tmp_path / "b", [claim], LOSSES | {"gate": [1.9, None, 2.1]})
    [result] = bad_part.verdict.claims
    assert result.decision.estimate == pytest.approx(0.1), "the median of minus infinity, 0.1 and 0.3"


def test_section_shows_each_group_and_reports_keep_it(tmp_path):
    claims = [
        {"says": "{arm} is below {against}", "chain": ["mha", "gate", "xsa"], "is": "below", "threshold": 0},
        {"says": "both gains add up", "interaction": ["gate", "xsa"], "is": "within", "threshold": 0.3},
    ]
    report = make_report(tmp_path, claims)
    assert Report.model_validate(report.to_dict()) == report
    section = build_section(report)
    headings = [block.text for block in section.blocks if isinstance(block, Heading)]
    assert headings == ["Steps from mha to xsa: val/loss", "Alone and together: gate and xsa: val/loss"]
    steps, interaction = (block for block in section.blocks if isinstance(block, Table))
    *ends, whole = steps.iterate_records()
    assert math.fsum(row["estimate"] for row in ends) == pytest.approx(whole["estimate"])
    last = [*interaction.iterate_records()][-1]
    assert last["difference"] == "gate_xsa + mha \N{MINUS SIGN} (gate + xsa)"
    assert (last["effect"], last["estimate"], last["n"]) == ("interaction", pytest.approx(0.2), 3)
    bars, panel = list_charts([section])
    [first, second, _] = bars.draw(width=640)["data"]["values"]
    assert second["begin"] == first["end"], "a step starts where the one before ends"
    assert {row["at"] for row in panel.draw(width=350)["data"]["values"]} == {"without gate", "with gate"}
    assert "interaction of gate and xsa" not in bars.label
    assert "interaction: +0.2" in panel.label
    assert not render_charts([bars, panel]).errors


def test_a_report_without_contrasts_has_no_such_section(tmp_path):
    claim = declare_claim("gate is below mha", "gate", "below", 0)
    report = make_report(tmp_path, [claim])
    assert "claim_groups" not in report.to_dict()
    assert "contrast" not in report.to_dict()["verdict"]["claims"][0]
    assert build_section(report) is None
