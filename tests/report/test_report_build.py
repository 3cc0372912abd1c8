"""Known truths in, the right words out."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
from synthetic import World, but, experiment, noise, provenance, timing, write_runs
from worlds import Made

from attnlab.cli.verbs.schema import schema
from attnlab.report.build import build, waiting
from attnlab.report.schema import LayerKinds, Report
from attnlab.report.tables.config_diff import layers
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts.runs import Run

SCHEMA = schema("report")


def report(folder: Path, world: World, **changes: object) -> Report:
    return build(experiment(world, **changes), write_runs(folder, world), timing(world), provenance())


def without_length(run: Run, **changes: object) -> Run:
    """A run that does not measure what others do."""
    kept = {name: value for name, value in run.record.metrics.items() if name != "length/2x"}
    return but(run, metrics=kept, **changes)


def words(found: Report) -> list[str]:
    return [claim.verdict for claim in found.verdict.claims]


@pytest.mark.parametrize(
    ("effect", "sd", "word", "claim"),
    [
        (0.004, 0.008, "EQUIVALENT", "SUPPORTED"),
        (-0.2, 0.008, "BETTER by more than the margin", "REFUTED"),
        (0.2, 0.008, "WORSE by more than the margin", "REFUTED"),
        (0.04, 0.015, "WORSE, size undecided", "INCONCLUSIVE"),
        (-0.01, 0.035, "NON-INFERIOR", "INCONCLUSIVE"),
        (0.02, 0.2, "INCONCLUSIVE", "INCONCLUSIVE"),
    ],
)
def test_a_planted_effect_gets_its_word(
    tmp_path: Path, effect: float, sd: float, word: str, claim: str
) -> None:
    found = report(tmp_path, World(effects={"mha": 0.0, "gqa": effect}, sd=sd, seeds=[0, 1, 2, 3, 4, 5]))
    assert found.effects[0].word == word
    assert words(found)[0] == claim


def test_a_length_that_an_arm_has_no_positions_for_is_undefined_and_not_left_out(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.01}, sd=0.01, seeds=[0, 1], extra={"length/2x": 2.0})
    runs = [
        without_length(run, undefined=("length/2x",)) if run.arm == "gqa" else run
        for run in write_runs(tmp_path, world)
    ]
    [table] = build(experiment(world), runs, timing(world), provenance()).length
    [row] = table.rows
    assert [cell.arm for cell in row.cells] == ["mha"]
    assert row.undefined == ["gqa"]


def test_mean_sd_and_pairs_are_the_planted_ones(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.0123}, sd=0.007, seeds=[3, 5, 8, 13])
    row = report(tmp_path, world).effects[0]
    assert row.mean == pytest.approx(0.0123, abs=1e-9)
    assert row.sd == pytest.approx(0.007, abs=1e-9)
    assert [pair.seed for pair in row.pairs] == [3, 5, 8, 13]
    assert [p.difference for p in row.pairs] == pytest.approx(list(0.0123 + noise(world, "gqa")), abs=1e-9)


def test_an_effect_is_worded_at_the_level_that_its_claim_was_decided_at(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.016, "mqa": 0.03}, sd=0.019, seeds=list(range(8)))
    alone = [{"says": "s", "arm": "gqa", "is": "within", "threshold": 0.03}]
    others = [{"says": str(i), "arm": "mqa", "is": "above", "threshold": i / 100} for i in (1, 2, 3)]
    row = report(tmp_path / "alone", world, claims=alone).effects[0]
    assert (row.word, row.alpha) == ("EQUIVALENT", 0.05)
    found = report(tmp_path / "many", world, claims=alone + others)
    row, claim = found.effects[0], found.verdict.claims[0]
    assert claim.verdict == "INCONCLUSIVE"
    assert row.alpha == claim.decision.alpha < 0.05
    assert row.word != "EQUIVALENT"


def test_a_higher_is_better_metric_turns_the_word(tmp_path: Path) -> None:
    found = report(tmp_path, World(effects={"mha": 0.0, "gqa": 0.2}), direction="higher")
    assert found.effects[0].word.startswith("BETTER")


def test_an_unequal_held_budget_is_not_comparable_and_says_why(tmp_path: Path) -> None:
    found = report(tmp_path, World(parameters={"gqa": 130_000}))
    first = found.verdict.claims[0]
    assert first.verdict == "NOT COMPARABLE"
    assert first.not_comparable == ["parameters declared held, but 130,000 in gqa and 120,000 in mha"]
    assert words(found)[1] == "SUPPORTED", "the other arm's budget is equal"


def test_what_was_not_to_be_made_equal_is_no_reason_not_to_compare(tmp_path: Path) -> None:
    found = report(tmp_path, World(parameters={"gqa": 130_000}), unmatched=["gqa"])
    assert "NOT COMPARABLE" not in words(found)
    [row] = [row for row in found.budget.rows if row.key == "parameters"]
    assert (row.mark, row.cells[1].value) == ("differs", 130_000), "and the page shows it"
    found = report(tmp_path / "both", World(parameters={"gqa": 130_000, "mqa": 130_000}), unmatched=["gqa"])
    assert words(found)[:2] == ["SUPPORTED", "NOT COMPARABLE"], "the other one was to be"


@pytest.mark.parametrize(("seeds", "left"), [([0, 1, 2, 3], 0), ([1, 2, 3, 4], 1)])
def test_seeds_that_a_file_with_looks_leaves_out_are_those_of_its_looks(
    tmp_path: Path, seeds: list[int], left: int
) -> None:
    said = {"seeds": None, "looks": [2, 4]}
    asked = experiment(World(seeds=seeds), looks=[2, 4], declared=said)
    document = build(asked, write_runs(tmp_path, World(seeds=seeds)), None, provenance())
    assert len(document.verdict.departures) == left


def test_what_is_claimed_of_an_arm_that_a_ladder_leaves_out_is_no_departure(tmp_path: Path) -> None:
    world = World()
    declared = experiment(world).declared
    also = {**declared["claims"][0], "arm": "left_out"}
    kept = report(tmp_path, world, declared={**declared, "claims": [*declared["claims"], also]})
    assert kept.verdict.departures == []
    fewer = report(tmp_path / "fewer", world, declared={**declared, "claims": declared["claims"] * 2})
    assert len(fewer.verdict.departures) == 1


@pytest.mark.parametrize(("parameters", "mark"), [(121_000, "equal"), (122_000, "differs")])
def test_parameters_have_one_percent_of_room(tmp_path: Path, parameters: int, mark: str) -> None:
    rows = report(tmp_path, World(parameters={"gqa": parameters})).budget.rows
    assert next(row for row in rows if row.key == "parameters").mark == mark


def test_a_difference_that_is_not_held_decides_nothing(tmp_path: Path) -> None:
    found = report(tmp_path, World(parameters={"gqa": 130_000}), held=["tokens"])
    assert "NOT COMPARABLE" not in words(found)


def test_a_failed_seed_leaves_its_pair_but_not_the_denominator(tmp_path: Path) -> None:
    status = {("gqa", 1): "diverged", ("mha", 3): "missing"}
    found = report(tmp_path, World(status=status))
    row = found.effects[0]
    assert (row.n, row.planned) == (3, 5)
    assert {(run.arm, run.seed, run.status) for run in found.failures.runs} == {
        ("mha", 3, "missing"),
        ("gqa", 1, "diverged"),
    }
    assert found.failures.runs[-1].tail[1] == "RuntimeError: something gave way"


@pytest.mark.parametrize(
    ("arm", "relation", "verdict"),
    [("gqa", "above", "SUPPORTED"), ("gqa", "below", "REFUTED"), ("gqa", "within", "REFUTED"),
     ("mha", "below", "SUPPORTED"), ("mha", "above", "REFUTED"), ("mha", "within", "REFUTED")],
)  # fmt: skip
def test_an_arm_that_always_diverges_is_worse_and_one_that_never_does_is_better(
    tmp_path: Path, arm: str, relation: str, verdict: str
) -> None:
    world = World(seeds=list(range(8)), status={(arm, seed): "diverged" for seed in range(8)})
    claim = {"says": "gqa is worse, or is not", "arm": "gqa", "is": relation, "threshold": 0.03}
    [found] = report(tmp_path, world, claims=[claim]).verdict.claims
    assert (found.verdict, found.basis) == (verdict, "ranks")
    assert (found.decision.p <= 0.05) is (verdict == "SUPPORTED")
    assert "median Δ val/loss = not finite, " in describe_claim(found)


def test_one_seed_decides_nothing_but_what_is_counted(tmp_path: Path) -> None:
    found = report(tmp_path, World(seeds=[0]))
    assert words(found) == ["INCONCLUSIVE", "INCONCLUSIVE", "SUPPORTED"]
    assert found.effects[0].low is None


def test_a_sweep_with_nothing_usable_is_no_result(tmp_path: Path) -> None:
    found = report(
        tmp_path, World(status={(a, s): "crashed" for a in ("mha", "gqa", "mqa") for s in range(5)})
    )
    assert found.verdict.headline == "NO RESULT"
    assert set(words(found)) == {"NO RESULT"}
    assert len(found.failures.runs) == 15


def test_a_counted_claim_is_exact_and_needs_no_share_of_the_error(tmp_path: Path) -> None:
    decision = report(tmp_path, World()).verdict.claims[2].decision
    assert decision.exact
    assert decision.estimate == 0.5
    assert decision.alpha is None


def test_a_timed_claim_is_decided_by_a_bootstrap(tmp_path: Path) -> None:
    claim = {
        "says": "gqa decodes faster",
        "arm": "gqa",
        "metric": "decode_ms_per_token",
        "compare": "ratio",
        "is": "below",
        "threshold": 1.0,
    }
    found = report(tmp_path, World(), claims=[claim]).verdict.claims[0]
    assert found.basis == "timing"
    assert found.decision.estimate == pytest.approx(1.3 / 1.4)
    assert found.decision.low <= 1.3 / 1.4 <= found.decision.high < 1


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seeds", [0, 1, 2, 3, 4], "seeds: declared 0, 1, 2, used 0, 1, 2, 3, 4"),
        ("margin", 0.03, "margin: declared 0.01, used 0.03"),
    ],
)
def test_what_left_the_declaration_is_named_and_exploratory(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    world = World()
    declared = {**experiment(world).declared, key: [0, 1, 2] if key == "seeds" else 0.01}
    found = report(tmp_path, world, declared=declared)
    assert found.verdict.departures == [said]
    assert all(", exploratory)" in describe_claim(claim) for claim in found.verdict.claims)
    assert not report(tmp_path / "same", world).verdict.exploratory


def test_the_pareto_front_leaves_out_what_is_beaten(tmp_path: Path) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.05, "mqa": 0.02})
    panel = next(p for p in report(tmp_path, world).tradeoff if p.key == "kv_bytes_per_token")
    assert panel.front == ["mqa", "mha"]


def test_only_keys_that_differ_are_in_the_diff(tmp_path: Path) -> None:
    rows = report(tmp_path, World()).config.rows
    assert [row.key for row in rows] == ["model.attention.heads.n_kv_heads", "model.ffn_width"]
    assert [cell.value for cell in rows[0].cells] == [4, 2, 1]


def test_an_arm_has_no_row_for_what_it_does_not_measure_unless_none_of_its_runs_ended(tmp_path: Path) -> None:
    world = World(extra={"length/2x": 2.0}, status={("mqa", seed): "crashed" for seed in range(5)})
    runs = [without_length(run) if run.arm == "gqa" else run for run in write_runs(tmp_path, world)]
    told = experiment(world, metrics=["length/2x"])
    rows = [(row.arm, row.metric, row.n) for row in build(told, runs, None, provenance()).effects]
    assert rows == [("gqa", "val/loss", 5), ("mqa", "val/loss", 0), ("mqa", "length/2x", 0)]


def test_a_cache_that_is_not_what_the_formula_says_is_a_warning(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, World())
    runs[0].record.memory["kv_bytes_per_token_live"] += 1
    found = build(experiment(World()), runs, None, provenance())
    assert any("the live cache holds 1025 B" in warning for warning in found.warnings)


@pytest.mark.parametrize("name", ["good", "broken", "nothing", "single"])
def test_every_report_fits_the_schema(made: Made, name: str) -> None:
    jsonschema.validate(made[name][0].plain(), SCHEMA, cls=jsonschema.Draft202012Validator)


def test_neither_the_report_nor_the_statistics_import_torch() -> None:
    loaded = "attnlab.stats, attnlab.report.build, attnlab.report.pages.files"
    code = f"import sys, {loaded}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_seed_that_stopped_is_drawn_but_does_not_cut_the_mean_curve(tmp_path: Path) -> None:
    found = report(tmp_path, World(status={("gqa", 1): "diverged"})).curves
    lengths = {line.seed: len(line.tokens) for line in found.lines if line.arm == "gqa"}
    assert lengths[1] < lengths[0]
    mean = next(line for line in found.means if line.arm == "gqa")
    assert (len(mean.tokens), mean.seeds) == (lengths[0], 4)
    assert len(next(line for line in found.mean_differences if line.arm == "gqa").tokens) == lengths[0]


def test_layers_that_are_not_alike_are_told_in_their_turns() -> None:
    delta = {"_target_": "attnlab.attention.mixers.delta.GatedDeltaNet", "dim": 64}
    full = {"_target_": "attnlab.attention.layer.Attention", "heads": {"_target_": "a.B"}}
    window = {"masks": {"local": {"_target_": "attnlab.attention.masks.window.window", "size": 16}}}
    models = {
        "alike": {"attention": full, "layers": None, "n_layers": 3},
        "same": {"attention": full, "layers": [{}, {}], "n_layers": 3},
        "hybrid": {"attention": full, "mixer": delta, "layers": [{}, {}, full], "n_layers": 4},
        "local": {"attention": full, "layers": [window, {"rotary": None}], "n_layers": 3},
    }

    def of(arm: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(record=SimpleNamespace(config={"model": models[arm]}))]

    hybrid, local = layers(SimpleNamespace(arms=list(models), of=of))
    assert hybrid == LayerKinds(arm="hybrid", layers=[0, 0, 1, 0], kinds=["GatedDeltaNet", "Attention"])
    kinds = ["Attention (masks.local: window)", "Attention (rotary: null)"]
    assert local == LayerKinds(arm="local", layers=[0, 1, 0], kinds=kinds)


@pytest.mark.parametrize("status", ["killed", "host_out_of_memory"])
def test_a_lost_run_is_no_outcome_of_its_arm_and_claims_wait_for_it(tmp_path: Path, status: str) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.004, "mqa": 0.06})
    assert words(report(tmp_path / "whole", world)) == ["SUPPORTED"] * 3
    world.status = {("gqa", 4): status, ("mqa", 2): "crashed"}
    found = report(tmp_path / "lost", world)
    counts = {row.arm: (row.planned, row.failed, row.lost) for row in found.failures.counts}
    assert counts == {"mha": (5, 0, 0), "gqa": (5, 0, 1), "mqa": (5, 1, 0)}
    assert found.failures.words == [("crashed", 1), ("lost to the machine", 1)]
    assert found.verdict.unlike[0].startswith("Lost to the machine: gqa seed 4. A lost run is no outcome")
    assert words(found) == ["INCONCLUSIVE", "SUPPORTED", "SUPPORTED"], (
        "a crash is an end, and a count no matter"
    )
    waits, decided, _ = found.verdict.claims
    assert "Not all seeds are in, 4 of 5 paired seeds." in describe_claim(waits)
    assert (waits.basis, waits.looks.made, waits.decision.n) == ("t", [], 4)
    assert len(decided.looks.made) == 1
    jsonschema.validate(found.plain(), SCHEMA)


def test_a_lost_run_leaves_the_looks_before_it_and_the_seeds_that_are_needed_as_they_are(
    tmp_path: Path,
) -> None:
    world = World(effects={"mha": 0.0, "gqa": 0.03}, sd=0.03, seeds=[0, 1, 2, 3, 4, 5])
    asked = experiment(world, looks=[2, 4, 6])
    world.status = {("gqa", seed): "missing" for seed in (4, 5)}
    [whole, _] = waiting(asked, write_runs(tmp_path / "whole", world))
    assert (whole.made, whole.seeds, whole.open) == (2, 6, True)
    world.status[("gqa", 3)] = "killed"
    [lost, _] = waiting(asked, write_runs(tmp_path / "lost", world))
    assert (lost.made, lost.seeds, lost.open) == (1, 4, True)
    world.status[("gqa", 3)] = "crashed"
    [crashed, _] = waiting(asked, write_runs(tmp_path / "crashed", world))
    assert crashed.made == 2
