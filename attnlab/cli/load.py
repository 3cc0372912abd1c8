"""A trained model for the verbs: a run (run=ID, in the store runs=, or experiment=NAME arm=NAME seed=N) or a
folder (checkpoint=FOLDER).

A checkpoint is a run's folder, its model.safetensors, or a local Hugging Face folder with its tokenizer.json.
Weights are read from safetensors only; of what a run's config names, parts of attnlab are built, and what the
user trusts (`store/guards/trust.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_model

from attnlab.cli import of_experiment
from attnlab.data import vocabulary
from attnlab.data.task import Task
from attnlab.data.tokenizers import Codec
from attnlab.errors import Refused, nearest
from attnlab.measure.heads import LONGEST
from attnlab.model.build import build_model, make
from attnlab.model.transformer import LearnedPositions, Transformer
from attnlab.store import runs
from attnlab.store.guards import digests, trust
from attnlab.store.guards.inputs import refuse_no_file
from attnlab.store.schema import Estimate
from attnlab.sweep.waiting import waiting

_AGAIN = "train the run again, with sweep.retry_failed=true"


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode, its text in and out of tokens, and what it was made with."""

    name: str
    model: Transformer
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    words: Callable[[str], tuple[list[int], list[str]]]  # the tokens of a text, and the words that show them
    length: int  # the longest text, in tokens, that it was made for
    seed: int
    config: Mapping[str, Any]  # resolved: `model` and `data`; `decode` only where it is a run's

    @property
    def bounded(self) -> bool:
        """Whether a text longer than `length` has positions that the model does not know."""
        return isinstance(self.model.positions, LearnedPositions)


@waiting("loading the model")
def load(given: Mapping[str, Any], words: Sequence[str] = ()) -> Trained:
    """What `run` (in the store `runs`), `checkpoint`, or `experiment` with `arm` and `seed` names (`words`
    say which of several). Refused, one line, where it cannot be read.
    """
    if "experiment" in given:
        return _run(of_experiment.find(given, words))
    if "run" in given:
        return _run(_in_store(Path(given["runs"]), given["run"]))
    folder = Path(given["checkpoint"])
    folder = folder.parent if folder.name == "model.safetensors" else folder
    refuse_no_file("checkpoint", folder, below=True)
    if (folder / "spec.json").is_file():
        return _run(folder)
    if (folder / "config.json").is_file():
        return _hugging_face(folder)
    raise Refused(
        f"checkpoint={folder} has neither spec.json (a run's folder) nor config.json (a Hugging Face folder)"
    )


def _in_store(store: Path, name: str) -> Path:
    """The one run whose id begins with `name`, which is compared and never made a path."""
    known = [path.parent for path in sorted(store.glob("*/spec.json"))]
    matches = [path for path in known if name and path.name.startswith(name)]
    if len(matches) != 1:
        near = nearest(name, [path.name for path in matches or known])
        raise Refused(f"run={name}: {len(matches) or 'no'} runs of that name in {store}{near}")
    return matches[0]


