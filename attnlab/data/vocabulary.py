"""The vocabulary of a run: the text of each token id, as stored in the run directory and in the plan.

The digest depends only on the meaning of the ids. All `byte` tokenizers therefore share one digest, whatever
their text, and so do two synthetic tasks with the same words and different settings.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from attnlab.data.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    Codec,
    NameCodec,
    Tokenizer,
    WordCodec,
)
from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint
from attnlab.store.atomic_files import read_json, write_json
from attnlab.store.guards.digests import VOCABULARY_FILE

_CODECS: dict[str, Callable[[], Codec]] = {
    "char": CharTokenizer,
    "byte": ByteTokenizer,
    "bpe": partial(BpeTokenizer, 257),  # the minimum size; `load` sets the size of the state
    "names": NameCodec,
    "words": WordCodec,
}
_KINDS = {CharTokenizer: "char", ByteTokenizer: "byte", BpeTokenizer: "bpe"}
_COMPARABLE_KINDS = ("char", "names", "words")  # kinds with human-readable tokens
_MAX_SHOWN_TOKENS = 3  # in a description of a difference


@dataclass(frozen=True)
class Vocabulary:
    """A codec's kind and state.

    Attributes:
        kind: key of the codec; a user-defined tokenizer has its dotted class name.
        state: argument of the codec's `load`.
    """

    kind: str
    state: str

    def compute_digest(self) -> str:
        """Return the sha256 of kind and state."""
        return fingerprint.compute_digest([self.kind, self.state], 64)

    def write(self, folder: Path) -> None:
        write_json(folder / VOCABULARY_FILE, asdict(self))

    def load_codec(self, custom_codec: Codec | None = None) -> Codec:
        """Return a loaded codec; `custom_codec` is the unloaded codec of a kind that attnlab does not define.

        Raises:
            ValueError: the kind is unknown, or its codec cannot load the state.
        """
        codec = _CODECS[self.kind]() if self.kind in _CODECS else custom_codec
        if codec is None or self.kind not in (*_CODECS, _name_codec_kind(codec)):
            raise ValueError(f"kind {self.kind!r} is not known (known: {', '.join(_CODECS)})")
        try:
            codec.load(self.state)
        except Exception as error:  # the tokenizers library raises exceptions of its own
            raise ValueError(f"its state is not a {self.kind} vocabulary ({error})") from error
        return codec


def build_vocabulary(tokenizer: Tokenizer, state: str) -> Vocabulary:
    """Return the vocabulary of a text tokenizer; `state` is the return value of its `fit`."""
    return Vocabulary(_name_codec_kind(tokenizer), state)


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """Return the vocabulary in a run directory, or None if it has no vocabulary file.

    Raises:
        InvalidConfig: the file is truncated or was edited, and cannot be read.
    """
    file = folder / VOCABULARY_FILE
    if not file.exists():
        return None
    match read_json(file):
        case {"kind": str(kind), "state": str(state)}:
            return Vocabulary(kind, state)
    raise InvalidConfig(
        f"{file} is truncated or was changed after the run wrote it: train the run again with "
        "sweep.retry_failed=true"
    )


def describe_difference(parent: Vocabulary, child: Vocabulary) -> str:
    """Describe how two vocabularies of one kind differ, in a few words.

    Returns "" if the vocabularies are of different kinds, or of a kind without human-readable tokens.
    """
    if parent.kind != child.kind or parent.kind not in _COMPARABLE_KINDS:
        return ""
    parent_tokens = _list_tokens(parent)
    child_tokens = _list_tokens(child)
    noun = "words" if parent.kind == "words" else "characters"
    shared = {*parent_tokens} & {*child_tokens}
    all_tokens = {*parent_tokens} | {*child_tokens}
    if shared == all_tokens:
        return f"the same {noun} in another order"
    unshared_tokens = (
        (owner, sorted({*owned_tokens} - shared))
        for owner, owned_tokens in (("the parent", parent_tokens), ("this run", child_tokens))
    )
    descriptions = (
        f"only {owner} has {', '.join(map(repr, tokens[:_MAX_SHOWN_TOKENS]))}"
        f"{', ...' if len(tokens) > _MAX_SHOWN_TOKENS else ''}"
        for owner, tokens in unshared_tokens
        if tokens
    )
    return f"{len(shared)} of {len(all_tokens)} {noun} shared; {'; '.join(descriptions)}"


def _list_tokens(vocabulary: Vocabulary) -> list[str]:
    codec = vocabulary.load_codec()
    return codec.decode(range(codec.vocab_size))


def _name_codec_kind(codec: Codec) -> str:
    codec_class = type(codec)
    return _KINDS.get(codec_class) or f"{codec_class.__module__}.{codec_class.__qualname__}"
