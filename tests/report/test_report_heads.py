"""What heads are called, by fixed rules, and which of them a report shows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import World, archive_of, but, experiment, provenance, selected, write_runs
from worlds import Made

from attnlab.measure.patterns import RULES, patterns
from attnlab.report.build import build
from attnlab.report.charts import series_figures
from attnlab.report.pages.html import html
from attnlab.report.schema import AbsentScore
from attnlab.report.tables.format import chances
from attnlab.report.tables.head_maps import select

CHANCE = {"induction": 0.05, "copying": -0.98, "local": 0.3, "sink": 0.07, "entropy": 1.0}


@pytest.mark.parametrize(
    ("scores", "names"),
    [
        ({}, []),
        ({"induction": 0.31}, ["induction"]),
        ({"induction": 0.3}, []),
        ({"copying": 0.01}, ["copying"]),
        ({"copying": -0.5}, []),
        ({"copying": None}, []),
        ({"sink": 0.31}, ["sink"]),
        ({"entropy": 0.91}, ["uniform"]),
        ({"entropy": 0.9}, []),
        ({"local": 0.71}, ["local"]),
        ({"positional": 0.91}, ["positional"]),
        ({"positional": 0.95, "local": 0.99, "entropy": 0.1}, ["positional", "local"]),
        ({"induction": 0.8, "copying": 0.4, "sink": 0.1}, ["induction", "copying"]),
    ],
)
def test_a_head_is_called_by_the_rules_it_satisfies(scores: dict, names: list[str]) -> None:
    assert patterns(scores, CHANCE) == names


def test_what_uniform_attention_scores_too_gives_no_name() -> None:
    assert patterns({"local": 0.8}, {"local": 0.84}) == []
    assert patterns({"local": 0.8}, {}) == ["local"]


def test_every_rule_can_hold() -> None:
    assert patterns(dict.fromkeys((rule.score for rule in RULES.values()), 1.01), {}) == list(RULES)


def test_counts_of_names_are_means_over_seeds(made: Made) -> None:
    report = made["good"][0]
    runs = next(score for score in report.heads.scores if score.name == "sink").runs
    over = [sum(v > 0.3 for row in run.values for v in row) for run in runs if run.arm == "gqa"]
    row = next(row for row in report.heads.patterns if row.name == "sink")
    found = next(count for count in row.counts if count.arm == "gqa")
    assert (found.low, found.high, found.seeds) == (min(over), max(over), 5)
    assert found.mean == pytest.approx(sum(over) / 5)


def test_the_top_heads_are_the_highest_of_all_arms_and_seeds(made: Made) -> None:
    report = made["good"][0]
    picks = selected(*made["good"]).picks
    for top in picks.top:
        score = next(score for score in report.heads.scores if score.name == top.score)
        all_of_them = sorted((v for run in score.runs for row in run.values for v in row), reverse=True)
        assert [one.scores[top.score][0][0] for one in top.heads] == all_of_them[:8]
    assert picks.of == 3 * 5 * 8


def test_heads_drawn_by_lot_are_the_same_every_time_and_not_the_top_ones(tmp_path: Path) -> None:
    found = []
    for name in "ab":
        runs = write_runs(tmp_path / name, World())
        report = build(experiment(World()), runs, None, provenance())
        found.append(select(report, archive_of(runs)).picks)
    places = [[(one.arm, one.seed, one.layers, one.head_numbers) for one in picks.random] for picks in found]
    assert places[0] == places[1]
    assert len(places[0]) == 8
    assert len({seed for _, seed, *_ in places[0]}) > 1, "drawn from more than the run that is shown"


def test_a_missing_score_is_explained_and_not_drawn(made: Made) -> None:
    heads = made["good"][0].heads
    assert "copying" not in {score.name for score in heads.scores}
    why = "Toy heads have no value matrix of their own to follow"
    assert AbsentScore(arm="gqa", label="copying (OV)", why=why) in heads.absent


def test_chance_is_what_the_run_measured(made: Made) -> None:
    chance = {score.name: score.chance for score in made["good"][0].heads.scores}
    assert chance == {"previous": 0.059, "sink": 0.074, "entropy": 1.0, "induction": 0.049}


def test_each_arm_has_the_chance_level_of_its_own_text_and_the_heads_of_its_own_model(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004})
    runs = []
    for run in write_runs(tmp_path, world):
        scores = dict(run.record.head_scores)
        chance = scores.pop("chance") | {"sink": {"mha": 0.25, "gqa": 0.5}[run.arm]}
        if run.arm == "gqa":  # a head a layer, on a text of another length
            scores = {k: [row[:1] for row in v] if isinstance(v, list) else v for k, v in scores.items()}
            run = replace(run, maps=None)
        runs.append(but(run, head_scores=scores | {"chance": chance}))
    report = build(experiment(world), runs, None, provenance())
    sink = next(score for score in report.heads.scores if score.name == "sink")
    assert sink.chance is None, "there is no one level for all"
    assert chances(sink) == {"mha": 0.25, "gqa": 0.5}
    heads = {count.arm: count.heads for count in report.heads.patterns[0].counts}
    assert heads["gqa"] < heads["mha"]
    page = html(report)
    assert all(f'</data> of <data value="{count}">' in page for count in heads.values())
    strip = next(one for one in series_figures.strips(report) if one.label.startswith("attention sink"))
    levels = [layer["encoding"]["y"].get("datum") for layer in strip.spec["layer"] if layer]
    assert [level for level in levels if level is not None] == [0.25, 0.5]


def test_where_the_first_arm_attends_in_fewer_layers_no_map_is_told_to_be_left_out(tmp_path: Path) -> None:
    deep = World({"mha": 0.0, "gqa": 0.004}, layers=6)
    runs = []
    for run in write_runs(tmp_path, deep):
        if run.arm == "mha":
            some = {name: run.maps[name][:2] for name in ("visible", "groups")}
            some["maps"] = run.maps["maps"][:, :2]
            scores = {
                name: [*table[:2], *[[]] * 4] if isinstance(table, list) else table
                for name, table in run.record.head_scores.items()
            }
            run = but(replace(run, maps={**run.maps, **some, "layers": np.arange(2)}), head_scores=scores)
        runs.append(run)
    report = build(experiment(deep), runs, None, provenance())
    found = select(report, archive_of(runs))
    assert [len(entry.layers) for entry in found.maps] == [2, 6]
    assert (found.layers_shown, found.layers, report.heads.layers) == (6, 6, 6)
