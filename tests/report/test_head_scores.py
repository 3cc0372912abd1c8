"""Patterns of attention heads by fixed rules, and the heads and maps a report shows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rendering import make_report
from synthetic import (
    World,
    collect_maps,
    replace_result,
    select_page_maps,
    write_runs,
)
from worlds import SyntheticReports

from attnlab.measure.head_patterns import PATTERN_RULES, match_patterns
from attnlab.report.charts import series_figures
from attnlab.report.section import list_tables
from attnlab.report.sections import PageContext, heads_section
from attnlab.report.tables.head_maps import select_maps

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
def test_head_matches_the_patterns_whose_rules_it_satisfies(scores: dict, names: list[str]) -> None:
    assert match_patterns(scores, CHANCE) == names


def test_score_below_chance_matches_no_pattern() -> None:
    assert match_patterns({"local": 0.8}, {"local": 0.84}) == []
    every = dict.fromkeys((rule.score for rule in PATTERN_RULES.values()), 1.01)
    assert match_patterns(every, {}) == [*PATTERN_RULES], "every rule can hold"


def test_pattern_counts_are_means_over_seeds_and_top_heads_the_highest(
    synthetic_reports: SyntheticReports,
) -> None:
    report, folder = synthetic_reports["good"]
    tables = [run.head_scores["sink"] for run in report.runs if run.arm == "gqa"]
    above_threshold = [sum(v > 0.3 for layer in table for v in layer) for table in tables]
    [row] = [row for row in report.heads.patterns if row.name == "sink"]
    [count] = [count for count in row.counts if count.arm == "gqa"]
    assert (count.low, count.high, count.seeds) == (min(above_threshold), max(above_threshold), 5)
    assert count.mean == pytest.approx(sum(above_threshold) / 5)
    picks = select_page_maps(report, folder).picks
    for top in picks.top:
        tables = [run.head_scores[top.score] for run in report.runs]
        all_scores = sorted((v for table in tables for layer in table for v in layer), reverse=True)
        assert [entry.scores[top.score][0][0] for entry in top.heads] == all_scores[:8]
    assert picks.total == 3 * 5 * 8


def test_random_heads_are_reproducible(tmp_path: Path) -> None:
    places = []
    for name in "ab":
        runs = write_runs(tmp_path / name, World())
        picks = select_maps(make_report(runs), collect_maps(runs)).picks
        places.append([(one.arm, one.seed, one.layers, one.head_numbers) for one in picks.random])
    assert places[0] == places[1]
    assert len(places[0]) == 8
    assert len({seed for _, seed, *_ in places[0]}) > 1, "sampled from more runs than the one shown"


def test_arms_have_their_own_chance_levels_and_head_counts(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004})
    runs = []
    for run in write_runs(tmp_path, world):
        scores = dict(run.result.head_scores)
        chance = scores.pop("chance") | {"sink": {"mha": 0.25, "gqa": 0.5}[run.arm]}
        if run.arm == "gqa":  # one head per layer, on a text of another length
            scores = {k: [row[:1] for row in v] if isinstance(v, list) else v for k, v in scores.items()}
            run = replace(run, maps=None)
        runs.append(replace_result(run, head_scores=scores | {"chance": chance}))
    report = make_report(runs, world)
    sink = next(score for score in report.heads.scores if score.name == "sink")
    assert sink.chance is None, "the arms have no common level"
    tables = list_tables([heads_section.build(report, PageContext())])
    means = [row for row in tables["head_means"].iterate_records() if row["score"] == "sink"]
    assert {row["arm"]: (row["chance"], row["heads"]) for row in means} == {
        "mha": (0.25, 8),
        "gqa": (0.5, 2),
    }
    counts = [cell.text for cell in tables["head_patterns"].full_rows[0].typed_cells[1:3]]
    assert [text.partition(" of ")[2] for text in counts] == ["8", "2"]
    strip = next(
        one for one in series_figures.build_strip_charts(report) if one.label.startswith("attention sink")
    )
    levels = [layer["encoding"]["y"].get("datum") for layer in strip.draw()["layer"]]
    assert [level for level in levels if level is not None] == [0.25, 0.5]


def test_fewer_attention_layers_in_the_first_arm_omit_no_map(tmp_path: Path) -> None:
    deep = World({"mha": 0.0, "gqa": 0.004}, layers=6)
    runs = []
    for run in write_runs(tmp_path, deep):
        if run.arm == "mha":
            first_layers = {name: run.maps[name][:2] for name in ("visible", "groups")}
            first_layers["maps"] = run.maps["maps"][:, :2]
            scores = {
                name: [*table[:2], *[[]] * 4] if isinstance(table, list) else table
                for name, table in run.result.head_scores.items()
            }
            run = replace_result(
                replace(run, maps={**run.maps, **first_layers, "layers": np.arange(2)}), head_scores=scores
            )
        runs.append(run)
    report = make_report(runs, deep)
    selection = select_maps(report, collect_maps(runs))
    assert [len(entry.layers) for entry in selection.maps] == [2, 6]
    assert (selection.layers_shown, selection.layers, report.heads.layers) == (6, 6, 6)
