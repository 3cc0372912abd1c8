"""`python -m attnlab export`: write the trained model of a run as a Hugging Face folder.

The folder has config.json, model.safetensors and, if the library `tokenizers` can express the vocabulary,
tokenizer.json with tokenizer_config.json. It appears complete or not at all.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from attnlab.cli.select_model import find_selected_run
from attnlab.data.tokenizers import (
    START_ID,
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    NameCodec,
    WordCodec,
)
from attnlab.data.vocabulary import Vocabulary, read_vocabulary
from attnlab.errors import InvalidConfig, describe_disk_full, escape_unprintable
from attnlab.model.huggingface import conversion
from attnlab.store.atomic_files import write_json
from attnlab.sweep.slow_notice import notify_if_slow
from attnlab.training.trained_model import TrainedModel, load_run

COMPARED_TOKENS = 16  # of the text on which the written model is compared with the run's
TOLERANCE = 1e-4  # of its logits: the run's kernel may round in another order


def main(options: argparse.Namespace) -> int:
    """Write the folder; InvalidConfig if it is in use or no family of checkpoints can express the model."""
    folder = Path(options.key_values["to"])
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise InvalidConfig(f"to={folder} exists and is not an empty folder: choose another folder")
    run_folder = find_selected_run(options.key_values, options.words)
    with notify_if_slow("loading the model"):
        trained = load_run(run_folder)
    vocabulary = read_vocabulary(run_folder)
    tokenizer = None if vocabulary is None else build_hf_tokenizer(vocabulary)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
            written = Path(temporary, folder.name)
            _write_model(written, trained)
            if tokenizer is not None:
                tokenizer.save(str(written / "tokenizer.json"))
                settings = {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "clean_up_tokenization_spaces": False,
                }
                write_json(written / "tokenizer_config.json", settings)
            names = sorted(path.name for path in written.iterdir())
            written.replace(folder)
    except OSError as error:
        problem = describe_disk_full(error, folder) or error.strerror
        raise InvalidConfig(f"to={folder} cannot be written ({problem}): choose another folder") from error
    print(escape_unprintable(f"{folder}: {', '.join(names)}"))
    if tokenizer is None:
        kind = "no vocabulary" if vocabulary is None else f"a vocabulary of kind {vocabulary.kind}"
        print(escape_unprintable(f"no tokenizer.json, because the run has {kind}"))
    return 0


def _write_model(folder: Path, trained: TrainedModel) -> None:
    """Write config and weights, and load them again; InvalidConfig if they are not the same model."""
    try:
        conversion.save_hf_model(folder, trained.model, trained.config["model"])
        _, loaded = conversion.load_hf_model(folder)
    except ValueError as error:
        reason = str(error).replace(f"{folder}/", "")
        raise InvalidConfig(
            f"run {trained.name} cannot be exported: {reason}: train it with supported values, as those of "
            "model=llama, or use attnlab.load_model in Python"
        ) from error
    length = min(COMPARED_TOKENS, trained.max_length)
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(trained.model.embedding.num_embeddings, (1, length), generator=random)
    with torch.no_grad():
        is_same = torch.allclose(loaded(tokens), trained.model(tokens), rtol=TOLERANCE, atol=TOLERANCE)
    if not is_same:
        raise InvalidConfig(
            f"run {trained.name} cannot be exported: the written model has other logits: use "
            "attnlab.load_model in Python"
        )


def build_hf_tokenizer(vocabulary: Vocabulary) -> Tokenizer | None:
    """Build the tokenizer of the library `tokenizers` with the same ids; None for a tokenizer of the user's.

    A character or word outside the vocabulary is an error in both.
    """
    codec = None if "." in vocabulary.kind else vocabulary.load_codec()
    if isinstance(codec, BpeTokenizer):
        tokenizer = Tokenizer.from_str(vocabulary.state)
        tokenizer.decoder = decoders.ByteLevel()
    elif isinstance(codec, ByteTokenizer):
        byte_names = {f"<0x{byte:02X}>": byte for byte in range(codec.vocab_size)}
        tokenizer = Tokenizer(models.BPE(byte_names, [], byte_fallback=True))
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    elif isinstance(codec, CharTokenizer):
        words = codec.decode(range(codec.vocab_size))
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        if isinstance(codec, NameCodec):
            start = words[START_ID]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{start} $A", special_tokens=[(start, START_ID)]
            )
    elif isinstance(codec, WordCodec):
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(codec.words)}))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        return None
    return tokenizer
