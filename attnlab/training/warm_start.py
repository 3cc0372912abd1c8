"""Warm start: a run that starts from the weights of another, for uptraining, pruning or continued training.

`parent` is the id of a finished run in the same store. If its model has other shapes, `convert` maps it to
this model; nothing is dropped, padded or renamed silently.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, load_model

from attnlab.data import vocabulary
from attnlab.model.build import build_model, instantiate_config
from attnlab.model.transformer import Transformer
from attnlab.store import run_directories
from attnlab.store.guards import parent_vocabulary, trust
from attnlab.store.safe_paths import is_plain_name


def validate_parent_vocabulary(config: Mapping[str, Any], data: Any) -> None:
    """Check that the token ids of a finished parent mean the same tokens as those of `data`.

    Parents that are no such run (names of arms) are compared by the plan.
    """
    name = str(config["parent"])
    folder = Path(config["paths"]["runs"]) / name
    result = run_directories.load_run_result(folder) if is_plain_name(name) else None
    if result is None or not result.is_done:
        return
    difference = ""
    with suppress(ValueError):  # a broken file costs the message its detail, the digests decide
        parent_tokens = vocabulary.read_vocabulary(folder)
        if parent_tokens and hasattr(data.task, "vocabulary"):
            difference = vocabulary.describe_difference(parent_tokens, data.task.vocabulary())
    parent_vocabulary.require_same_vocabulary(name, result.estimate.data, data.describe(), difference)


def load_parent_weights(model: Transformer, config: Mapping[str, Any], store: Path) -> None:
    """Load the weights of run `config["parent"]` of the store into `model`, converted by `convert` if set.

    Only trusted targets of the parent's config are built.

    Raises:
        ValueError: The weights do not fit, with the first tensor that does not.
    """
    name = config["parent"]
    folder = store / name
    result = run_directories.load_run_result(folder)
    if result is None or not result.is_done or not (folder / "model.safetensors").exists():
        raise ValueError(f"parent={name}: no finished run in {store} has this id: train it first")
    if config.get("convert"):
        source = build_model(trust.load_trusted_run(folder).config, result.estimate.data["vocab_size"])
        load_model(source, folder / "model.safetensors")
        state = _convert_parent(source, config).state_dict()
    else:
        state = load_file(folder / "model.safetensors")
    _require_matching_shapes(model, state, name)
    model.load_state_dict(state, strict=False)  # tied tensors are stored once


def _convert_parent(source: Transformer, config: Mapping[str, Any]) -> Transformer:
    """Apply `convert` to the parent, with this run's number of KV heads."""
    heads = (config["model"].get("attention") or {}).get("heads") or {}
    if not isinstance(heads.get("n_kv_heads"), int):
        raise ValueError("convert pools key and value heads, but model.attention.heads has no n_kv_heads")
    convert = {key: value for key, value in config["convert"].items() if key != "_partial_"}
    return instantiate_config(convert, source=source, n_kv_heads=heads["n_kv_heads"])


def _require_matching_shapes(model: Transformer, state: Mapping[str, Any], parent: str) -> None:
    own = model.state_dict()
    shared = {tensor.data_ptr() for key, tensor in own.items() if key in state}
    for key, tensor in own.items():
        if key not in state and tensor.data_ptr() not in shared:
            raise ValueError(f"parent={parent} has no tensor {key}, which this run's model needs")
        if key in state and state[key].shape != tensor.shape:
            raise ValueError(
                f"parent={parent}: its {key} has shape {tuple(state[key].shape)}, but this run's has "
                f"{tuple(tensor.shape)}: set convert, or use the same model"
            )
    if extra := sorted(set(state) - set(own)):
        raise ValueError(f"parent={parent} has a tensor {extra[0]}, which this run's model lacks")
