"""Which attention maps travel in a report: one run of each arm on the same text, and a few single heads.

Surprising: beside the top heads by a score stand as many drawn by lot from all arms and seeds, because the
best of many look striking by selection alone.
"""

from typing import Any

import numpy as np

from attnlab.measure.patterns import names_of
from attnlab.report.tables import maps
from attnlab.report.verdicts.runs import Run, Sweep

ROOM = 1_600_000  # characters of packed maps in one report
EARLIER, SEEDS = 600_000, 300_000  # the same of maps before the end of training, and of other seeds
PICKED, PICK_BY, PICK_SEED = 8, ("induction", "previous", "sink"), 0


def shown(sweep: Sweep) -> list[Run]:
    """One run of each arm, all of the same seed where there is such a seed."""
    having = {arm: [run for run in sweep.done(arm) if run.maps is not None] for arm in sweep.arms}
    having = {arm: runs for arm, runs in having.items() if runs}
    seeds = [{run.seed for run in runs} for runs in having.values()]
    shared = next((seed for seed in sweep.seeds if seeds and all(seed in some for some in seeds)), None)
    return [next((run for run in runs if run.seed == shared), runs[0]) for runs in having.values()]


def entry(run: Run, layers: list[int] | None = None, head: int | None = None) -> dict[str, Any]:
    """A run's packed maps with the scores and names of their heads."""
    assert run.maps is not None
    packed = maps.encode(run.maps, layers, head)
    names, heads = names_of(run.head_scores, run.chance), packed["head_numbers"]
    return {
        "arm": run.arm,
        "seed": run.seed,
        "run": run.id,
        **packed,
        "scores": {
            name: [[table[layer][h] for h in heads] for layer in packed["layers"]]
            for name, table in sorted(run.head_scores.items())
        },
        "patterns": [[names[layer][h] for h in heads] for layer in packed["layers"]] if names else [],
    }


def packed(runs: list[Run]) -> list[dict[str, Any]]:
    """The runs' maps, of as many evenly spaced layers as there is room for; in all arms the same places among
    the layers with attention.
    """
    entries = [entry(run) for run in runs]
    size = sum(len(run_maps["weights"]) for run_maps in entries)
    shared = min((len(run_maps["layers"]) for run_maps in entries), default=0)
    if size <= ROOM:
        return entries
    places = _spread(max(1, shared * ROOM // size), shared)
    return [
        entry(run, [one["layers"][place] for place in places]) for run, one in zip(runs, entries, strict=True)
    ]


def earlier(runs: list[Run], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs' maps before the end of training, of as many of the shown layers as there is room for; []
    where one is too many.
    """

    def at(count: int) -> list[dict[str, Any]]:
        found = []
        for run, entry in zip(runs, entries, strict=True):
            assert run.maps is not None
            layers = [entry["layers"][place] for place in _spread(count, len(entry["layers"]))]
            for point in range(len(run.maps["steps"]) - 1):
                packed = maps.encode(run.maps, layers, point=point)
                known = {key: packed[key] for key in ("layers", "step", "weights")}
                found.append({"arm": run.arm, "seed": run.seed, **known})
        return found

    shared = min((len(entry["layers"]) for entry in entries), default=0)
    most = max((len(entry["layers"]) for entry in entries), default=0)
    whole = at(most)
    size = sum(len(entry["weights"]) for entry in whole)
    if size <= EARLIER:
        return whole
    kept = shared * EARLIER // size
    return at(kept) if kept else []


def other_seeds(
    sweep: Sweep, runs: list[Run], entries: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """The means of each layer's heads in an arm's other runs on the same text, as many as there is room for,
    one arm's first and then another's; and how many there would be.
    """
    rows = []
    for run, entry in zip(runs, entries, strict=True):
        others = [other for other in sweep.done(run.arm) if other is not run and _alike(run, other)]
        rows.append([(other, entry["layers"]) for other in others])
    known = [row[n] for n in range(max(map(len, rows), default=0)) for row in rows if n < len(row)]
    found, size = list[dict[str, Any]](), 0
    for run, layers in known:
        assert run.maps is not None
        packed = maps.encode(maps.mean(run.maps), layers)
        size += len(packed["weights"])
        if size > SEEDS:
            break
        wanted = {key: packed[key] for key in ("layers", "step", "weights")}
        found.append({"arm": run.arm, "seed": run.seed, "run": run.id, **wanted})
    return found, len(known)


def _alike(run: Run, other: Run) -> bool:
    """Whether both have maps of the same layers on the same text, with the same cells visible."""
    if run.maps is None or other.maps is None:
        return False
    same = all(np.array_equal(run.maps[key], other.maps[key]) for key in ("tokens", "visible"))
    return same and maps.layers_of(run.maps) == maps.layers_of(other.maps)


def _spread(count: int, of: int) -> list[int]:
    """`count` places of so many, evenly spaced; all where there are no more."""
    count = min(count, of)
    return sorted({round(i * (of - 1) / max(1, count - 1)) for i in range(count)})


def picks(sweep: Sweep) -> dict[str, Any] | None:
    """Heads of all arms and seeds together: the top few by a score, and as many drawn by lot for comparison.

    The best of many look striking by selection alone; what a head is like is what the drawn ones show.
    """
    runs = [run for run in sweep.planned if run.done and run.maps is not None and run.head_scores]
    tables = [(run, next(iter(run.head_scores.values()))) for run in runs]
    known: list[Any] = [
        (run, layer, head)
        for run, table in tables
        for layer, row in enumerate(table)
        for head in range(len(row))
    ]
    if not known:
        return None

    def drawn(chosen: list[tuple[Run, int, int]]) -> list[dict[str, Any]]:
        return [entry(run, [layer], head) for run, layer, head in chosen]

    top = []
    for score in PICK_BY:
        ranked = sorted(
            (at for at in known if score in at[0].head_scores),
            key=lambda at: -at[0].head_scores[score][at[1]][at[2]],
        )
        if ranked:
            top.append({"score": score, "heads": drawn(ranked[:PICKED])})
    lots = np.random.default_rng(PICK_SEED).permutation(len(known))[:PICKED]
    return {"of": len(known), "top": top, "random": drawn([known[i] for i in sorted(lots)])}
