"""A validation text of one's own: a file, or a split of a data set."""

import gzip
import json
import random
import unicodedata

import pytest

from attnlab.data.corpora import overlap
from attnlab.data.text import hub_text
from attnlab.data.tokenizers import CharTokenizer

FINGERPRINT = (
    "4cb06120c0a56b60fabaffb6d684ca44fef76c3072a6f740a29261c1285eb0a5"  # of the novel, in every version
)
COMMON = {"length": 3, "val_fraction": 0.1, "val_windows": None, "normalize": None, "allow_overlap": False}


@pytest.fixture
def build_task(tmp_path, make_text_task):
    """`build_task(path, validation_path, name=content)`: a text task over two files."""

    def build(path, validation_path="validation.txt", allow_overlap=False, **texts):
        for name, content in texts.items():
            (tmp_path / f"{name}.txt").write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
        return make_text_task(
            tmp_path / path,
            length=3,
            validation_path=validation_path and str(tmp_path / validation_path),
            allow_overlap=allow_overlap,
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
    assert len({first, second, build_task("training.txt", None, allow_overlap=True).fingerprint}) == 3


def draw_lines(count, seed=0):
    """Distinct lines of six words."""
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcdefgé", k=generator.randint(1, 8))) for _ in range(300)]
    return [" ".join(generator.choices(words, k=6)) for _ in range(count)]


LINES = draw_lines(3000)
TEXT = "\n".join(LINES)
FLAT = " ".join(LINES)
COPIES = {
    "the same": (TEXT, TEXT),
    "saved by Windows": (TEXT, TEXT.replace("\n", "\r\n")),
    "saved by an old Macintosh": (TEXT, TEXT.replace("\n", "\r")),
    "shuffled": (TEXT, "\n".join(random.Random(1).sample(LINES, 300))),
    "shuffled and indented": (TEXT, "\r\n".join("\t" + line for line in reversed(LINES))),
    "wrapped in words": (FLAT, "\n".join(FLAT[i : i + 60] for i in range(20000, 40000, 60))),
    "unwrapped": (TEXT, FLAT),
    "compressed": (TEXT, gzip.compress(TEXT.encode())),
    "decomposed": (TEXT, unicodedata.normalize("NFD", FLAT)),
    "with a byte-order mark in UTF-16": (TEXT, TEXT.encode("utf-16")),
    "less than a decomposed window": ("one\nàbéàb\ntwo", unicodedata.normalize("NFD", "àbéàb")),
    "less than a window": ("one\nab ba abba\ntwo", "ba ab\n"),
    "a tenth": (TEXT, FLAT[5000:10000] + "\n".join(draw_lines(1200, seed=2))),
    "two thirds of the lines": (TEXT, "\n".join(LINES[1:800:2] + draw_lines(200, seed=2))),
}


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_of_the_training_text_is_rejected_unless_permitted(build_task, kind, monkeypatch):
    training, validation = COPIES[kind]
    with pytest.raises(
        ValueError,
        match=r"^data\.validation_path=.*validation\.txt: [\d.]+% of the validation text's windows of 100 "
        r"characters and [\d.]+% of its lines .*training\.txt; .*data\.allow_overlap=true$",
    ):
        build_task("training.txt", training=training, validation=validation)
    monkeypatch.setattr(overlap, "measure_overlap", lambda *_: pytest.fail("compared again"))
    assert max(build_task("training.txt", allow_overlap=True).overlap.values()) > 0.05
    with pytest.raises(ValueError, match=r"data\.allow_overlap"):  # although its tokens are cached
        build_task("training.txt")


def test_other_texts_with_some_shared_lines_are_accepted(build_task):
    new, brackets = draw_lines(1200, seed=2), ["}", ")", "else:", "", "=" * 200]
    code = "\n".join(line + "\n" + brackets[n % 5] for n, line in enumerate(new))
    task = build_task("training.txt", training="\n".join(LINES + brackets), validation=code + FLAT[5000:6000])
    assert 0.005 < task.overlap["windows"] < 0.05
    assert 0 < task.overlap["lines"] < 0.01
    assert overlap.measure_overlap(TEXT, " \n" * 30) == {"windows": 0, "lines": 0}


def test_a_text_that_repeats_itself_is_rejected(build_task):
    with pytest.raises(
        ValueError, match=r"^the last part of data\.path=.*training\.txt \(data\.val_fraction="
    ):
        build_task("training.txt", None, training=TEXT + "\n" + TEXT)
    assert build_task("training.txt", None, allow_overlap=True).overlap["windows"] == 1
    assert build_task("training.txt", None, training=TEXT).overlap == {"windows": 0, "lines": 0}
    with pytest.raises(ValueError, match=r"data\.allow_overlap must be true or false, got maybe"):
        build_task("training.txt", None, allow_overlap="maybe")


@pytest.mark.parametrize("share", [0, 0.03, 0.3, 1])
def test_a_sample_of_windows_estimates_their_share(monkeypatch, share):
    monkeypatch.setattr(overlap, "PIECE_CHARS", 700)
    new = " ".join(draw_lines(300, seed=3))
    validation = FLAT[: int(len(new) * share)] + new[: int(len(new) * (1 - share))]
    known, windows = (
        {characters[i : i + 100] for i in range(len(characters) - 99)}
        for characters in ("".join(text.split()) for text in (TEXT, validation))
    )
    exact_share = len(windows & known) / len(windows)
    for n_sampled, tolerance in ((10**9, 1e-9), (1000, 0.05)):
        monkeypatch.setattr(overlap, "MAX_SAMPLED_WINDOWS", n_sampled)
        assert overlap.measure_overlap(TEXT, validation)["windows"] == pytest.approx(
            exact_share, abs=tolerance
        )


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
    (tmp_path / "rows" / "test.jsonl").write_text((tmp_path / "rows" / "train.jsonl").read_text())
    with pytest.raises(ValueError, match=r"100\.0% of its lines .*data\.allow_overlap=true"):
        hub_text(split="train", validation_split="test", **settings)
    with pytest.raises(ValueError, match=r"data\.validation_split=train is the training split too"):
        hub_text(split="train", validation_split="train", **settings)


def test_a_split_text_keeps_its_fingerprint(make_text_task):
    assert make_text_task().fingerprint == FINGERPRINT
