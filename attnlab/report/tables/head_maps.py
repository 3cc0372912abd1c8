"""The attention maps of a page, selected from a report's attention.npz: one run of each arm on the same text,
the same runs earlier in training, layer means of other seeds, and a few single heads.

report.json has no maps. A page is a pure function of report.json and, where it lies beside it, attention.npz.

Surprising: beside the top heads by a score stand as many drawn at random from all arms and seeds, because the
best of many look striking by selection alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.measure.patterns import names_of
from attnlab.report.schema import ExperimentSummary, HeadsReport
from attnlab.report.tables import maps

ROOM = 1_600_000  # characters of packed maps in one page
EARLIER = 600_000
SEEDS = 300_000  # the same of maps before the end of training, and of other seeds
PICKED = 8
PICK_BY = ("induction", "previous", "sink")
PICK_SEED = 0

Arrays = Mapping[str, Any]  # one run's attention.npz: maps, visible, steps, tokens, groups, layers
Tables = dict[str, list[list[float | None]]]  # score -> [layer][head]


@dataclass(frozen=True, eq=False)
class MappedRun:
    """A finished run of a report with its maps, its head scores and the chance level of each score."""

    arm: str
    seed: int
    id: str
    arrays: Arrays
    scores: Tables
    chance: Mapping[str, float | None]


@dataclass(frozen=True)
class Entry(maps.PackedMaps):
    """A run's packed maps with the scores, [layer][head], and the names of their heads."""

    arm: str
    seed: int
    run: str
    scores: Tables
    patterns: list[list[list[str]]]


@dataclass(frozen=True)
class Weights:
    """The packed weights of a run alone: earlier in training, or the mean of each layer's heads."""

    arm: str
    seed: int
    run: str
    layers: list[int]
    step: int
    weights: str


@dataclass(frozen=True)
class TopHeads:
    """The heads that lead in a score."""

    score: str
    heads: list[Entry]


@dataclass(frozen=True)
class Picks:
    """Single heads `of` so many: the top ones by each score, and some at random."""

    of: int
    top: list[TopHeads]
    random: list[Entry]


@dataclass(frozen=True)
class Selection:
    """The maps of a page: one run of each arm, earlier in training, other seeds, and single heads."""

    maps: list[Entry]
    earlier: list[Weights]
    seeds: list[Weights]
    left_out: list[str]
    picks: Picks | None
    layers: int
    layers_shown: int


def select(report: HeadsReport, archive: Mapping[tuple[str, int], Arrays]) -> Selection | None:
    """The maps that the page of a report shows; None where no finished run of it has any.

    Args:
        report: its arms, seeds, runs and head scores.
        archive: (arm, seed) -> the arrays of that run, as `maps.read` returns them.
    """
    runs = _mapped_runs(report, archive)
    shown = _shown_runs(report.experiment, runs)
    if not shown:
        return None
    entries = _pack(shown)
    earlier = _earlier(shown, entries)
    others, known = _other_seeds(runs, shown, entries)
    return Selection(
        maps=entries,
        earlier=earlier,
        seeds=others,
        left_out=_left_out(shown, entries, earlier, known - len(others)),
        picks=_pick(runs),
        layers=max(np.asarray(run.arrays["maps"]).shape[1] for run in shown),
        layers_shown=max(len(entry.layers) for entry in entries),
    )


def _mapped_runs(report: HeadsReport, archive: Mapping[tuple[str, int], Arrays]) -> list[MappedRun]:
    scores: dict[tuple[str, int], Tables] = {}
    chance: dict[tuple[str, int], dict[str, float | None]] = {}
    for score in report.heads.scores if report.heads else ():
        for row in score.runs:
            key = row.arm, row.seed
            scores.setdefault(key, {})[score.name] = row.values
            chance.setdefault(key, {})[score.name] = row.chance
    return [
        MappedRun(run.arm, run.seed, run.id, archive[key], scores.get(key, {}), chance.get(key, {}))
        for run in report.runs
        if run.done and (key := (run.arm, run.seed)) in archive
    ]


def _shown_runs(experiment: ExperimentSummary, runs: list[MappedRun]) -> list[MappedRun]:
    """One run of each arm, all of the same seed where there is such a seed."""
    of_arms = [[run for run in runs if run.arm == arm] for arm in experiment.arms]
    of_arms = [found for found in of_arms if found]
    seeds = [{run.seed for run in found} for found in of_arms]
    shared = next((seed for seed in experiment.seeds if all(seed in some for some in seeds)), None)
    return [next((run for run in found if run.seed == shared), found[0]) for found in of_arms]


def _entry(run: MappedRun, layers: list[int] | None = None, head: int | None = None) -> Entry:
    """A run's packed maps with the scores and names of their heads."""
    packed = maps.encode(run.arrays, layers, head)
    names = names_of(run.scores, run.chance)
    heads = packed.head_numbers
    return Entry(
        **vars(packed),
        arm=run.arm,
        seed=run.seed,
        run=run.id,
        scores={
            name: [[table[layer][h] for h in heads] for layer in packed.layers]
            for name, table in sorted(run.scores.items())
        },
        patterns=[[names[layer][h] for h in heads] for layer in packed.layers] if names else [],
    )


