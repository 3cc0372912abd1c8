"""Config diff: only the keys in which arms differ, what layers are that are not alike, and the command that
makes them all again.
"""

import json
from collections.abc import Mapping
from typing import Any

from attnlab.report.schema import ConfigCell, ConfigDiff, ConfigRow, LayerKinds, Provenance, Reproduce, RunRef
from attnlab.report.verdicts.alike import versions
from attnlab.report.verdicts.runs import Sweep, common
from attnlab.store.declarations import Experiment
from attnlab.store.fingerprint import flatten

# What every run has of its own, and what the experiment says to all of them: no arm's design.
NOT_DESIGN = {"seed", "replica", "parent", "id", "paths", "logger", "sweep", *Experiment.model_fields}


def config_diff(sweep: Sweep) -> ConfigDiff:
    """Rows of (key, value in each arm); an absent key is None with `present` false."""
    whole = {}
    for arm in sweep.arms:
        config = next((run.record.config for run in sweep.of(arm) if run.record and run.record.config), None)
        if config is not None:
            whole[arm] = {key: value for key, value in config.items() if key not in NOT_DESIGN}
    flat = {arm: dict(flatten(config)) for arm, config in whole.items()}
    rows = []
    for key in sorted({key for leaves in flat.values() for key in leaves}):
        cells = [ConfigCell(arm=arm, present=key in flat[arm], value=flat[arm].get(key)) for arm in flat]
        if any((cell.present, cell.value) != (cells[0].present, cells[0].value) for cell in cells):
            rows.append(ConfigRow(key=key, cells=cells))
    return ConfigDiff(
        arms=list(flat),
        rows=rows,
        layers=layers(sweep),
        whole=whole.get(sweep.baseline) or next(iter(whole.values()), {}),
    )


def layers(sweep: Sweep) -> list[LayerKinds]:
    """Of each arm whose layers are not alike, what its layers are: {arm, layers: [place in kinds], kinds:
    [what one mixes with, and what a patch of `model.layers` says of it]}.
    """
    rows = []
    for arm in sweep.arms:
        config = next((run.record.config for run in sweep.of(arm) if run.record and run.record.config), None)
        model = (config or {}).get("model", {})
        patches = model.get("layers") or [{}]
        mixer = model.get("mixer") or model.get("attention") or {}
        said = [_mixes(patches[n % len(patches)], mixer) for n in range(model.get("n_layers", 1))]
        if len(kinds := list(dict.fromkeys(said))) > 1:
            rows.append(LayerKinds(arm=arm, layers=[kinds.index(one) for one in said], kinds=kinds))
    return rows


def _mixes(patch: Mapping[str, Any], mixer: Mapping[str, Any]) -> str:
    """The name of what mixes, and the leaves of the patch where it keeps to that; of parts that it puts in
    the place of others, their names.
    """
    target = patch.get("_target_", mixer.get("_target_", "?"))
    name = str(target).rpartition(".")[2]
    if "_target_" in patch:
        return name
    leaves = dict(flatten(dict(patch)))
    parts = {
        path.removesuffix("_target_"): value for path, value in leaves.items() if path.endswith("._target_")
    }
    changes = [f"{path.rstrip('.')}: {str(value).rpartition('.')[2]}" for path, value in parts.items()]
    kept = {path: value for path, value in leaves.items() if not path.startswith(tuple(parts))}
    changes += [f"{path}: {json.dumps(value)}" for path, value in kept.items() if path]
    return f"{name} ({', '.join(changes)})" if changes else name


def reproduce(sweep: Sweep, provenance: Provenance) -> Reproduce:
    """Everything needed to run it again, and to know whether it was the same."""
    known = [record.estimate.data for record in sweep.records]
    data = {dataset["sha256"]: dataset for dataset in known if "sha256" in dataset}
    runs = [RunRef(arm=run.arm, seed=run.seed, id=run.id, status=run.status) for run in sweep.planned]
    environment = [record.environment for record in sweep.records]
    shown = {
        key: common(e.get(key) for e in environment)
        for key in ("python", "platform", "cpu", "device", "threads")
    }
    mixed = [
        key
        for key, value in shown.items()
        if value is None and any(e.get(key) is not None for e in environment)
    ]
    return Reproduce(
        **dict(provenance),
        versions=versions(sweep),
        data=[data[key] for key in sorted(data)],
        runs=runs,
        environment=shown,
        mixed=mixed,
    )
