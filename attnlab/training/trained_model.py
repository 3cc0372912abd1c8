"""Loading of trained models: from a run's folder, or from a Hugging Face folder with its tokenizer.json.

Weights are read from safetensors only. A config may instantiate classes of attnlab and of trusted modules
(`store/guards/trust.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open

from attnlab.data import vocabulary
from attnlab.data.corpora.unicode_forms import Form, normalize_text
from attnlab.data.task import Task
from attnlab.data.token_labels import label_bytes, label_pieces, label_spans
from attnlab.data.tokenizers import BpeTokenizer, ByteTokenizer, Codec
from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.measure.head_scoring import MAX_PROBE_TOKENS
from attnlab.model.build import build_model, instantiate_config
from attnlab.model.finite_weights import require_finite
from attnlab.model.huggingface.shards import read_json_mapping, read_utf8
from attnlab.model.transformer import LearnedPositions, Transformer
from attnlab.store import remote, run_directories
from attnlab.store.guards import digests, trust
from attnlab.store.guards.inputs import reject_special_files
from attnlab.store.remote_files import is_url
from attnlab.store.run_schema import RunConfig, RunEstimate, RunResult

_RETRAIN_HINT = "train the run again, with sweep.retry_failed=true"


@dataclass(frozen=True)
class TrainedModel:
    """A model in evaluation mode with its tokenizer functions, seed and config."""

    name: str
    model: Transformer
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]  # an invalid byte is a lone surrogate, or U+FFFD
    encode_words: Callable[[str], tuple[list[int], list[str]]]  # token ids, and the label of each token
    max_length: int  # context length of training, in tokens
    seed: int
    config: Mapping[str, Any]  # resolved: `model` and `data`, and for a run also `decode`
    end_ids: tuple[int, ...] = ()  # tokens that end a text

    @property
    def has_position_limit(self) -> bool:
        """Whether texts longer than `max_length` have positions without an embedding."""
        return isinstance(self.model.positions, LearnedPositions)


def load_model(path: str | Path) -> Transformer:
    """Load the trained model of a finished run, in evaluation mode, on the CPU.

    Args:
        path: a run's folder, as in runs/ID or s3://bucket/prefix/ID; a unique prefix of the id is enough.

    Raises:
        InvalidConfig: there is no such run, it has no trained model, or one of its files is damaged or names
            an object that is not trusted.
    """
    folder = Path(path)
    if is_url(str(path)):
        store, _, name = str(path).rpartition("/")
        folder = find_run_folder(remote.open_store(store, None, writable=False), name)
    elif not (folder / "spec.json").is_file():
        folder = find_run_folder(folder.parent, folder.name)
    reject_special_files("run", folder, recursive=True)
    spec, result = _read_run(folder)
    if result is None or not result.is_done:
        reason = f"{folder} is {result.status}" if result else run_directories.describe_result_fault(folder)
        raise InvalidConfig(f"{reason}, so the run has no trained model: run its command again")
    return _load_weights(folder, spec.config, result.estimate.data["vocab_size"])


def find_run_folder(store: Path, name: str) -> Path:
    """Find the only run whose id starts with `name`, which is compared and never used as a path.

    Raises:
        InvalidConfig: no run matches, or several do.
    """
    run_folders = [path.parent for path in sorted(store.glob("*/spec.json"))]
    matches = [path for path in run_folders if name and path.name.startswith(name)]
    if len(matches) != 1:
        suggestions = format_suggestions(name, [path.name for path in matches or run_folders])
        raise InvalidConfig(
            f"run={name}: {len(matches) or 'no'} runs in {store} have an id that starts with it{suggestions}"
        )
    return matches[0]


def load_run(folder: Path) -> TrainedModel:
    """Load the model of a run with its tokenizer.

    Raises:
        InvalidConfig: the run has no trained model, or its files, tokenizer or data are missing or damaged.
    """
    spec, result = _read_run(folder)
    text = _load_codec(folder, spec.config, result.estimate if result else spec.estimate)
    model = _load_weights(folder, spec.config, text.codec.vocab_size)
    return TrainedModel(
        folder.resolve().name, model, text.encode, text.decode, text.encode_words, text.max_length,
        spec.config["seed"], spec.config, tuple(getattr(text.codec, "end_ids", ())),
    )  # fmt: skip


def _read_run(folder: Path) -> tuple[RunConfig, RunResult | None]:
    """Read a run's config and result, and check the names in the config and the files that a model needs."""
    spec = trust.load_trusted_run(folder)
    if spec.config.get("measurement"):
        raise InvalidConfig(f"{folder} is a measurement run, which trains no model: choose a training run")
    result = run_directories.load_run_result(folder) or run_directories.load_edited_result(folder)[0]
    needed = [digests.WEIGHTS_FILE, digests.VOCABULARY_FILE]
    for name, fault in (digests.find_broken_files(folder, result, needed) if result else {}).items():
        raise InvalidConfig(f"{folder / name} {fault}: {_RETRAIN_HINT}")
    return spec, result


