"""A validation text of one's own: a file, or a split of a data set."""

import json

import pytest

from attnlab.data.text import hub_text
from attnlab.data.tokenizers import CharTokenizer

FINGERPRINT = (
    "4cb06120c0a56b60fabaffb6d684ca44fef76c3072a6f740a29261c1285eb0a5"  # of the novel, in every version
)
COMMON = {"length": 3, "val_fraction": 0.1, "val_windows": None, "normalize": None}


@pytest.fixture
def build_task(tmp_path, make_text_task):
    """`build_task(path, validation_path, name=content)`: a text task over two files."""

    def build(path, validation_path="validation.txt", **texts):
        for name, content in texts.items():
            (tmp_path / f"{name}.txt").write_text(content)
        return make_text_task(
            tmp_path / path, length=3, validation_path=validation_path and str(tmp_path / validation_path)
        )

    return build


def decode(task, ids):
    return "".join(task.decode(ids.tolist()))


def test_all_of_the_text_trains_and_the_other_file_validates(build_task):
    task = build_task("training.txt", training="ab ba abba", validation="caab cab")
    assert decode(task, task.train_ids) == "ab ba abba"
    assert decode(task, task.val_ids) == "caab cab"
    assert (task.train_tokens, task.val_tokens) == (10, 8)


def test_patterns_join_the_validation_files(build_task):
    texts = {"training": "ab ba abba", "v1": "caab", "v2": "cbbc"}
    assert decode(
        build_task("training.txt", "v*.txt", **texts), build_task("training.txt", "v*.txt").val_ids
    ) == ("caab\ncbbc")


def test_the_fingerprint_covers_the_validation_text(build_task):
    first = build_task("training.txt", training="ab ba abba" * 3, validation="caab cab").fingerprint
    second = build_task("training.txt", validation="caab caa").fingerprint
    assert len({first, second, build_task("training.txt", None).fingerprint}) == 3


def test_a_validation_text_inside_the_training_text_is_rejected(build_task):
    with pytest.raises(
        ValueError, match=r"^data\.validation_path=.*: the whole text is part of the training"
    ):
        build_task("training.txt", training="one\nab ba abba\ntwo", validation="ab ba abba\n")


def test_shared_lines_are_counted(build_task, capsys):
    shared, other, own = (letter * 40 for letter in "abc")
    build_task("training.txt", training=f"{shared}\n{other}\nd", validation=f"{shared}\n{own}\n{own}\nd\nb")
    assert "1 of 2 distinct lines of at least 32 characters (50.0%) are in the training text too" in (
        capsys.readouterr().err
    )
    build_task("training.txt", training=f"{other}\nd", validation=f"{own}\nd\nb")
    assert capsys.readouterr().err == ""


def test_a_short_validation_text_is_named(build_task):
    with pytest.raises(
        ValueError, match=r"^data\.validation_path=.*validation text has 2 tokens .* at least 4"
    ):
        build_task("training.txt", training="ab ba abba", validation="cc")


def test_a_missing_validation_file_is_named(build_task):
    with pytest.raises(ValueError, match=r"^data\.validation_path=.*none\.txt: No such file"):
        build_task("training.txt", "none.txt", training="ab ba abba")


def test_a_split_validates(tmp_path):
    (tmp_path / "rows").mkdir()
    for split, rows in {"train": ["one two", "three"], "test": ["four ten"]}.items():
        lines = "".join(json.dumps({"text": row}) + "\n" for row in rows)
        (tmp_path / "rows" / f"{split}.jsonl").write_text(lines)
    settings = {
        "name": str(tmp_path / "rows"), "config": None, "field": "text", "revision": None, "streaming": True,
        "max_chars": None, "cache": str(tmp_path / "cache"), "tokenizer": CharTokenizer(), **COMMON,
    }  # fmt: skip
    task = hub_text(split="train", validation_split="test", **settings)
    assert decode(task, task.train_ids) == "one two\nthree"
    assert decode(task, task.val_ids) == "four ten"
    with pytest.raises(ValueError, match=r"data\.validation_split=train is the training split too"):
        hub_text(split="train", validation_split="train", **settings)


def test_a_split_text_keeps_its_fingerprint(make_text_task):
    assert make_text_task().fingerprint == FINGERPRINT
