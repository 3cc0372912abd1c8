"""A run's folder holds its vocabulary: `generate` and `inspect` need neither its text nor its old place."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from untrained import write_untrained

from attnlab.cli import main as entry
from attnlab.store import runs
from attnlab.store.guards import digests, marks
from attnlab.store.schema import RunRecord

RUN = "0123456789abcdef"
NAMES = "\n".join(sorted({"".join(random.Random(n).choices("abdeiklmnorsu", k=5)) for n in range(60)}))
DATA = {
    "char": (["data/tokenizer=char"], "the fox"),
    "byte": (["data/tokenizer=byte"], "the fox"),
    "bpe": (["data/tokenizer=bpe", "data.tokenizer.vocab_size=270"], "the fox"),
    "names": (["data=names", "data.path={names}"], "alba"),
    "words": ([], "k1 v2 k3"),
}
RECALL = {
    "_target_": "attnlab.data.module.Data",
    "task": {"_target_": "attnlab.data.recall.Recall", "_partial_": True},
    "batch_size": 4, "val_batch_size": 8, "val_windows": 8, "seed": 0,
    "length": 16, "vocabulary": 16, "pairs": 2, "power": 1,
}  # fmt: skip


@pytest.fixture
def write(compose: Callable[..., Any], tmp_path: Path) -> Callable[..., Path]:
    """`write(kind)`: the folder of an untrained run on data of this kind."""

    def make(kind: str, *more: str) -> Path:
        (tmp_path / "names.txt").write_text(NAMES)
        options = [option.format(names=tmp_path / "names.txt") for option in DATA[kind][0]]
        config = compose(*options, *more)
        config["data"] = RECALL if kind == "words" else config["data"]
        return write_untrained(tmp_path / "runs", RUN, config)

    return make


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """`say(folder, kind)`: status, output and errors of `generate` and `inspect` together."""

    def call(folder: Path, kind: str) -> tuple[int, str, str]:
        prompt = DATA[kind][1]
        statuses = [
            entry.main(
                ["generate", f"checkpoint={folder}", f"prompt={prompt}", "new_tokens=8", "temperature=9"]
            ),
            entry.main(["inspect", f"checkpoint={folder}", f"text={prompt}", f"to={tmp_path / 'page'}"]),
        ]
        return max(statuses), *capfd.readouterr()

    return call


def forget(tmp_path: Path) -> None:
    """Removes the texts and all that was made of them."""
    for path in (tmp_path / "book.txt", tmp_path / "names.txt"):
        path.unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize("kind", DATA)
def test_without_its_text_and_in_another_folder_a_run_says_the_same(
    kind: str, write: Callable[..., Path], say: Callable[..., Any], tmp_path: Path
) -> None:
    folder = write(kind)
    status, said, _ = say(folder, kind)
    assert status == 0
    assert said.startswith(DATA[kind][1])
    forget(tmp_path)
    moved = folder.rename(tmp_path / "elsewhere")
    assert say(moved, kind)[:2] == (0, said.replace(str(folder), str(moved)))


@pytest.mark.usefixtures("blank")
def test_one_word_of_the_text_is_edited_and_the_run_says_the_same(
    write: Callable[..., Path], say: Callable[..., Any], tmp_path: Path
) -> None:
    folder, book = write("char"), tmp_path / "book.txt"
    status, said, _ = say(folder, "char")
    assert status == 0
    book.write_text(book.read_text().replace("the lazy", "the ABCy"))  # ids of most characters move
    assert say(folder, "char")[:2] == (0, said)


@pytest.mark.usefixtures("blank")
def test_a_run_without_a_vocabulary_is_read_with_its_own_data_alone(
    write: Callable[..., Path], say: Callable[..., Any], tmp_path: Path
) -> None:
    folder, book = write("char"), tmp_path / "book.txt"
    said = say(folder, "char")
    (folder / "vocabulary.json").unlink()
    assert say(folder, "char") == said
    book.write_text(
        book.read_text().replace("the lazy", "the hazy")
    )  # the same characters: another text all the same
    lines = [f"attnlab: {folder} has no vocabulary.json, and {book} is not what it was trained on: "]
    book_gone = f"attnlab: {folder} has no vocabulary.json, and its data cannot be read (data.path={book}: "
    for line in (*lines, book_gone):
        status, out, errors = say(folder, "char")
        assert (status, out) == (2, "")
        assert [told.startswith(line) for told in errors.splitlines()] == [True, True]
        assert all(told.endswith("train the run again") for told in errors.splitlines())
        forget(tmp_path)


def swap(content: str) -> str:
    state = json.loads(content)["state"]
    return json.dumps({"kind": "char", "state": state[1] + state[0] + state[2:]})


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    "spoil",
    [
        swap,
        lambda content: content[:20],
        lambda content: content.replace('"char"', '"chat"'),
        lambda content: content.replace('"char"', '"bpe"'),
        lambda content: json.dumps({"kind": "words", "state": "{}"}),
        lambda content: json.dumps({"kind": "char", "state": ""}),
        lambda content: json.dumps({"kind": "char", "state": [1]}),
        lambda content: json.dumps(["char"]),
        lambda content: "",
    ],
)
def test_a_broken_vocabulary_is_refused_in_a_line(
    spoil: Callable[[str], str], recorded: bool, write: Callable[..., Path], say: Callable[..., Any]
) -> None:
    folder = write("char")
    if recorded:
        record = RunRecord(
            id=RUN,
            status="done",
            seed=0,
            config={},
            metrics={"val/loss": 1.0},
            files=digests.of_files(folder),
        )
        runs.write_record(folder, record)
    file = folder / "vocabulary.json"
    file.write_text(spoil(file.read_text()))
    status, out, errors = say(folder, "char")
    assert (status, out) == (2, "")
    assert len(errors.splitlines()) == 2  # one of each verb
    assert all(line.startswith(f"attnlab: {file} is not ") for line in errors.splitlines())


@pytest.mark.parametrize("state", ["{", "[1]", "{}"])
@pytest.mark.parametrize("kind", ["bpe", "words", "mine.Codec"])
def test_a_state_that_its_codec_cannot_load_is_refused_in_a_line(
    kind: str, state: str, write: Callable[..., Path], say: Callable[..., Any]
) -> None:
    folder = write("char")
    spec = json.loads((folder / "spec.json").read_text())
    del spec["estimate"]["data"]["vocabulary"]  # nothing tells that it is not this run's
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "vocabulary.json").write_text(json.dumps({"kind": kind, "state": state}))
    status, out, errors = say(folder, "char")
    assert (status, out) == (2, "")
    assert [line.count(f"{folder / 'vocabulary.json'} cannot be read: ") for line in errors.splitlines()] == [
        1,
        1,
    ]


@pytest.mark.usefixtures("blank")
def test_a_tokenizer_of_ones_own_is_loaded_from_the_folder(
    write: Callable[..., Path],
    say: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "backwards.py").write_text(
        "from attnlab.data.tokenizers import Char\n\n\n"
        "class Backwards(Char):\n"
        "    def fit(self, training, validation):\n"
        "        state = super().fit(training, validation)[::-1]\n"
        "        self.load(state)\n"
        "        return state\n\n"
        "    def load(self, state):\n"
        "        super().load(state[::-1])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert entry.main(["--trust", "backwards"]) == 0
    folder = write("char", "data.tokenizer._target_=backwards.Backwards")
    assert json.loads((folder / "vocabulary.json").read_text())["kind"] == "backwards.Backwards"
    said = say(folder, "char")
    assert said[0] == 0
    forget(tmp_path)
    assert say(folder, "char")[:2] == said[:2]


def test_clean_knows_the_file(write: Callable[..., Path]) -> None:
    folder = write("char")
    assert marks.remove(folder) == []
    assert not folder.exists()