def _load_weights(folder: Path, config: Mapping[str, Any], vocab_size: int) -> Transformer:
    weights = folder / digests.WEIGHTS_FILE
    if not weights.is_file():
        raise InvalidConfig(
            f"{folder} has no {digests.WEIGHTS_FILE} because the run did not finish: run its command again"
        )
    _validate_weights(weights, config, vocab_size)
    model = build_model(config, vocab_size)
    try:
        safetensors.torch.load_model(model, str(weights))
    except Exception as error:  # safetensors and torch raise different types
        raise InvalidConfig(f"{weights} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    require_finite(model.named_parameters(), weights)
    return model.eval()


@dataclass(frozen=True)
class _RunCodec:
    """Codec of a stored run.

    `separator` joins decoded tokens, `max_length` is the context length, `form` is the Unicode form of the
    training text, and `token_bytes` are the UTF-8 bytes of each token, if tokens may end inside a character.
    """

    codec: Codec | Task
    separator: str
    max_length: int
    form: Form | None
    token_bytes: Sequence[bytes] = ()

    def encode(self, text: str) -> list[int]:
        return [int(i) for i in self.codec.encode(normalize_text(text, self.form))]

    def decode(self, ids: Sequence[int]) -> str:
        if self.token_bytes:
            return b"".join(self.token_bytes[i] for i in ids).decode(errors="surrogateescape")
        return self.separator.join(self.codec.decode(ids))

    def encode_words(self, text: str) -> tuple[list[int], list[str]]:
        ids = self.encode(text)
        pieces = self.codec.decode(ids)
        if self.token_bytes:
            return ids, label_bytes(text, [len(self.token_bytes[i]) for i in ids], pieces)
        return ids, label_pieces(pieces)


def _load_codec(folder: Path, config: Mapping[str, Any], estimate: RunEstimate) -> _RunCodec:
    """Load a run's codec from the vocabulary in its folder, or else from its data."""
    stored_vocabulary = vocabulary.read_vocabulary(folder)
    form = config["data"].get("normalize")
    if stored_vocabulary is None:
        task = _load_unchanged_task(folder, config, estimate)
        return _RunCodec(task, "" if task.unit in ("char", "byte", "bpe") else " ", task.length, form)
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
    separator = " " if stored_vocabulary.kind == "words" else ""
    return _RunCodec(
        codec, separator, estimate.context or config["data"]["length"], form, _list_token_bytes(codec)
    )


def _list_token_bytes(codec: Codec) -> Sequence[bytes]:
    match codec:
        case ByteTokenizer():
            return [bytes([i]) for i in range(codec.vocab_size)]
        case BpeTokenizer():
            return codec.token_bytes
    return ()


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


def load_hugging_face(folder: Path) -> TrainedModel:
    """Load a Hugging Face folder with its tokenizer.json.

    Raises:
        ValueError: the folder has no tokenizer, or its model is not supported.
    """
    from attnlab.model.huggingface import conversion

    if not (folder / "tokenizer.json").is_file():
        raise InvalidConfig(
            f"{folder} has no tokenizer.json, so text cannot be tokenized: copy the tokenizer.json "
            "of the model there"
        )
    tokenizer = _load_hf_tokenizer(folder / "tokenizer.json")
    end_ids = _read_end_ids(folder)
    model_config, model = conversion.load_hf_model(folder)

    def encode_pieces(text: str) -> Any:
        try:
            return tokenizer.encode(text)
        except Exception as error:  # the tokenizers library raises exceptions of its own
            raise InvalidConfig(
                f"{folder / 'tokenizer.json'} cannot encode the text: {_format_one_line(error)}"
            ) from error

    def encode(text: str) -> list[int]:
        ids: list[int] = encode_pieces(text).ids
        # A tokenizer may append the end token to every text; a prompt has not ended.
        while ids and ids[-1] in end_ids and ids != tokenizer.encode(text, add_special_tokens=False).ids:
            ids = ids[:-1]
        return ids

    def encode_words(text: str) -> tuple[list[int], list[str]]:
        pieces = encode_pieces(text)
        return pieces.ids, label_spans(text, pieces.offsets, pieces.tokens)

    positions = model.positions
    length = positions.table.num_embeddings if isinstance(positions, LearnedPositions) else MAX_PROBE_TOKENS
    config = {"model": model_config, "data": {"length": length}}
    name = folder.resolve().name
    return TrainedModel(name, model, encode, tokenizer.decode, encode_words, length, 0, config, end_ids)


def _load_hf_tokenizer(file: Path) -> Any:
    from tokenizers import Tokenizer

    text = read_utf8(file)
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the tokenizers library raises exceptions of its own
        raise InvalidConfig(
            f"{file} cannot be read by tokenizers {version('tokenizers')}: {_format_one_line(error)}: copy "
            "the file again, or install the version that wrote it"
        ) from error


def _read_end_ids(folder: Path) -> tuple[int, ...]:
    """Return the `eos_token_id` of generation_config.json, or else of config.json."""
    for file in (folder / "generation_config.json", folder / "config.json"):
        config = read_json_mapping(file) if file.is_file() else {}
        text_config = config.get("text_config")
        value = config.get("eos_token_id")
        if value is None and isinstance(text_config, Mapping):
            value = text_config.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(token) is int for token in ids):
            raise InvalidConfig(f"{file}: eos_token_id={value!r} must be a token id, or a list of token ids")
        return tuple(ids)
    return ()


def _format_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
