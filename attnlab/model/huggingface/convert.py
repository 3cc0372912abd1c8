"""Weights in and out of Hugging Face folders: config.json and safetensors, by the tables of `families`.

Nothing in a folder is executed. `load` and `save` walk the same rows, so they cannot drift apart. What only
training reads (dropout, initialisation, seed) does not travel, and neither does the kernel.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from attnlab.model.build import build_model, make, mixer_configs
from attnlab.model.huggingface.canonical import canonical, leaves, lost
from attnlab.model.huggingface.families import FAMILIES, REQUIRED, Config, Family, Row
from attnlab.model.huggingface.shards import INDEX, WEIGHTS, Shards, read_mapping
from attnlab.model.transformer import Transformer
from attnlab.store.files import replacing, write_json


def load(
    folder: Path | str, families: Mapping[str, Family] = FAMILIES, dtype: torch.dtype | None = None
) -> tuple[Config, Transformer]:
    """Our `model` config and the model in evaluation mode.

    `dtype` None is the narrowest that holds every tensor we read, so that no bit is lost. Where config.json
    ties the head and the file has one that differs from the embedding, it is used and our config says untied:
    transformers 5 does the same. ValueError, one line, for a family, a config value or a file that cannot be
    read as a model of ours.
    """
    folder = Path(folder)
    theirs = read_mapping(folder / "config.json")
    kind: Any = theirs.get("model_type")
    if not isinstance(kind, str) or kind not in families:
        known = ", ".join(families)
        raise ValueError(f"{folder / 'config.json'}: model_type {kind!r} is not known (known: {known})")
    family = families[kind]
    with Shards(folder, family.prefix) as shards:
        try:
            _check_fixed(family, theirs)
            config = _our_config(family, theirs, complete=True)
            tied, config["tie"] = config["tie"], config["tie"] and not _has_head(shards, family)
            if config["n_layers"] > len(shards.names):  # else a number alone would build a million of them
                raise ValueError(f"{config['n_layers']:,} layers, and {len(shards.names)} tensors beside it")
            with torch.device("meta"):
                model = build_model({"model": config}, theirs["vocab_size"])
        except (ValueError, RuntimeError, OverflowError, MemoryError) as error:  # torch's, for absurd sizes
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"{folder / 'config.json'}: {reason}") from error
        _compare(shards, family, _their_tensors(family, model, config))
        state = {}
        for ours, row, pieces in _pairs(family, model, config):
            tensors = [shards.tensor(name.removeprefix(family.prefix)) for name in pieces]
            joined = torch.cat(tensors)  # a copy: its place in a file must not change a product
            state[ours] = row.layout.read(joined, config).contiguous()
    if tied and "head.weight" in state:
        config["tie"] = bool((state["head.weight"] == state["embedding.weight"]).all())
    dtype = dtype or reduce(torch.promote_types, {tensor.dtype for tensor in state.values()})
    state = {name: tensor.to(dtype) for name, tensor in state.items()}
    if config["tie"]:
        state["head.weight"] = state["embedding.weight"]
    model.load_state_dict(state, assign=True)
    if config["tie"]:
        model.head.weight = model.embedding.weight
    _fill_buffers(model, config, dtype)
    return config, model.eval()


def save(
    folder: Path | str,
    model: Transformer,
    config: Mapping[str, Any],
    families: Mapping[str, Family] = FAMILIES,
) -> None:
    """Writes a folder that `transformers` loads; `config` is the resolved `model` config of a run's record.

    ValueError where no family can express it, with what the nearest one lacks, or where it is not this
    model's.
    """
    folder = Path(folder)
    config = dict(json.loads(json.dumps(config)))
    vocab_size = model.embedding.num_embeddings
    with torch.device("meta"):
        described = build_model({"model": config}, vocab_size)
    if _shapes(described) != _shapes(model):
        raise ValueError("the config describes another model: its tensors differ in name or shape")
    obstacles = {kind: _obstacles(family, config) for kind, family in families.items()}
    kind = min(families, key=lambda kind: len(obstacles[kind]))
    if obstacles[kind]:
        what = ", ".join(obstacles[kind][:3]) + (", ..." if len(obstacles[kind]) > 3 else "")
        raise ValueError(f"no family can express this model; {kind} comes nearest and cannot have {what}")
    family = families[kind]
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as temporary:
        save_file(_their_tensors(family, model, config), temporary, metadata={"format": "pt"})
    (folder / INDEX).unlink(missing_ok=True)
    theirs = {
        "model_type": kind,
        "architectures": [family.architecture],
        "torch_dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
        "vocab_size": vocab_size,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    write_json(folder / "config.json", theirs | _their_config(family, config))


def _check_fixed(family: Family, theirs: Config) -> None:
    for key, allowed in family.fixed.items():
        value = _get(theirs, key, allowed[0])
        if value not in allowed:
            raise ValueError(f"{key} = {value!r} is not supported (only {', '.join(map(repr, allowed))})")
    if not isinstance(theirs.get("vocab_size"), int):
        raise ValueError(f"vocab_size must be a whole number, not {theirs.get('vocab_size')!r}")


def _our_config(family: Family, theirs: Config, complete: bool = False) -> Config:
    """Their config in our leaves; `complete` says that a key without a default must be there."""
    config = copy.deepcopy(family.model)
    theirs = family.settled(theirs)
    for key in family.keys:
        value = _get(theirs, key.theirs)
        if value is None and key.default is not REQUIRED:
            value = key.default(theirs) if callable(key.default) else key.default
        elif value is None and complete:
            raise ValueError(f"{key.theirs} is missing")
        try:
            value = None if value is None else key.read(value)
        except ValueError as error:
            raise ValueError(f"{key.theirs} {error}") from error
        for path in key.ours:
            *outer, leaf = path.split(".")
            if value is None and outer[-1:] in (["masks"], ["scores"]):
                continue  # a layer either has such a part or has not
            node = config
            for name in outer:
                node = node.setdefault(name, {})
            node[leaf] = copy.deepcopy(value)
    return config


def _their_config(family: Family, config: Config) -> Config:
    plain = canonical(config)
    values = {key: _get(plain, key.ours[0]) for key in family.keys}
    theirs = {key: allowed[0] for key, allowed in family.fixed.items() if allowed[0] is not None}
    theirs |= {key.theirs: None if value is None else key.write(value) for key, value in values.items()}
    return family.spelled(_nested(theirs))


def _nested(theirs: Config) -> Config:
    """A mapping in the place of each name with a dot."""
    nested: Config = {}
    for name, value in theirs.items():
        outer, _, leaf = name.rpartition(".")
        (nested.setdefault(outer, {}) if outer else nested)[leaf] = value
    return nested


def _obstacles(family: Family, config: Config) -> list[str]:
    """What is lost on the way from our config to theirs, found by going there and back: what all layers lose
    by its name, and else the patches that change what a layer is, as they were written.
    """
    here = canonical(config)
    try:
        there = canonical(_our_config(family, _their_config(family, config)))
    except ValueError:  # it is so far from this family that what was written means nothing there
        there = {"layers": []}
    pairs: Any = zip_longest(here.pop("layers"), there.pop("layers"), fillvalue={})
    by_layer = [lost(*pair) for pair in pairs]
    base = leaves(here["attention"])
    common = {
        name: both
        for name, both in by_layer[0].items()
        if base.get(name, "absent") == both[0] and all(layer.get(name) == both for layer in by_layer)
    }
    outside = [{name: part for name, part in side.items() if name != "attention"} for side in (here, there)]
    mixer = "mixer" if config.get("mixer") else "attention"
    named = lost(*outside) | {f"{mixer}.{name}": both for name, both in common.items()}
    lines = [f"model.{name} = {ours} (only {theirs})" for name, (ours, theirs) in named.items()]
    patches = config.get("layers") or [{}]
    changed = {n % len(patches) for n, layer in enumerate(by_layer) if layer.keys() - common.keys()}
    return lines + [
        f"model.layers[{n}] = {json.dumps(patches[n])} (only patches that change nothing)"
        for n in sorted(changed)
    ]


def _get(node: Any, path: str, default: Any = None) -> Any:
    for name in path.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return default
        node = node[name]
    return node


def _shapes(model: Transformer) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _pairs(family: Family, model: Transformer, config: Config) -> Iterator[tuple[str, Row, dict[str, int]]]:
    """(our tensor, its row, their tensors with the rows that they hold of our fused one, 0 where all are
    alike), for all that the model has.
    """
    state = model.state_dict()
    if model.head.weight is model.embedding.weight:
        del state["head.weight"]
    for row in (row for row in family.rows if row.only(config)):
        for layer in map(str, range(len(model.blocks) if "{n}" in row.ours else 1)):
            for kind in ("weight", "bias") if "*" in row.ours else ("",):
                names = [name.replace("{n}", layer).replace("*", kind) for name in (row.ours, *row.theirs)]
                if state.pop(names[0], None) is None:
                    continue
                parts = getattr(model.get_submodule(names[0].rpartition(".")[0]), "parts", {})
                shares = [sum(parts[part] for part in held) for held in row.theirs.values()]
                yield names[0], row, dict(zip(names[1:], shares, strict=True))
    assert not state, f"the table has no row for {next(iter(state))}"


def _has_head(shards: Shards, family: Family) -> bool:
    heads = {name for row in family.rows if row.ours == "head.weight" for name in row.theirs}
    return any(name.removeprefix(family.prefix) in shards.names for name in heads)


def _their_tensors(family: Family, model: Transformer, config: Config) -> dict[str, Tensor]:
    state = model.state_dict()
    tensors = {}
    for ours, row, pieces in _pairs(family, model, config):
        written = row.layout.write(state[ours], config)
        whole = len(pieces) == 1 or not all(pieces.values())
        shares = [len(written) // len(pieces)] * len(pieces) if whole else list(pieces.values())
        for name, piece in zip(pieces, written.split(shares), strict=True):
            tensors[name] = piece.contiguous()
    return tensors


def _fill_buffers(model: Transformer, config: Config, dtype: torch.dtype) -> None:
    """What no file holds, as slopes, from the layer that has it: made again, one layer at a time."""
    mixers = mixer_configs({"model": config})
    usual = torch.get_default_dtype()
    for layer, block in enumerate(model.blocks):
        for place, part in block.mixer.named_modules():
            for name in [name for name, buffer in part.named_buffers(recurse=False) if buffer.is_meta]:
                torch.set_default_dtype(torch.float64)  # not rounded twice
                try:
                    made = make(mixers[layer % len(mixers)]).get_submodule(place)
                finally:
                    torch.set_default_dtype(usual)
                setattr(part, name, getattr(made, name).to(dtype))


def _compare(shards: Shards, family: Family, wanted: Mapping[str, Tensor]) -> None:
    """Every tensor that we want must be there in its shape, and every one that is there must be wanted."""
    wanted = {name.removeprefix(family.prefix): tensor for name, tensor in wanted.items()}
    left = [name for name in shards.names if name not in wanted and not name.endswith(family.ignored)]
    for names, what in (
        (wanted.keys() - set(shards.names), "is missing"),
        (left, "has no place in our model"),
    ):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise ValueError(f"{shards.folder}: tensor {min(names)} {what}{more}")
    for name, tensor in wanted.items():
        if shards.shape(name) != tuple(tensor.shape):
            asked = f"config.json asks for {tuple(tensor.shape)}"
            raise ValueError(f"{shards.folder}: {name} has shape {shards.shape(name)}, {asked}")
