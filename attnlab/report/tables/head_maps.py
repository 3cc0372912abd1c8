"""Selection of attention maps for a page from a report's attention.npz.

The selection has one run of each arm on the same text, the same runs earlier in training, layer means of
other seeds, and a few single heads. report.json has no maps: a page is a pure function of report.json and, if
present next to it, attention.npz.

Surprising: the top heads by a score are shown with as many heads sampled at random from all arms and seeds,
because the best of many look striking by selection alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.measure.head_patterns import match_head_patterns
from attnlab.report.schema import ExperimentSummary, HeadsReport
from attnlab.report.tables import map_archive

MAX_MAP_CHARS = 1_600_000  # characters of packed maps in one page
MAX_EARLIER_CHARS = 600_000  # limits for maps before the end of training, and of other seeds
MAX_SEED_CHARS = 300_000
PICK_COUNT = 8
PICK_SCORES = ("induction", "previous", "sink")
PICK_SEED = 0

RunArrays = Mapping[str, Any]  # one run's attention.npz: maps, visible, steps, tokens, groups, layers
ScoreTables = dict[str, list[list[float | None]]]  # score -> [layer][head]


@dataclass(frozen=True, eq=False)
class MappedRun:
    """A finished run of a report with its maps, its head scores and the chance level of each score."""

    arm: str
    seed: int
    id: str
    arrays: RunArrays
    scores: ScoreTables
    chance: Mapping[str, float | None]


@dataclass(frozen=True)
class MapEntry(map_archive.PackedMaps):
    """Packed maps of a run with the scores, [layer][head], and the patterns of their heads."""

    arm: str
    seed: int
    run: str
    scores: ScoreTables
    patterns: list[list[list[str]]]


@dataclass(frozen=True)
class MapWeights:
    """Packed weights of a run alone: earlier in training, or the mean of each layer's heads."""

    arm: str
    seed: int
    run: str
    layers: list[int]
    step: int
    weights: str


@dataclass(frozen=True)
class TopHeads:
    """The heads with the highest values of a score."""

    score: str
    heads: list[MapEntry]


@dataclass(frozen=True)
class HeadPicks:
    """Single heads out of `total`: the top ones by each score, and some at random, unless these are all."""

    total: int
    top: list[TopHeads]
    random: list[MapEntry]


@dataclass(frozen=True)
class MapSelection:
    """The maps of a page: one run of each arm, earlier in training, other seeds, and single heads."""

    maps: list[MapEntry]
    earlier: list[MapWeights]
    seeds: list[MapWeights]
    left_out: list[str]
    picks: HeadPicks | None
    layers: int
    layers_shown: int


def select_maps(report: HeadsReport, archive: Mapping[tuple[str, int], RunArrays]) -> MapSelection | None:
    """Select the maps for the page of a report; None if no finished run has any.

    Args:
        report: its arms, seeds, runs and head scores.
        archive: (arm, seed) -> the arrays of that run, as `map_archive.read_archive` returns them.
    """
    runs = _collect_mapped_runs(report, archive)
    shown = _choose_shown_runs(report.experiment, runs)
    if not shown:
        return None
    entries = _pack_shown_runs(shown)
    earlier = _pack_earlier_maps(shown, entries)
    other_seeds, available = _average_other_seeds(runs, shown, entries)
    return MapSelection(
        maps=entries,
        earlier=earlier,
        seeds=other_seeds,
        left_out=_describe_omissions(shown, entries, earlier, available - len(other_seeds)),
        picks=_pick_heads(runs),
        layers=max(np.asarray(run.arrays["maps"]).shape[1] for run in shown),
        layers_shown=max(len(entry.layers) for entry in entries),
    )


def _collect_mapped_runs(
    report: HeadsReport, archive: Mapping[tuple[str, int], RunArrays]
) -> list[MappedRun]:
    chance = {arm: report.get_chance_levels(arm) for arm in report.experiment.arms}
    return [
        MappedRun(run.arm, run.seed, run.id, archive[key], run.head_scores, chance[run.arm])
        for run in report.runs
        if run.is_done and (key := (run.arm, run.seed)) in archive
    ]


def _choose_shown_runs(experiment: ExperimentSummary, runs: list[MappedRun]) -> list[MappedRun]:
    """Choose one run of each arm, all of the same seed if possible."""
    runs_by_arm = [[run for run in runs if run.arm == arm] for arm in experiment.arms]
    runs_by_arm = [arm_runs for arm_runs in runs_by_arm if arm_runs]
    seeds = [{run.seed for run in arm_runs} for arm_runs in runs_by_arm]
    shared = next((seed for seed in experiment.seeds if all(seed in arm_seeds for arm_seeds in seeds)), None)
    return [next((run for run in arm_runs if run.seed == shared), arm_runs[0]) for arm_runs in runs_by_arm]


def _build_entry(run: MappedRun, layers: list[int] | None = None, head: int | None = None) -> MapEntry:
    """Pack a run's maps with the scores and patterns of their heads."""
    packed = map_archive.pack_maps(run.arrays, layers, head)
    names = match_head_patterns(run.scores, run.chance)
    heads = packed.head_numbers
    return MapEntry(
        **vars(packed),
        arm=run.arm,
        seed=run.seed,
        run=run.id,
        scores={
            name: [[table[layer][head_index] for head_index in heads] for layer in packed.layers]
            for name, table in sorted(run.scores.items())
        },
        patterns=[[names[layer][head_index] for head_index in heads] for layer in packed.layers]
        if names
        else [],
    )


