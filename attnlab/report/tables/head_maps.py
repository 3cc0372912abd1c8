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


def select(report: Mapping[str, Any], archive: Mapping[tuple[str, int], Arrays]) -> dict[str, Any] | None:
    """The maps that the page of a report shows; None where no finished run of it has any.

    Args:
        report: report.json, of which it reads experiment (arms, seeds), runs and heads.
        archive: (arm, seed) -> the arrays of that run, as `maps.read` returns them.
    """
    runs = _mapped_runs(report, archive)
    shown = _shown_runs(report["experiment"], runs)
    if not shown:
        return None
    entries = _pack(shown)
    earlier = _earlier(shown, entries)
    others, known = _other_seeds(report["experiment"]["arms"], runs, shown, entries)
    return {
        "maps": entries,
        "earlier": earlier,
        "seeds": others,
        "left_out": _left_out(shown, entries, earlier, known - len(others)),
        "picks": _pick(runs),
        "layers": max(np.asarray(run.arrays["maps"]).shape[1] for run in shown),
        "layers_shown": max(len(entry["layers"]) for entry in entries),
    }


def _mapped_runs(report: Mapping[str, Any], archive: Mapping[tuple[str, int], Arrays]) -> list[MappedRun]:
    scores: dict[tuple[str, int], Tables] = {}
    chance: dict[tuple[str, int], dict[str, float | None]] = {}
    for score in report["heads"]["scores"] if report["heads"] else []:
        for row in score["runs"]:
            key = row["arm"], row["seed"]
            scores.setdefault(key, {})[score["name"]] = row["values"]
            chance.setdefault(key, {})[score["name"]] = row["chance"]
    finished = [(run["arm"], run["seed"], run["id"]) for run in report["runs"] if run["status"] == "done"]
    return [
        MappedRun(
            arm, seed, name, archive[arm, seed], scores.get((arm, seed), {}), chance.get((arm, seed), {})
        )
        for arm, seed, name in finished
        if (arm, seed) in archive
    ]


def _shown_runs(experiment: Mapping[str, Any], runs: list[MappedRun]) -> list[MappedRun]:
    """One run of each arm, all of the same seed where there is such a seed."""
    of_arms = [[run for run in runs if run.arm == arm] for arm in experiment["arms"]]
    of_arms = [found for found in of_arms if found]
    seeds = [{run.seed for run in found} for found in of_arms]
    shared = next((seed for seed in experiment["seeds"] if all(seed in some for some in seeds)), None)
    return [next((run for run in found if run.seed == shared), found[0]) for found in of_arms]


def _entry(run: MappedRun, layers: list[int] | None = None, head: int | None = None) -> dict[str, Any]:
    """A run's packed maps with the scores and names of their heads."""
    packed = maps.encode(run.arrays, layers, head)
    names = names_of(run.scores, run.chance)
    heads = packed["head_numbers"]
    return {
        "arm": run.arm,
        "seed": run.seed,
        "run": run.id,
        **packed,
        "scores": {
            name: [[table[layer][h] for h in heads] for layer in packed["layers"]]
            for name, table in sorted(run.scores.items())
        },
        "patterns": [[names[layer][h] for h in heads] for layer in packed["layers"]] if names else [],
    }


def _pack(runs: list[MappedRun]) -> list[dict[str, Any]]:
    """The runs' maps, of as many evenly spaced layers as there is room for; in all arms the same places among
    the layers with attention.
    """
    entries = [_entry(run) for run in runs]
    size = sum(len(run_maps["weights"]) for run_maps in entries)
    shared = min(len(run_maps["layers"]) for run_maps in entries)
    if size <= ROOM:
        return entries
    places = _spread(max(1, shared * ROOM // size), shared)
    return [
        _entry(run, [one["layers"][place] for place in places])
        for run, one in zip(runs, entries, strict=True)
    ]


def _earlier(runs: list[MappedRun], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs' maps before the end of training, of as many of the shown layers as there is room for; []
    where one is too many.
    """

    def pack(count: int) -> list[dict[str, Any]]:
        found = []
        for run, entry in zip(runs, entries, strict=True):
            layers = [entry["layers"][place] for place in _spread(count, len(entry["layers"]))]
            for point in range(len(run.arrays["steps"]) - 1):
                packed = maps.encode(run.arrays, layers, point=point)
                known = {key: packed[key] for key in ("layers", "step", "weights")}
                found.append({"arm": run.arm, "seed": run.seed, **known})
        return found

    whole = pack(max(len(entry["layers"]) for entry in entries))
    size = sum(len(entry["weights"]) for entry in whole)
    if size <= EARLIER:
        return whole
    kept = min(len(entry["layers"]) for entry in entries) * EARLIER // size
    return pack(kept) if kept else []


def _other_seeds(
    arms: list[str], runs: list[MappedRun], shown: list[MappedRun], entries: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """The means of each layer's heads in an arm's other runs on the same text, as many as there is room for,
    one arm's first and then another's; and how many there would be.
    """
    rows = []
    for run, entry in zip(shown, entries, strict=True):
        others = [o for o in runs if o.arm == run.arm and o is not run and _is_same_text(run, o)]
        rows.append([(other, entry["layers"]) for other in others])
    known = [row[n] for n in range(max(map(len, rows), default=0)) for row in rows if n < len(row)]
    found = list[dict[str, Any]]()
    size = 0
    for run, layers in known:
        packed = maps.encode(maps.mean(run.arrays), layers)
        size += len(packed["weights"])
        if size > SEEDS:
            break
        wanted = {key: packed[key] for key in ("layers", "step", "weights")}
        found.append({"arm": run.arm, "seed": run.seed, "run": run.id, **wanted})
    return found, len(known)


def _is_same_text(run: MappedRun, other: MappedRun) -> bool:
    """Whether both have maps of the same layers on the same text, with the same cells visible."""
    same = all(np.array_equal(run.arrays[key], other.arrays[key]) for key in ("tokens", "visible"))
    return same and maps.layers_of(run.arrays) == maps.layers_of(other.arrays)


def _spread(count: int, of: int) -> list[int]:
    """`count` places of so many, evenly spaced; all where there are no more."""
    count = min(count, of)
    return sorted({round(i * (of - 1) / max(1, count - 1)) for i in range(count)})


def _left_out(
    runs: list[MappedRun], entries: list[dict[str, Any]], earlier: list[dict[str, Any]], seeds: int
) -> list[str]:
    """Sentences about the maps that are not in the page, to keep it small."""
    out = []
    points = max(len(run.arrays["steps"]) for run in runs)
    shown = max(len(entry["layers"]) for entry in entries)
    kept = max((len(entry["layers"]) for entry in earlier), default=0)
    if points > 1 and kept < shown:
        out.append(f"Before the end of training {kept} of the {shown} layers shown are here.")
    if seeds:
        out.append(f"The layer means of {seeds} more runs are not here.")
    return out


def _pick(runs: list[MappedRun]) -> dict[str, Any] | None:
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

    def pack(chosen: list[tuple[MappedRun, int, int]]) -> list[dict[str, Any]]:
        return [_entry(run, [layer], head) for run, layer, head in chosen]

    top = []
    for score in PICK_BY:
        ranked = sorted(
            (place for place in known if score in place[0].scores),
            key=lambda place: -(place[0].scores[score][place[1]][place[2]] or 0.0),
        )
        if ranked:
            top.append({"score": score, "heads": pack(ranked[:PICKED])})
    lots = np.random.default_rng(PICK_SEED).permutation(len(known))[:PICKED]
    return {"of": len(known), "top": top, "random": pack([known[i] for i in sorted(lots)])}
