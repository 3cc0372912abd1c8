"""Loading of trained models for the verbs.

A model is a run (run=ID in the run directory runs=, or experiment=NAME arm=NAME seed=N) or a folder
(checkpoint=FOLDER). A checkpoint folder is a run's folder, its model.safetensors, or a local Hugging Face
folder with its tokenizer.json. Weights are read from safetensors only. A config may instantiate classes of
attnlab and of trusted modules (`store/guards/trust.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_model

from attnlab.cli import find_run
from attnlab.data import vocabulary
from attnlab.data.task import Task
from attnlab.data.tokenizers import Codec
from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.measure.head_scoring import MAX_PROBE_TOKENS
from attnlab.model.build import build_model, instantiate_config
from attnlab.model.transformer import LearnedPositions, Transformer
from attnlab.store import run_directories
from attnlab.store.guards import digests, trust
from attnlab.store.guards.inputs import reject_special_files
from attnlab.store.run_schema import RunEstimate
from attnlab.sweep.slow_notice import notify_if_slow

_RETRAIN_HINT = "train the run again, with sweep.retry_failed=true"


@dataclass(frozen=True)
class TrainedModel:
    """A model in evaluation mode with its tokenizer functions, seed and config."""

    name: str
    model: Transformer
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    encode_words: Callable[[str], tuple[list[int], list[str]]]  # token ids, and the text of each token
    max_length: int  # context length of training, in tokens
    seed: int
    config: Mapping[str, Any]  # resolved: `model` and `data`, and for a run also `decode`

    @property
    def has_position_limit(self) -> bool:
        """Whether texts longer than `max_length` have positions without an embedding."""
        return isinstance(self.model.positions, LearnedPositions)


@notify_if_slow("loading the model")
def load_trained_model(arguments: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainedModel:
    """Load the model that `arguments` select.

    Args:
        arguments: `run` (in the run directory `runs`), `checkpoint`, or `experiment` with `arm` and `seed`.
        overrides: choose among several runs of an experiment, as in size=S.

    Raises:
        InvalidConfig: the model cannot be found or read.
    """
    if "experiment" in arguments:
        return _load_run(find_run.find_experiment_run(arguments, overrides))
    if "run" in arguments:
        return _load_run(_find_run_by_prefix(Path(arguments["runs"]), arguments["run"]))
    folder = Path(arguments["checkpoint"])
    folder = folder.parent if folder.name == "model.safetensors" else folder
    reject_special_files("checkpoint", folder, recursive=True)
    if (folder / "spec.json").is_file():
        return _load_run(folder)
    if (folder / "config.json").is_file():
        return _load_hugging_face(folder)
    raise InvalidConfig(
        f"checkpoint={folder} has neither spec.json (run directory) nor config.json (Hugging Face "
        "folder): give the folder of a model"
    )


def _find_run_by_prefix(store: Path, name: str) -> Path:
    """Find the only run whose id starts with `name`, which is compared and never used as a path."""
    run_folders = [path.parent for path in sorted(store.glob("*/spec.json"))]
    matches = [path for path in run_folders if name and path.name.startswith(name)]
    if len(matches) != 1:
        suggestions = format_suggestions(name, [path.name for path in matches or run_folders])
        raise InvalidConfig(
            f"run={name}: {len(matches) or 'no'} runs in {store} have an id that starts with it{suggestions}"
        )
    return matches[0]


def _load_run(folder: Path) -> TrainedModel:
    weights = folder / digests.WEIGHTS_FILE
    spec = run_directories.load_run_config(folder)
    config = spec.config
    trust.require_trusted_objects(config, folder / "spec.json")
    record = run_directories.load_run_result(folder) or run_directories.load_edited_result(folder)[0]
    needed = [digests.WEIGHTS_FILE, digests.VOCABULARY_FILE]
    for name, fault in (digests.find_broken_files(folder, record, needed) if record else {}).items():
        raise InvalidConfig(f"{folder / name} {fault}: {_RETRAIN_HINT}")
    if not weights.is_file():
        raise InvalidConfig(
            f"{folder} has no {digests.WEIGHTS_FILE} because the run did not finish: run its command again"
        )
    text = _load_codec(folder, config, record.estimate if record else spec.estimate)
    _validate_weights(weights, config, text.codec.vocab_size)
    model = build_model(config, text.codec.vocab_size)
    try:
        load_model(model, str(weights))
    except Exception as error:  # safetensors and torch raise different types
        raise InvalidConfig(f"{weights} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    name = folder.resolve().name
    seed = config["seed"]
    return TrainedModel(
        name, model.eval(), text.encode, text.decode, text.encode_words, text.max_length, seed, config
    )


@dataclass(frozen=True)
class _RunCodec:
    """Codec of a stored run; `separator` joins decoded tokens, `max_length` is the context length."""

    codec: Codec | Task
    separator: str
    max_length: int

    def encode(self, text: str) -> list[int]:
        return [int(i) for i in self.codec.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return self.separator.join(self.codec.decode(ids))

    def encode_words(self, text: str) -> tuple[list[int], list[str]]:
        ids = self.encode(text)
        return ids, self.codec.decode(ids)


def _load_codec(folder: Path, config: Mapping[str, Any], estimate: RunEstimate) -> _RunCodec:
    """Load a run's codec from the vocabulary in its folder, or else from its data."""
    stored_vocabulary = vocabulary.read_vocabulary(folder)
    if stored_vocabulary is None:
        task = _load_unchanged_task(folder, config, estimate)
        return _RunCodec(task, "" if task.unit in ("char", "byte", "bpe") else " ", task.length)
    file = folder / digests.VOCABULARY_FILE
    expected_digest = estimate.data.get("vocabulary")
    if expected_digest is not None and stored_vocabulary.compute_digest() != expected_digest:
        raise InvalidConfig(f"{file} differs from the vocabulary of training: {_RETRAIN_HINT}")
    tokenizer_config = config["data"].get("tokenizer")
    try:
        codec = stored_vocabulary.load_codec(
            instantiate_config(tokenizer_config) if tokenizer_config else None
        )
    except ValueError as error:
        raise InvalidConfig(
            f"{file} cannot be read: {' '.join(str(error).split())[:200]}: {_RETRAIN_HINT}"
        ) from error
    return _RunCodec(
        codec, " " if stored_vocabulary.kind == "words" else "", estimate.context or config["data"]["length"]
    )


