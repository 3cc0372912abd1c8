"""Stored vocabularies: `generate` and `inspect` need neither a run's text nor its original folder."""

import json
import random
import shutil

import pytest
from untrained import write_untrained

from attnlab.cli import main as entry
from attnlab.store import run_directories
from attnlab.store.guards import digests, ownership
from attnlab.store.run_schema import RunResult

NAMES = "\n".join(sorted({"".join(random.Random(n).choices("abdeiklmnorsu", k=5)) for n in range(60)}))
DATA = {
    "char": (["data/tokenizer=char"], "the fox"),
    "byte": (["data/tokenizer=byte"], "the fox"),
    "bpe": (["data/tokenizer=bpe", "data.tokenizer.vocab_size=270"], "the fox"),
    "names": (["data=names", "data.path={names}"], "alba"),
    "words": ([], "k1 v2 k3"),
}
RECALL = {
    "_target_": "attnlab.data.data_module.DataModule",
    "task": {"_target_": "attnlab.data.recall.AssociativeRecall", "_partial_": True},
    "batch_size": 4, "val_batch_size": 8, "val_windows": 8, "seed": 0,
    "length": 16, "vocabulary": 16, "pairs": 2, "power": 1,
}  # fmt: skip


@pytest.fixture
def write_run(compose, tmp_path):
    """`write_run(kind)`: write an untrained run on data of this kind and return its folder."""

    def make(kind, *overrides):
        (tmp_path / "names.txt").write_text(NAMES)
        options = [option.format(names=tmp_path / "names.txt") for option in DATA[kind][0]]
        config = compose(*options, *overrides)
        config["data"] = RECALL if kind == "words" else config["data"]
        return write_untrained(tmp_path / "runs", config)

    return make


def list_lines(folder, kind="char"):
    """List the lines of `generate` and `inspect`."""
    text = DATA[kind][1]
    return [
        ["generate", f"checkpoint={folder}", f"prompt={text}", "new_tokens=8", "temperature=9"],
        ["inspect", f"checkpoint={folder}", f"text={text}", f"to={folder.parent / 'page'}"],
    ]


@pytest.fixture
def run_verbs(capfd):
    """`run_verbs(folder, kind)`: run `generate` and `inspect`; return stdout, without the folder."""

    def call(folder, kind="char"):
        assert [entry.main(line) for line in list_lines(folder, kind)] == [0, 0]
        return capfd.readouterr().out.replace(str(folder.parent), "")

    return call


def delete_texts(tmp_path):
    """Remove the texts and the caches made from them."""
    for path in (tmp_path / "book.txt", tmp_path / "names.txt"):
        path.unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


@pytest.mark.usefixtures("blank_charts")
@pytest.mark.parametrize("kind", DATA)
def test_moved_run_without_its_text_gives_the_same_output(kind, write_run, run_verbs, tmp_path):
    folder = write_run(kind)
    output = run_verbs(folder, kind)
    assert output.startswith(DATA[kind][1])
    delete_texts(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    assert run_verbs(folder.rename(tmp_path / "elsewhere" / folder.name), kind) == output


@pytest.mark.usefixtures("blank_charts")
def test_edited_text_changes_no_output_and_a_run_without_vocabulary_requires_its_data(
    write_run, run_verbs, refuse, tmp_path
):
    folder, book = write_run("char"), tmp_path / "book.txt"
    output, text = run_verbs(folder), book.read_text()
    book.write_text(text.replace("the lazy", "the ABCy"))  # changes the ids of most characters
    assert run_verbs(folder) == output
    book.write_text(text)
    (folder / "vocabulary.json").unlink()
    assert run_verbs(folder) == output
    book.write_text(text.replace("the lazy", "the hazy"))  # same characters, different text
    for reason in (
        f"{book} differs from the training data: ",
        f"its data cannot be read (data.path={book}: ",
    ):
        for line in list_lines(folder):
            refuse(line, f"attnlab: {folder} has no vocabulary.json, and {reason}", "train the run again\n")
        delete_texts(tmp_path)


def swap_first_letters(content):
    state = json.loads(content)["state"]
    return json.dumps({"kind": "char", "state": state[1] + state[0] + state[2:]})


@pytest.mark.sampled(6)
@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        swap_first_letters,
        lambda content: content[:20],
        lambda content: content.replace('"char"', '"chat"'),
        lambda content: content.replace('"char"', '"bpe"'),
        lambda content: '{"kind": "words", "state": "{}"}',
        lambda content: '{"kind": "char", "state": ""}',
        lambda content: '{"kind": "char", "state": [1]}',
        lambda content: '["char"]',
        lambda content: "",
    ],
)
def test_broken_vocabulary_is_rejected_in_one_line(damage, has_record, write_run, refuse):
    folder = write_run("char")
    if has_record:
        record = RunResult(
            id=folder.name, status="done", seed=0, config={}, metrics={"val/loss": 1.0},
            files=digests.hash_run_files(folder),
        )  # fmt: skip
        run_directories.write_run_result(folder, record)
    file = folder / "vocabulary.json"
    file.write_text(damage(file.read_text()))
    reasons = (" is truncated or was changed after", " differs from the vocabulary of training")
    for line in list_lines(folder):
        assert refuse(line).removeprefix(f"attnlab: {file}").startswith(reasons)


@pytest.mark.parametrize("state", ["{", "[1]", "{}"])
@pytest.mark.parametrize("kind", ["bpe", "words", "mine.Codec"])
def test_invalid_codec_state_is_rejected_in_one_line(kind, state, write_run, refuse):
    folder = write_run("char")
    spec = json.loads((folder / "spec.json").read_text())
    del spec["estimate"]["data"]["vocabulary"]  # no digest to compare with
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "vocabulary.json").write_text(json.dumps({"kind": kind, "state": state}))
    for line in list_lines(folder):
        refuse(line, f"{folder / 'vocabulary.json'} cannot be read: ")


@pytest.mark.usefixtures("blank_charts")
def test_user_tokenizer_is_loaded_from_the_run_folder(write_run, run_verbs, tmp_path, monkeypatch):
    (tmp_path / "backwards.py").write_text(
        "from attnlab.data.tokenizers import CharTokenizer\n\n\n"
        "class Backwards(CharTokenizer):\n"
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
    folder = write_run("char", "data.tokenizer._target_=backwards.Backwards")
    assert json.loads((folder / "vocabulary.json").read_text())["kind"] == "backwards.Backwards"
    output = run_verbs(folder)
    delete_texts(tmp_path)
    assert run_verbs(folder) == output


def test_clean_removes_the_vocabulary_file(write_run):
    folder = write_run("char")
    assert ownership.remove_run(folder) == []
    assert not folder.exists()