def _weights(run: MappedRun, packed: maps.PackedMaps) -> Weights:
    return Weights(run.arm, run.seed, run.id, packed.layers, packed.step, packed.weights)


def _pack(runs: list[MappedRun]) -> list[Entry]:
    """The runs' maps, of as many evenly spaced layers as there is room for; in all arms the same places among
    the layers with attention.
    """
    entries = [_entry(run) for run in runs]
    size = sum(len(run_maps.weights) for run_maps in entries)
    shared = min(len(run_maps.layers) for run_maps in entries)
    if size <= ROOM:
        return entries
    places = _spread(max(1, shared * ROOM // size), shared)
    return [
        _entry(run, [one.layers[place] for place in places]) for run, one in zip(runs, entries, strict=True)
    ]


def _earlier(runs: list[MappedRun], entries: list[Entry]) -> list[Weights]:
    """The runs' maps before the end of training, of as many of the shown layers as there is room for; []
    where one is too many.
    """

    def pack(count: int) -> list[Weights]:
        found = []
        for run, entry in zip(runs, entries, strict=True):
            layers = [entry.layers[place] for place in _spread(count, len(entry.layers))]
            for point in range(len(run.arrays["steps"]) - 1):
                found.append(_weights(run, maps.encode(run.arrays, layers, point=point)))
        return found

    whole = pack(max(len(entry.layers) for entry in entries))
    size = sum(len(entry.weights) for entry in whole)
    if size <= EARLIER:
        return whole
    kept = min(len(entry.layers) for entry in entries) * EARLIER // size
    return pack(kept) if kept else []


def _other_seeds(
    runs: list[MappedRun], shown: list[MappedRun], entries: list[Entry]
) -> tuple[list[Weights], int]:
    """The means of each layer's heads in an arm's other runs on the same text, as many as there is room for,
    one arm's first and then another's; and how many there would be.
    """
    rows = []
    for run, entry in zip(shown, entries, strict=True):
        others = [o for o in runs if o.arm == run.arm and o is not run and _is_same_text(run, o)]
        rows.append([(other, entry.layers) for other in others])
    known = [row[n] for n in range(max(map(len, rows), default=0)) for row in rows if n < len(row)]
    found = list[Weights]()
    size = 0
    for run, layers in known:
        packed = maps.encode(maps.mean(run.arrays), layers)
        size += len(packed.weights)
        if size > SEEDS:
            break
        found.append(_weights(run, packed))
    return found, len(known)


def _is_same_text(run: MappedRun, other: MappedRun) -> bool:
    """Whether both have maps of the same layers on the same text, with the same cells visible."""
    same = all(np.array_equal(run.arrays[key], other.arrays[key]) for key in ("tokens", "visible"))
    return same and maps.layers_of(run.arrays) == maps.layers_of(other.arrays)


def _spread(count: int, of: int) -> list[int]:
    """`count` places of so many, evenly spaced; all where there are no more."""
    count = min(count, of)
    return sorted({round(i * (of - 1) / max(1, count - 1)) for i in range(count)})


def _left_out(runs: list[MappedRun], entries: list[Entry], earlier: list[Weights], seeds: int) -> list[str]:
    """Sentences about the maps that are not in the page, to keep it small."""
    out = []
    points = max(len(run.arrays["steps"]) for run in runs)
    shown = max(len(entry.layers) for entry in entries)
    kept = max((len(entry.layers) for entry in earlier), default=0)
    if points > 1 and kept < shown:
        out.append(f"Before the end of training {kept} of the {shown} layers shown are here.")
    if seeds:
        out.append(f"The layer means of {seeds} more runs are not here.")
    return out


def _pick(runs: list[MappedRun]) -> Picks | None:
    """Heads of all arms and seeds together: the top few by a score, and as many at random for comparison."""
    known = [
        (run, layer, head)
        for run in runs
        if run.scores
        for layer, row in enumerate(next(iter(run.scores.values())))
        for head in range(len(row))
    ]
    if not known:
        return None

    def pack(chosen: list[tuple[MappedRun, int, int]]) -> list[Entry]:
        return [_entry(run, [layer], head) for run, layer, head in chosen]

    top = []
    for score in PICK_BY:
        ranked = sorted(
            (place for place in known if score in place[0].scores),
            key=lambda place: -(place[0].scores[score][place[1]][place[2]] or 0.0),
        )
        if ranked:
            top.append(TopHeads(score, pack(ranked[:PICKED])))
    lots = np.random.default_rng(PICK_SEED).permutation(len(known))[:PICKED]
    return Picks(len(known), top, pack([known[i] for i in sorted(lots)]))
