"""Tokenizers: characters, bytes, or byte pairs trained on the training text.

The strings of `decode` always join to the text itself. A token that ends inside a character (possible for
bytes and byte pairs) decodes to the empty string, and the token that completes the character decodes to it.
Losses per token of two tokenizers are not comparable; losses per byte are.
"""

import codecs
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Protocol

import numpy as np

from attnlab.store.atomic_files import parse_json

MAX_ENCODE_CHARS = 1_600_000  # a long text is encoded in chunks of this size, to bound the memory
START_ID = 0  # start and end token of short words


class Codec(Protocol):
    """Encodes text to ids and decodes ids, once `load` has set the vocabulary.

    A codec may have `end_ids`, the tokens that end a text, at which `generate` stops.
    """

    vocab_size: int

    def load(self, state: str) -> None: ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: Sequence[int]) -> list[str]: ...


class Tokenizer(Codec, Protocol):
    """A codec that learns its vocabulary from a text.

    Attributes:
        unit: name of a token in reports: char, byte, bpe, ...
        key: everything that determines the vocabulary of a given text.
        is_slow_to_fit: whether the learned vocabulary is worth caching; if so, `fit` must depend on the
            training text only.
    """

    unit: str
    key: str
    is_slow_to_fit: bool

    def fit(self, training: str, validation: str) -> str:
        """Learn the vocabulary and return it as text, the argument of `load`."""
        ...

    def count_token_bytes(self) -> np.ndarray:
        """Return the number of UTF-8 bytes of each token [vocab_size]."""
        ...


class CharTokenizer:
    """One token per character.

    The vocabulary covers training *and* validation text. A character that occurs only in validation would
    otherwise have no id, and knowing that it exists reveals nothing about its positions.
    """

    unit = "char"
    key = "char"
    is_slow_to_fit = False

    def fit(self, training: str, validation: str) -> str:
        state = "".join(sorted({*training, *validation}))
        self.load(state)
        return state

    def load(self, state: str) -> None:
        if not state:
            raise ValueError("a vocabulary needs at least one character")
        self.characters = state
        self.code_points = _get_code_points(state)
        self.vocab_size = len(state)

    def encode(self, text: str) -> np.ndarray:
        codes = _get_code_points(text)
        ids = np.searchsorted(self.code_points, codes).clip(max=len(self.code_points) - 1)
        unknown = self.code_points[ids] != codes
        if unknown.any():
            index = int(unknown.argmax())
            raise ValueError(
                f"{text[index]!r} (U+{ord(text[index]):04X}, character {index}) is not among"
                f" the {len(self.code_points)} characters of the data; remove it, or train with"
                " data/tokenizer=byte"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> list[str]:
        return [self.characters[i] for i in ids]

    def count_token_bytes(self) -> np.ndarray:
        return np.array([len(character.encode()) for character in self.characters])


class ByteTokenizer:
    """One token per byte of the UTF-8 text: nothing to learn, and no unknown characters."""

    unit = "byte"
    key = "byte"
    vocab_size = 256
    is_slow_to_fit = False

    def fit(self, training: str, validation: str) -> str:
        return ""

    def load(self, state: str) -> None:
        pass

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, ids: Sequence[int]) -> list[str]:
        return _decode_pieces(bytes([i]) for i in ids)

    def count_token_bytes(self) -> np.ndarray:
        return np.ones(256, np.int64)


class BpeTokenizer:
    """Byte pairs (Sennrich et al. 2016, 1508.07909) over bytes, learned from the training text only."""

    unit = "bpe"
    is_slow_to_fit = True
    piece_chars = 100_000  # no token crosses a piece border; MAX_ENCODE_CHARS is a multiple of it

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 257:
            raise ValueError(
                f"data.tokenizer.vocab_size must be at least 257, since byte pairs start from 256 bytes, got"
                f" {vocab_size}: raise it, or use data/tokenizer=byte"
            )
        self.vocab_size = vocab_size
        self.key = f"bpe {vocab_size} pieces {self.piece_chars} tokenizers {version('tokenizers')}"

    def fit(self, training: str, validation: str) -> str:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(self._split_pieces(training), trainer)
        state = tokenizer.to_str()
        self.load(state)
        return state

    def load(self, state: str) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_str(state)
        self.vocab_size = self.tokenizer.get_vocab_size()  # a small text has fewer pairs than requested
        symbols = _build_byte_symbols()
        self.token_bytes = [
            bytes(symbols[c] for c in self.tokenizer.id_to_token(i) or "") for i in range(self.vocab_size)
        ]

    def _split_pieces(self, text: str) -> list[str]:
        """Split a text into pieces, the same way in training and in use.

        Splitting at lines would hide the text after a newline, and no token could span a newline and the
        indentation after it.
        """
        return [text[i : i + self.piece_chars] for i in range(0, len(text), self.piece_chars)]

    def encode(self, text: str) -> np.ndarray:
        encoded = self.tokenizer.encode_batch_fast(self._split_pieces(text))
        return np.concatenate([np.array(e.ids, np.int64) for e in encoded] or [np.empty(0, np.int64)])

    def decode(self, ids: Sequence[int]) -> list[str]:
        return _decode_pieces(self.token_bytes[i] for i in ids)

    def count_token_bytes(self) -> np.ndarray:
        return np.array([len(piece) for piece in self.token_bytes])


class NameCodec(CharTokenizer):
    """The characters of short words, plus a start token that begins every encoded text and ends a word."""

    end_ids = (START_ID,)

    def load(self, state: str) -> None:
        super().load(state)
        self.vocab_size = len(state) + 1

    def encode(self, text: str) -> np.ndarray:
        return np.concatenate([[START_ID], self.encode_characters(text)])

    def encode_characters(self, text: str) -> np.ndarray:
        """Return the ids of the characters, without the start token."""
        return super().encode(text) + 1

    def decode(self, ids: Sequence[int]) -> list[str]:
        return ["<start>" if i == START_ID else self.characters[i - 1] for i in ids]

    def count_token_bytes(self) -> np.ndarray:
        return np.concatenate([[0], super().count_token_bytes()])


class WordCodec:
    """The words of a synthetic task: space-separated in text, with their list index as id."""

    vocab_size: int

    def load(self, state: str) -> None:
        """Set the vocabulary from `state`, a JSON list of words."""
        words = parse_json(state)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("it is not a list of words")
        self.words = words
        self.vocab_size = len(words)
        self._ids = {word: i for i, word in enumerate(words)}

    def encode(self, text: str) -> np.ndarray:
        words = text.split()
        for word in words:
            if word not in self._ids:
                raise ValueError(
                    f"the data has no word {word!r}: use words from {self.words[0]} to {self.words[-1]}"
                )
        return np.array([self._ids[word] for word in words], np.int64)

    def decode(self, ids: Sequence[int]) -> list[str]:
        return [self.words[i] for i in ids]


def _get_code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _decode_pieces(pieces: Iterable[bytes]) -> list[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    strings = [decoder.decode(piece) for piece in pieces]
    if strings:
        strings[-1] += decoder.decode(b"", final=True)
    return strings


def _build_byte_symbols() -> dict[str, int]:
    """Return the `tokenizers` library's mapping from symbol to byte.

    The library writes a byte as one visible character: the Latin-1 character if it is visible, else the next
    unused one from U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + k): byte for k, byte in enumerate(hidden)}
