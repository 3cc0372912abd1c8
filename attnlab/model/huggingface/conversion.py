"""Conversion of models from and to Hugging Face folders: config.json and safetensors, by `families`' tables.

No code in a folder is executed. `load_hf_model` and `save_hf_model` use the same rows, so they stay
consistent. Training-only settings (dropout, initialization, seed) and the kernel are not converted.
"""

import json
from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from attnlab.model.build import build_model, instantiate_config, list_mixer_configs
from attnlab.model.finite_weights import require_finite
from attnlab.model.huggingface.canonical_config import canonicalize_config, diff_configs, flatten_leaves
from attnlab.model.huggingface.families import FAMILIES, Config, Family, TensorRow
from attnlab.model.huggingface.families.read_config import (
    convert_config_to_ours,
    find_family,
    get_path,
    requires_value,
    validate_fixed_keys,
)
from attnlab.model.huggingface.shards import INDEX_FILE, WEIGHTS_FILE, ShardReader, read_json_mapping
from attnlab.model.transformer import Transformer
from attnlab.store.atomic_files import replace_atomically, write_json


def load_hf_model(
    folder: Path | str, families: Mapping[str, Family] = FAMILIES, dtype: torch.dtype | None = None
) -> tuple[Config, Transformer]:
    """Load a Hugging Face folder.

    If config.json ties the head but the file has a head that differs from the embedding, the file's head is
    used and our config is untied, as in transformers 5.

    Args:
        dtype: None is the narrowest dtype that holds every tensor without loss.

    Returns:
        Our `model` config, and the model in evaluation mode.

    Raises:
        ValueError: In one line, an unsupported family, config value or file.
    """
    folder = Path(folder)
    theirs = read_json_mapping(folder / "config.json")
    try:
        family = find_family(theirs, families)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    with ShardReader(folder, family.prefix) as shards:
        try:
            validate_fixed_keys(family, theirs)
            config = convert_config_to_ours(family, theirs, complete=True)
            is_declared_tied, config["tie"] = (
                config["tie"],
                config["tie"] and not _has_output_head(shards, family),
            )
            n_experts = max(_count_experts(row, config) for row in family.rows)
            for count, part in ((config["n_layers"], "layers"), (n_experts, "experts")):
                if count > len(shards.tensor_names):  # a false number could build a million of them
                    raise ValueError(
                        f"{count:,} {part}, but the folder has only {len(shards.tensor_names)} tensors"
                    )
            with torch.device("meta"):
                model = build_model({"model": config}, theirs["vocab_size"])
        except (
            ValueError,
            RuntimeError,
            OverflowError,
            MemoryError,
        ) as error:  # torch raises these for absurd sizes
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"{folder / 'config.json'}: {reason}") from error
        canonical = canonicalize_config(config)
        _validate_tensors(shards, family, _convert_tensors_to_theirs(family, model, canonical))
        state = {}
        for ours, row, pieces in _iterate_tensor_rows(family, model, canonical):
            tensors = [shards.get_tensor(name.removeprefix(family.prefix)) for name in pieces]
            joined = torch.cat(tensors)  # a copy: memory alignment in a file must not change a product
            state[ours] = row.layout.read(joined, canonical).contiguous()
    if is_declared_tied and "head.weight" in state:
        config["tie"] = bool((state["head.weight"] == state["embedding.weight"]).all())
    dtype = dtype or reduce(torch.promote_types, {tensor.dtype for tensor in state.values()})
    state = {name: tensor.to(dtype) for name, tensor in state.items()}
    require_finite(state.items(), f"{folder} in {dtype}")  # values may exceed the range of a narrower one
    if config["tie"]:
        state["head.weight"] = state["embedding.weight"]
    model.load_state_dict(state, assign=True)
    if config["tie"]:
        model.head.weight = model.embedding.weight
    _fill_buffers(model, config, dtype)
    return config, model.eval()


