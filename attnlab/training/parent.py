"""A run that starts from the weights of another: uptraining, pruning, continued training.

`parent` is the id of a finished run in the same store. Where its model is shaped otherwise, `convert` says
how it becomes this one; nothing is dropped, padded or renamed silently.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, load_model

from attnlab.data import vocabulary
from attnlab.model.build import build_model, make
from attnlab.model.transformer import Transformer
from attnlab.store import runs
from attnlab.store.guards import inputs, parents, trust


def check_vocabulary(config: Mapping[str, Any], data: Any) -> None:
    """Refused where `parent` is a finished run of the store whose token ids mean other tokens than those of
    `data`. What is no such run (an arm's name) is the plan's to compare.
    """
    name = str(config["parent"])
    folder = Path(config["paths"]["runs"]) / name
    record = runs.record(folder) if inputs.is_name(name) else None
    if record is None or not record.done:
        return
    differ = ""
    with suppress(ValueError):  # a broken file costs the message its detail, the digests decide
        kept = vocabulary.read(folder)
        if kept and hasattr(data.task, "vocabulary"):
            differ = vocabulary.compare(kept, data.task.vocabulary())
    parents.refuse_other_vocabulary(name, record.estimate.data, data.facts(), differ)


def load_parent(
    model: Transformer, config: Mapping[str, Any], store: Path, composed: Iterable[str] = ()
) -> None:
    """Fills `model` with the weights of run `config["parent"]` of the store, converted where that is asked
    for. ValueError where they do not fit, with the first tensor that does not. Of a parent's record is built
    what may be, and what the command has `composed` beside this config.
    """
    name = config["parent"]
    folder = store / name
    record = runs.record(folder)
    if record is None or not record.done or not (folder / "model.safetensors").exists():
        raise ValueError(f"parent={name}: there is no finished run of that id in {store}; train it first")
    if config.get("convert"):
        own = {*trust.names(config), *composed}
        trust.refuse_strange(record.config, folder / "run.json", own)
        source = build_model(record.config, record.estimate.data["vocab_size"])
        load_model(source, folder / "model.safetensors")
        state = _converted(source, config).state_dict()
    else:
        state = load_file(folder / "model.safetensors")
    _require_fit(model, state, name)
    model.load_state_dict(state, strict=False)  # tied tensors are stored once


def _converted(source: Transformer, config: Mapping[str, Any]) -> Transformer:
    """What `convert` makes of the parent; it is told how many KV heads this run has."""
    heads = (config["model"].get("attention") or {}).get("heads") or {}
    if not isinstance(heads.get("n_kv_heads"), int):
        raise ValueError("convert pools key and value heads, and model.attention.heads has no n_kv_heads")
    convert = {key: value for key, value in config["convert"].items() if key != "_partial_"}
    return make(convert, source=source, n_kv_heads=heads["n_kv_heads"])


def _require_fit(model: Transformer, state: Mapping[str, Any], name: str) -> None:
    own = model.state_dict()
    shared = {tensor.data_ptr() for key, tensor in own.items() if key in state}
    for key, tensor in own.items():
        if key not in state and tensor.data_ptr() not in shared:
            raise ValueError(f"parent={name} has no {key}, which this run's model has")
        if key in state and state[key].shape != tensor.shape:
            raise ValueError(
                f"parent={name}: its {key} is {tuple(state[key].shape)}, this run has {tuple(tensor.shape)}; "
                f"set convert, or make the models alike"
            )
    if extra := sorted(set(state) - set(own)):
        raise ValueError(f"parent={name} has {extra[0]}, for which this run's model has no place")