def _run(folder: Path) -> Trained:
    weights = folder / digests.WEIGHTS
    spec = runs.spec(folder)
    config = spec.config
    trust.refuse_strange(config, folder / "spec.json")
    record = runs.record(folder) or runs.edited(folder)[0]
    needed = [digests.WEIGHTS, digests.VOCABULARY]
    for name, fault in (digests.broken(folder, record, needed) if record else {}).items():
        raise Refused(f"{folder / name} {fault}; {_AGAIN}")
    if not weights.is_file():
        raise Refused(f"{folder} has no {digests.WEIGHTS}: the run did not finish")
    text = _text(folder, config, record.estimate if record else spec.estimate)
    _refuse_unlike(weights, config, text.codec.vocab_size)
    model = build_model(config, text.codec.vocab_size)
    try:
        load_model(model, str(weights))
    except Exception as error:  # safetensors has its own kinds, torch another
        raise Refused(f"{weights} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    name = folder.resolve().name
    seed = config["seed"]
    return Trained(name, model.eval(), text.encode, text.decode, text.words, text.length, seed, config)


@dataclass(frozen=True)
class _Text:
    """The tokens of a stored run; `between` stands between the texts of two, `length` is its window."""

    codec: Codec | Task
    between: str
    length: int

    def encode(self, text: str) -> list[int]:
        return [int(i) for i in self.codec.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return self.between.join(self.codec.decode(ids))

    def words(self, text: str) -> tuple[list[int], list[str]]:
        ids = self.encode(text)
        return ids, self.codec.decode(ids)


def _text(folder: Path, config: Mapping[str, Any], estimate: Estimate) -> _Text:
    """The tokens of a run by the vocabulary in its folder, or without one by its own data."""
    kept = vocabulary.read(folder)
    if kept is None:
        task = _same_data(folder, config, estimate)
        return _Text(task, "" if task.unit in ("char", "byte", "bpe") else " ", task.length)
    file = folder / digests.VOCABULARY
    wanted = estimate.data.get("vocabulary")
    if wanted is not None and kept.digest() != wanted:
        raise Refused(f"{file} is not the vocabulary that the run was trained with; {_AGAIN}")
    own = config["data"].get("tokenizer")
    try:
        codec = kept.codec(make(own) if own else None)
    except ValueError as error:
        raise Refused(f"{file} cannot be read: {' '.join(str(error).split())[:200]}; {_AGAIN}") from error
    return _Text(codec, " " if kept.kind == "words" else "", estimate.context or config["data"]["length"])


def _same_data(folder: Path, config: Mapping[str, Any], estimate: Estimate) -> Task:
    """The task of a run without a vocabulary. Refused where its data are gone or have changed."""
    text = config["data"].get("path") or estimate.data.get("name") or "the data"
    try:
        task: Task = make(config["data"]).task
    except ValueError as error:
        told = f"its data cannot be read ({' '.join(str(error).split())[:200]})"
    else:
        if task.fingerprint == estimate.data.get("sha256"):
            return task
        told = f"{text} is not what it was trained on"
    raise Refused(
        f"{folder} has no {digests.VOCABULARY}, and {told}: put the data back as they were, or train the run "
        "again"
    )


def _refuse_unlike(weights: Path, config: Mapping[str, Any], vocab_size: int) -> None:
    """Refused where the weights are not those of the config: seen from their header, before there is a model,
    since a config may name any size.
    """
    try:
        with safe_open(weights, framework="pt") as file:
            names = file.keys()
            stored = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        if config["model"]["n_layers"] > len(stored):
            raise ValueError(f"{config['model']['n_layers']:,} layers, and {len(stored)} tensors")
        with torch.device("meta"):
            state = build_model(config, vocab_size).state_dict()
        for name, shape in stored.items():
            if name in state and tuple(state[name].shape) != shape:
                raise ValueError(f"{name} is {shape}, and the config asks for {tuple(state[name].shape)}")
    except Exception as error:  # safetensors has its own kinds, torch others
        raise Refused(f"{weights} cannot be loaded: {' '.join(str(error).split())[:200]}") from error


def _hugging_face(folder: Path) -> Trained:
    from tokenizers import Tokenizer

    from attnlab.model.huggingface import convert

    if not (folder / "tokenizer.json").is_file():
        raise Refused(
            f"{folder} has no tokenizer.json, so text cannot be turned into its tokens: put it there"
        )
    config, model = convert.load(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text).ids

    def words(text: str) -> tuple[list[int], list[str]]:
        pieces = tokenizer.encode(text)
        return pieces.ids, [
            text[start:end] or name for (start, end), name in zip(pieces.offsets, pieces.tokens, strict=True)
        ]

    positions = model.positions
    length = positions.table.num_embeddings if isinstance(positions, LearnedPositions) else LONGEST
    known = {"model": config, "data": {"length": length}}
    return Trained(folder.resolve().name, model, encode, tokenizer.decode, words, length, 0, known)