def save_hf_model(
    folder: Path | str,
    model: Transformer,
    config: Mapping[str, Any],
    families: Mapping[str, Family] = FAMILIES,
) -> None:
    """Write a folder that `transformers` loads; `config` is the resolved `model` config of the run.

    Raises:
        ValueError: No family can express the config; the message lists obstacles of the nearest family. Or
            the config does not describe `model`.
    """
    folder = Path(folder)
    config = dict(json.loads(json.dumps(config)))
    vocab_size = model.embedding.num_embeddings
    with torch.device("meta"):
        meta_model = build_model({"model": config}, vocab_size)
    if _collect_shapes(meta_model) != _collect_shapes(model):
        raise ValueError("the config does not describe this model: its tensors differ in name or shape")
    canonical = canonicalize_config(config)
    obstacles: dict[str, list[str]] = {}
    for model_type, family in families.items():
        obstacles[model_type] = _find_obstacles(family, canonical, config)
        if not obstacles[model_type]:
            break
    else:
        nearest, reasons = min(obstacles.items(), key=lambda item: len(item[1]))
        features = ", ".join(reasons[:3]) + (", ..." if len(reasons) > 3 else "")
        raise ValueError(
            f"no family can express this model; the nearest, {nearest}, does not support {features}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with replace_atomically(folder / WEIGHTS_FILE) as temporary:
        save_file(_convert_tensors_to_theirs(family, model, canonical), temporary, metadata={"format": "pt"})
    (folder / INDEX_FILE).unlink(missing_ok=True)
    theirs = {
        "model_type": model_type,
        "architectures": [family.architecture],
        "torch_dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
        "vocab_size": vocab_size,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    write_json(folder / "config.json", theirs | _convert_config_to_theirs(family, canonical))


def _convert_config_to_theirs(family: Family, canonical: Config) -> Config:
    values = {key: get_path(canonical, key.ours[0]) for key in family.keys}
    theirs = {key: allowed[0] for key, allowed in family.fixed.items() if allowed[0] is not None}
    theirs |= {key.theirs: None if value is None else key.write(value) for key, value in values.items()}
    return _drop_nulls(family, family.denormalize(_nest_keys(theirs)))


def _drop_nulls(family: Family, theirs: Config) -> Config:
    """Drop null keys that may not be null."""
    names = {key.theirs for key in family.keys if requires_value(key)}
    return {name: value for name, value in theirs.items() if value is not None or name not in names}


def _nest_keys(theirs: Config) -> Config:
    """Replace keys with a dot by nested mappings."""
    nested: Config = {}
    for name, value in theirs.items():
        outer, _, leaf = name.rpartition(".")
        (nested.setdefault(outer, {}) if outer else nested)[leaf] = value
    return nested


def _find_obstacles(family: Family, original: Config, config: Config) -> list[str]:
    """List the parts of our config, in canonical form `original`, that a round trip through theirs loses.

    A loss in all layers is listed by its key, other losses by the layer patch that causes them.
    """
    try:
        restored = canonicalize_config(
            convert_config_to_ours(family, _convert_config_to_theirs(family, original))
        )
    except ValueError:  # too far from this family to read the result back
        restored = {"layers": []}
    pairs: Any = zip_longest(original["layers"], restored["layers"], fillvalue={})
    by_layer = [diff_configs(*pair) for pair in pairs]
    base = flatten_leaves(original["attention"])
    common = {
        name: pair
        for name, pair in by_layer[0].items()
        if base.get(name, "absent") == pair[0] and all(layer.get(name) == pair for layer in by_layer)
    }
    other_parts = [
        {name: part for name, part in side.items() if name not in ("attention", "layers")}
        for side in (original, restored)
    ]
    mixer = "mixer" if config.get("mixer") else "attention"
    differences = diff_configs(*other_parts) | {f"{mixer}.{name}": pair for name, pair in common.items()}
    lines = [f"model.{name} = {ours} (only {theirs})" for name, (ours, theirs) in differences.items()]
    patches = config.get("layers") or [{}]
    patch_indices = {n % len(patches) for n, layer in enumerate(by_layer) if layer.keys() - common.keys()}
    return lines + [
        f"model.layers[{n}] = {json.dumps(patches[n])} (only patches that change nothing)"
        for n in sorted(patch_indices)
    ]


def _collect_shapes(model: Transformer) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _iterate_tensor_rows(
    family: Family, model: Transformer, config: Config
) -> Iterator[tuple[str, TensorRow, dict[str, int]]]:
    """Yield each of our tensors with its row and the names of theirs.

    Each name of theirs maps to the number of rows that it holds of our fused tensor; 0: equal sizes.
    """
    state = model.state_dict()
    if model.head.weight is model.embedding.weight:
        del state["head.weight"]
    for row in (row for row in family.rows if row.applies_to(config)):
        for layer in map(str, range(len(model.blocks) if "{n}" in row.ours else 1)):
            for suffix in ("weight", "bias") if "*" in row.ours else ("",):
                ours, *theirs = [
                    name.replace("{n}", layer).replace("*", suffix) for name in (row.ours, *row.theirs)
                ]
                if state.pop(ours, None) is None:
                    continue
                parts = getattr(model.get_submodule(ours.rpartition(".")[0]), "parts", {})
                row_counts = [sum(parts[part] for part in slices) for slices in row.theirs.values()]
                yield (
                    ours,
                    row,
                    {
                        name.replace("{e}", str(expert)): count
                        for expert in range(_count_experts(row, config))
                        for name, count in zip(theirs, row_counts, strict=True)
                    },
                )
    assert not state, f"the table has no row for {next(iter(state))}"


def _count_experts(row: TensorRow, config: Config) -> int:
    """Return the number of experts that a row stores one by one; 1 for other rows."""
    return config["ffn"]["n_experts"] if any("{e}" in name for name in row.theirs) else 1


def _has_output_head(shards: ShardReader, family: Family) -> bool:
    heads = {name for row in family.rows if row.ours == "head.weight" for name in row.theirs}
    return any(name.removeprefix(family.prefix) in shards.tensor_names for name in heads)


def _convert_tensors_to_theirs(family: Family, model: Transformer, config: Config) -> dict[str, Tensor]:
    state = model.state_dict()
    tensors = {}
    for ours, row, pieces in _iterate_tensor_rows(family, model, config):
        tensor = row.layout.write(state[ours], config)
        has_equal_pieces = len(pieces) == 1 or not all(pieces.values())
        row_counts = [len(tensor) // len(pieces)] * len(pieces) if has_equal_pieces else list(pieces.values())
        for name, piece in zip(pieces, tensor.split(row_counts), strict=True):
            tensors[name] = piece.contiguous()
    return tensors


def _fill_buffers(model: Transformer, config: Config, dtype: torch.dtype) -> None:
    """Recompute buffers that no file contains, such as ALiBi slopes, one layer at a time."""
    mixers = list_mixer_configs({"model": config})
    default_dtype = torch.get_default_dtype()
    for layer, block in enumerate(model.blocks):
        for module_name, part in block.mixer.named_modules():
            for name in [name for name, buffer in part.named_buffers(recurse=False) if buffer.is_meta]:
                torch.set_default_dtype(torch.float64)  # avoids double rounding
                try:
                    new_part = instantiate_config(mixers[layer % len(mixers)]).get_submodule(module_name)
                finally:
                    torch.set_default_dtype(default_dtype)
                setattr(part, name, getattr(new_part, name).to(dtype))


def _validate_tensors(shards: ShardReader, family: Family, expected: Mapping[str, Tensor]) -> None:
    """Raise ValueError for missing, unexpected and misshapen tensors."""
    expected = {name.removeprefix(family.prefix): tensor for name, tensor in expected.items()}
    unexpected = [
        name for name in shards.tensor_names if name not in expected and not name.endswith(family.ignored)
    ]
    for names, problem in (
        (expected.keys() - set(shards.tensor_names), "is missing"),
        (unexpected, "is unexpected"),
    ):
        if names:
            remainder = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise ValueError(f"{shards.folder}: tensor {min(names)} {problem}{remainder}")
    for name, tensor in expected.items():
        if shards.get_shape(name) != tuple(tensor.shape):
            requirement = f"config.json requires {tuple(tensor.shape)}"
            raise ValueError(f"{shards.folder}: {name} has shape {shards.get_shape(name)}, {requirement}")
