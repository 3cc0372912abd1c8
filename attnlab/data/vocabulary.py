"""The vocabulary of a run: which text stands behind each token id, as the run's folder and its plan hold it.

The digest tells vocabularies apart by the meaning of their ids alone. So every `byte` tokenizer has one
digest, whatever its text, and two drawn tasks with the same words share one, whatever else they set.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from attnlab.data.tokenizers import Bpe, Byte, Char, Codec, NameCodec, Tokenizer, WordCodec
from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.store.files import read_json, write_json
from attnlab.store.guards.digests import VOCABULARY

_CODECS: dict[str, Callable[[], Codec]] = {
    "char": Char,
    "byte": Byte,
    "bpe": partial(Bpe, 257),  # the fewest; `load` counts those of its state
    "names": NameCodec,
    "words": WordCodec,
}
_KINDS = {Char: "char", Byte: "byte", Bpe: "bpe"}
_LISTED = ("char", "names", "words")  # kinds whose tokens a reader can compare one by one
_SHOWN = 3  # tokens that a comparison names


@dataclass(frozen=True)
class Vocabulary:
    """`kind` chooses the codec (a tokenizer of a user's own has its dotted name), `state` is what its `load`
    takes.
    """

    kind: str
    state: str

    def digest(self) -> str:
        """sha256 of kind and state."""
        return fingerprint.digest([self.kind, self.state], 64)

    def write(self, folder: Path) -> None:
        write_json(folder / VOCABULARY, asdict(self))

    def codec(self, own: Codec | None = None) -> Codec:
        """A loaded codec; `own` is the unloaded one of a kind that attnlab does not have.

        Raises:
            ValueError: the kind is unknown, or its codec cannot load the state.
        """
        made = _CODECS[self.kind]() if self.kind in _CODECS else own
        if made is None or self.kind not in (*_CODECS, _kind(made)):
            raise ValueError(f"kind {self.kind!r} is none of {', '.join(_CODECS)}")
        try:
            made.load(self.state)
        except Exception as error:  # the tokenizers library raises its own
            raise ValueError(f"its state is no {self.kind} vocabulary ({error})") from error
        return made


def of_tokenizer(tokenizer: Tokenizer, state: str) -> Vocabulary:
    """The vocabulary of a text's tokenizer, whose `fit` returned `state`."""
    return Vocabulary(_kind(tokenizer), state)


def read(folder: Path) -> Vocabulary | None:
    """The vocabulary in a run's folder; None without a file. Refused where the file is cut short or edited
    beyond reading.
    """
    file = folder / VOCABULARY
    if not file.exists():
        return None
    match read_json(file):
        case {"kind": str(kind), "state": str(state)}:
            return Vocabulary(kind, state)
    raise Refused(
        f"{file} is not what the run wrote: cut short or changed; train the run again, with "
        "sweep.retry_failed=true"
    )


def compare(parent: Vocabulary, child: Vocabulary) -> str:
    """How two vocabularies of one kind differ, in a few words; nothing where a list of tokens has no meaning
    to a reader.
    """
    if parent.kind != child.kind or parent.kind not in _LISTED:
        return ""
    theirs = _tokens(parent)
    ours = _tokens(child)
    what = "words" if parent.kind == "words" else "characters"
    shared = {*theirs} & {*ours}
    all_tokens = {*theirs} | {*ours}
    if shared == all_tokens:
        return f"the same {what} in another order"
    only = ((who, sorted({*own} - shared)) for who, own in (("the parent", theirs), ("this run", ours)))
    said = (
        f"only {who} has {', '.join(map(repr, tokens[:_SHOWN]))}{', ...' if len(tokens) > _SHOWN else ''}"
        for who, tokens in only
        if tokens
    )
    return f"{len(shared)} of {len(all_tokens)} {what} shared; {'; '.join(said)}"


def _tokens(vocabulary: Vocabulary) -> list[str]:
    codec = vocabulary.codec()
    return codec.decode(range(codec.vocab_size))


def _kind(codec: Codec) -> str:
    made = type(codec)
    return _KINDS.get(made) or f"{made.__module__}.{made.__qualname__}"
