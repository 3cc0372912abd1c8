"""Text to ids and back: characters, bytes, or byte pairs trained on the training text.

Surprising: the strings of `decode` always join to the text itself. A token that ends inside a character
(bytes and byte pairs have such tokens) is the empty string, and the one that completes it is the character.
Losses per token of two tokenizers are not comparable; those per byte are.
"""

import codecs
import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Protocol

import numpy as np

PIECE = 1_600_000  # characters of a long text that are encoded at once, which bounds the memory


START = 0  # of short words: the id before the first character and after the last one


class Codec(Protocol):
    """Text to ids and back, once `load` has the vocabulary."""

    vocab_size: int

    def load(self, state: str) -> None: ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: Sequence[int]) -> list[str]: ...


class Tokenizer(Codec, Protocol):
    """A codec that learns its vocabulary from a text."""

    unit: str
    key: str  # all that decides the result for a given text
    learns_long: bool  # whether what it learns is worth keeping; then it looks at the training text alone

    def fit(self, training: str, validation: str) -> str:
        """Learns the vocabulary and returns it as text, for `load`."""
        ...

    def sizes(self) -> np.ndarray:
        """The bytes of UTF-8 that each token stands for [vocab_size]."""
        ...


class Char:
    """One token a character. The vocabulary is that of training *and* validation text: a character seen only
    in validation would have no id at all, while knowing that it exists tells nothing of where it stands."""

    unit = "char"
    key = "char"
    learns_long = False

    def fit(self, training: str, validation: str) -> str:
        state = "".join(sorted({*training, *validation}))
        self.load(state)
        return state

    def load(self, state: str) -> None:
        if not state:
            raise ValueError("a vocabulary has at least one character")
        self.characters = state
        self.codes = _codes(state)
        self.vocab_size = len(state)

    def encode(self, text: str) -> np.ndarray:
        codes = _codes(text)
        ids = np.searchsorted(self.codes, codes).clip(max=len(self.codes) - 1)
        unknown = self.codes[ids] != codes
        if unknown.any():
            at = int(unknown.argmax())
            raise ValueError(
                f"{text[at]!r} (U+{ord(text[at]):04X}, character {at}) is not among the {len(self.codes)}"
                " characters of the data; leave it out, or train with data/tokenizer=byte"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> list[str]:
        return [self.characters[i] for i in ids]

    def sizes(self) -> np.ndarray:
        return np.array([len(character.encode()) for character in self.characters])


class Byte:
    """One token a byte of the UTF-8 text. Nothing is learned, and nothing is unknown."""

    unit = "byte"
    key = "byte"
    vocab_size = 256
    learns_long = False

    def fit(self, training: str, validation: str) -> str:
        return ""

    def load(self, state: str) -> None:
        pass

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, ids: Sequence[int]) -> list[str]:
        return _strings(bytes([i]) for i in ids)

    def sizes(self) -> np.ndarray:
        return np.ones(256, np.int64)


class Bpe:
    """Byte pairs (Sennrich et al. 2016, 1508.07909) over bytes, learned from the training text only."""

    unit = "bpe"
    learns_long = True
    piece = 100_000  # characters in a row: no token crosses such a border, and PIECE is a multiple of it

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 257:
            raise ValueError(
                f"data.tokenizer.vocab_size={vocab_size}: byte pairs start from 256 bytes; give at least 257,"
                " or use data/tokenizer=byte"
            )
        self.vocab_size = vocab_size
        self.key = f"bpe {vocab_size} pieces {self.piece} tokenizers {version('tokenizers')}"

    def fit(self, training: str, validation: str) -> str:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(self._split(training), trainer)
        state = tokenizer.to_str()
        self.load(state)
        return state

    def load(self, state: str) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_str(state)
        self.vocab_size = self.tokenizer.get_vocab_size()  # a small text has fewer pairs than were asked for
        symbols = _byte_symbols()
        self.pieces = [
            bytes(symbols[c] for c in self.tokenizer.id_to_token(i) or "") for i in range(self.vocab_size)
        ]

    def _split(self, text: str) -> list[str]:
        """The pieces of a text, the same in training and in use: a line alone would hide what follows its
        newline, and no token could hold the newline and the indentation after it.
        """
        return [text[i : i + self.piece] for i in range(0, len(text), self.piece)]

    def encode(self, text: str) -> np.ndarray:
        encoded = self.tokenizer.encode_batch_fast(self._split(text))
        return np.concatenate([np.array(e.ids, np.int64) for e in encoded] or [np.empty(0, np.int64)])

    def decode(self, ids: Sequence[int]) -> list[str]:
        return _strings(self.pieces[i] for i in ids)

    def sizes(self) -> np.ndarray:
        return np.array([len(piece) for piece in self.pieces])


class NameCodec(Char):
    """The characters of short words, and a start token, which every encoded text begins with."""

    def load(self, state: str) -> None:
        super().load(state)
        self.vocab_size = len(state) + 1

    def encode(self, text: str) -> np.ndarray:
        return np.concatenate([[START], self.places(text)])

    def places(self, text: str) -> np.ndarray:
        """The ids of the characters, without the start token."""
        return super().encode(text) + 1

    def decode(self, ids: Sequence[int]) -> list[str]:
        return ["<start>" if i == START else self.characters[i - 1] for i in ids]

    def sizes(self) -> np.ndarray:
        return np.concatenate([[0], super().sizes()])


class WordCodec:
    """The words of a task that is drawn: spaces stand between them, and an id is a place in their list."""

    vocab_size: int

    def load(self, state: str) -> None:
        """`state` is a JSON list of the words."""
        words = json.loads(state)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("it is no list of words")
        self.words = words
        self.vocab_size = len(words)
        self._ids = {word: i for i, word in enumerate(words)}

    def encode(self, text: str) -> np.ndarray:
        words = text.split()
        for word in words:
            if word not in self._ids:
                raise ValueError(
                    f"the data has no word {word!r}: give words from {self.words[0]} to {self.words[-1]}"
                )
        return np.array([self._ids[word] for word in words], np.int64)

    def decode(self, ids: Sequence[int]) -> list[str]:
        return [self.words[i] for i in ids]


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _strings(pieces: Iterable[bytes]) -> list[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    strings = [decoder.decode(piece) for piece in pieces]
    if strings:
        strings[-1] += decoder.decode(b"", final=True)
    return strings


def _byte_symbols() -> dict[str, int]:
    """The `tokenizers` library writes a byte as one visible character: itself where it is visible in
    Latin-1, else the next one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + k): byte for k, byte in enumerate(hidden)}
