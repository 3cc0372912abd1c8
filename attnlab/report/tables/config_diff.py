"""Config differences between arms, layer kinds, and the command that reproduces all runs."""

import json
from collections.abc import Mapping
from typing import Any

from attnlab.report.schema import ConfigCell, ConfigDiff, ConfigRow, LayerKinds, Provenance, Reproduce
from attnlab.report.verdicts.environment import count_package_versions
from attnlab.report.verdicts.results import SweepResults, get_common_value
from attnlab.store.experiment_schema import Experiment
from attnlab.store.fingerprint import flatten_config

# Keys of a single run, and keys the experiment sets for all runs: no part of an arm's design.
NON_DESIGN_KEYS = {"seed", "replica", "parent", "id", "paths", "logger", "sweep", *Experiment.model_fields}


def build_config_diff(sweep: SweepResults) -> ConfigDiff:
    """Build rows of (key, value in each arm); an absent key is None with `present` false."""
    configs = {}
    for arm in sweep.arms:
        config = next(
            (run.result.config for run in sweep.get_runs(arm) if run.result and run.result.config), None
        )
        if config is not None:
            configs[arm] = {key: value for key, value in config.items() if key not in NON_DESIGN_KEYS}
    flat = {arm: dict(flatten_config(config)) for arm, config in configs.items()}
    rows = []
    for key in sorted({key for leaves in flat.values() for key in leaves}):
        cells = [ConfigCell(arm=arm, present=key in flat[arm], value=flat[arm].get(key)) for arm in flat]
        if any((cell.present, cell.value) != (cells[0].present, cells[0].value) for cell in cells):
            rows.append(ConfigRow(key=key, cells=cells))
    return ConfigDiff(
        arms=list(flat),
        rows=rows,
        layers=list_layer_kinds(sweep),
        baseline_config=configs.get(sweep.baseline) or next(iter(configs.values()), {}),
    )


def list_layer_kinds(sweep: SweepResults) -> list[LayerKinds]:
    """List the layer kinds of each arm whose layers are not uniform.

    A kind names the mixer, with the changes that its patch in `model.layers` makes.
    """
    rows = []
    for arm in sweep.arms:
        config = next(
            (run.result.config for run in sweep.get_runs(arm) if run.result and run.result.config), None
        )
        model = (config or {}).get("model", {})
        patches = model.get("layers") or [{}]
        mixer = model.get("mixer") or model.get("attention") or {}
        descriptions = [
            _describe_mixer(patches[layer % len(patches)], mixer) for layer in range(model.get("n_layers", 1))
        ]
        if len(kinds := list(dict.fromkeys(descriptions))) > 1:
            rows.append(
                LayerKinds(
                    arm=arm, layers=[kinds.index(description) for description in descriptions], kinds=kinds
                )
            )
    return rows


def _describe_mixer(patch: Mapping[str, Any], mixer: Mapping[str, Any]) -> str:
    """Format the name of the mixer with the leaves that a patch changes.

    Replaced parts appear by their class names.
    """
    target = patch.get("_target_", mixer.get("_target_", "?"))
    name = str(target).rpartition(".")[2]
    if "_target_" in patch:
        return name
    leaves = dict(flatten_config(dict(patch)))
    parts = {
        path.removesuffix("_target_"): value for path, value in leaves.items() if path.endswith("._target_")
    }
    changes = [f"{path.rstrip('.')}: {str(value).rpartition('.')[2]}" for path, value in parts.items()]
    kept_leaves = {path: value for path, value in leaves.items() if not path.startswith(tuple(parts))}
    changes += [f"{path}: {json.dumps(value)}" for path, value in kept_leaves.items() if path]
    return f"{name} ({', '.join(changes)})" if changes else name


def build_reproduce_section(sweep: SweepResults, provenance: Provenance) -> Reproduce:
    """Collect everything needed to run the experiment again and to verify that it is the same."""
    datasets = [result.estimate.data for result in sweep.run_results]
    data = {dataset["sha256"]: dataset for dataset in datasets if "sha256" in dataset}
    environment = [result.environment for result in sweep.run_results]
    common = {
        key: get_common_value(env.get(key) for env in environment)
        for key in ("python", "platform", "cpu", "device", "threads")
    }
    mixed = [
        key
        for key, value in common.items()
        if value is None and any(env.get(key) is not None for env in environment)
    ]
    return Reproduce(
        **dict(provenance),
        versions=count_package_versions(sweep),
        data=[data[key] for key in sorted(data)],
        environment=common,
        mixed=mixed,
    )