def _load_unchanged_task(folder: Path, config: Mapping[str, Any], estimate: RunEstimate) -> Task:
    """Load the task of a run without a vocabulary; InvalidConfig if its data are missing or changed."""
    corpus_name = config["data"].get("path") or estimate.data.get("name") or "the data"
    try:
        task: Task = instantiate_config(config["data"]).task
    except ValueError as error:
        problem = f"its data cannot be read ({' '.join(str(error).split())[:200]})"
    else:
        if task.fingerprint == estimate.data.get("sha256"):
            return task
        problem = f"{corpus_name} differs from the training data"
    raise InvalidConfig(
        f"{folder} has no {digests.VOCABULARY_FILE}, and {problem}: restore the data, or train the run again"
    )


def _validate_weights(weights: Path, config: Mapping[str, Any], vocab_size: int) -> None:
    """Raise InvalidConfig if the shapes of the weights differ from the config's.

    Only the file's header is read, before the model is built, since a config may name any size.
    """
    try:
        with safe_open(weights, framework="pt") as file:
            names = file.keys()
            stored = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        if config["model"]["n_layers"] > len(stored):
            raise ValueError(
                f"{config['model']['n_layers']:,} layers in the config, but only {len(stored)} tensors "
                "in the file"
            )
        with torch.device("meta"):
            state = build_model(config, vocab_size).state_dict()
        for name, shape in stored.items():
            if name in state and tuple(state[name].shape) != shape:
                raise ValueError(
                    f"{name} has shape {shape}, but the config requires {tuple(state[name].shape)}"
                )
    except Exception as error:  # safetensors and torch raise different types
        raise InvalidConfig(f"{weights} cannot be loaded: {' '.join(str(error).split())[:200]}") from error


def _load_hugging_face(folder: Path) -> TrainedModel:
    from tokenizers import Tokenizer

    from attnlab.model.huggingface import conversion

    if not (folder / "tokenizer.json").is_file():
        raise InvalidConfig(
            f"{folder} has no tokenizer.json, so text cannot be tokenized: copy the tokenizer.json "
            "of the model there"
        )
    model_config, model = conversion.load_hf_model(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text).ids

    def encode_words(text: str) -> tuple[list[int], list[str]]:
        pieces = tokenizer.encode(text)
        return pieces.ids, [
            text[start:end] or name for (start, end), name in zip(pieces.offsets, pieces.tokens, strict=True)
        ]

    positions = model.positions
    length = positions.table.num_embeddings if isinstance(positions, LearnedPositions) else MAX_PROBE_TOKENS
    config = {"model": model_config, "data": {"length": length}}
    return TrainedModel(
        folder.resolve().name, model, encode, tokenizer.decode, encode_words, length, 0, config
    )