def _build_weights(run: MappedRun, packed: map_archive.PackedMaps) -> MapWeights:
    return MapWeights(run.arm, run.seed, run.id, packed.layers, packed.step, packed.weights)


def _pack_shown_runs(runs: list[MappedRun]) -> list[MapEntry]:
    """Pack the runs' maps, of as many evenly spaced layers as fit.

    All arms show the same positions among their layers with attention.
    """
    entries = [_build_entry(run) for run in runs]
    size = sum(len(entry.weights) for entry in entries)
    shared = min(len(entry.layers) for entry in entries)
    if size <= MAX_MAP_CHARS:
        return entries
    positions = _space_evenly(max(1, shared * MAX_MAP_CHARS // size), shared)
    return [
        _build_entry(run, [entry.layers[position] for position in positions])
        for run, entry in zip(runs, entries, strict=True)
    ]


def _pack_earlier_maps(runs: list[MappedRun], entries: list[MapEntry]) -> list[MapWeights]:
    """Pack the runs' maps before the end of training, of as many shown layers as fit; [] if not one fits."""

    def pack_layers(count: int) -> list[MapWeights]:
        weights = []
        for run, entry in zip(runs, entries, strict=True):
            layers = [entry.layers[position] for position in _space_evenly(count, len(entry.layers))]
            for step_index in range(len(run.arrays["steps"]) - 1):
                weights.append(
                    _build_weights(run, map_archive.pack_maps(run.arrays, layers, step_index=step_index))
                )
        return weights

    all_layers = pack_layers(max(len(entry.layers) for entry in entries))
    size = sum(len(entry.weights) for entry in all_layers)
    if size <= MAX_EARLIER_CHARS:
        return all_layers
    n_layers = min(len(entry.layers) for entry in entries) * MAX_EARLIER_CHARS // size
    return pack_layers(n_layers) if n_layers else []


def _average_other_seeds(
    runs: list[MappedRun], shown: list[MappedRun], entries: list[MapEntry]
) -> tuple[list[MapWeights], int]:
    """Average each layer's heads in other runs of the shown arms on the same text, as many as fit.

    Arms take turns. Returns the means, and the number of runs that would be available.
    """
    rows = []
    for run, entry in zip(shown, entries, strict=True):
        others = [
            other for other in runs if other.arm == run.arm and other is not run and _is_same_text(run, other)
        ]
        rows.append([(other, entry.layers) for other in others])
    candidates = [
        row[index] for index in range(max(map(len, rows), default=0)) for row in rows if index < len(row)
    ]
    means = list[MapWeights]()
    size = 0
    for run, layers in candidates:
        packed = map_archive.pack_maps(map_archive.average_heads(run.arrays), layers)
        size += len(packed.weights)
        if size > MAX_SEED_CHARS:
            break
        means.append(_build_weights(run, packed))
    return means, len(candidates)


def _is_same_text(run: MappedRun, other: MappedRun) -> bool:
    """Whether both runs have maps of the same layers on the same text, with the same visible cells."""
    same = all(np.array_equal(run.arrays[key], other.arrays[key]) for key in ("tokens", "visible"))
    return same and map_archive.get_layers(run.arrays) == map_archive.get_layers(other.arrays)


def _space_evenly(count: int, total: int) -> list[int]:
    """Return `count` evenly spaced indices below `total`; all of them if `total` is not larger."""
    count = min(count, total)
    return sorted({round(i * (total - 1) / max(1, count - 1)) for i in range(count)})


def _describe_omissions(
    runs: list[MappedRun], entries: list[MapEntry], earlier: list[MapWeights], seeds: int
) -> list[str]:
    """Describe the maps left out to keep the page small, a sentence each."""
    sentences = []
    points = max(len(run.arrays["steps"]) for run in runs)
    shown = max(len(entry.layers) for entry in entries)
    n_earlier = max((len(entry.layers) for entry in earlier), default=0)
    if points > 1 and n_earlier < shown:
        sentences.append(
            f"Maps from before the end of training cover {n_earlier} of the {shown} layers shown."
        )
    if seeds:
        sentences.append(f"The layer means of {seeds} more runs are omitted.")
    return sentences


def _pick_heads(runs: list[MappedRun]) -> HeadPicks | None:
    """Pick heads over all arms and seeds: the top few by a score, and as many at random for comparison."""
    heads = [
        (run, layer, head)
        for run in runs
        if run.scores
        for layer, row in enumerate(next(iter(run.scores.values())))
        for head in range(len(row))
    ]
    if not heads:
        return None

    def build_head_entries(chosen: list[tuple[MappedRun, int, int]]) -> list[MapEntry]:
        return [_build_entry(run, [layer], head) for run, layer, head in chosen]

    top = []
    for score in PICK_SCORES:
        ranked = sorted(
            (entry for entry in heads if score in entry[0].scores),
            key=lambda entry: -(entry[0].scores[score][entry[1]][entry[2]] or 0.0),
        )
        if ranked:
            top.append(TopHeads(score, build_head_entries(ranked[:PICK_COUNT])))
    if len(heads) <= PICK_COUNT:
        return HeadPicks(len(heads), top, [])  # the top heads are all heads
    sampled = np.random.default_rng(PICK_SEED).permutation(len(heads))[:PICK_COUNT]
    return HeadPicks(len(heads), top, build_head_entries([heads[i] for i in sorted(sampled)]))
