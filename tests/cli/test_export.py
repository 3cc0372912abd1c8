"""`export`: a Hugging Face folder with the same logits and token ids, or one line and no folder."""

import random
import stat

import pytest
import torch
from untrained import write_untrained

from attnlab.cli import main as entry
from attnlab.cli.verbs.export import build_hf_tokenizer
from attnlab.data.tokenizers import BpeTokenizer, ByteTokenizer, CharTokenizer
from attnlab.data.vocabulary import Vocabulary, build_vocabulary
from attnlab.model.huggingface import conversion
from attnlab.training.trained_model import load_run

torch.set_num_threads(1)
TEXT = "Zwölf Boxkämpfer\n\tjagen  Viktor quer über den Sylter Deich: 東京 🦊 <0x41>. " * 40


@pytest.fixture
def write_run(compose, tmp_path, monkeypatch):
    """`write_run(*overrides)`: write an untrained run in runs/ of the working directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *overrides: write_untrained(tmp_path / "runs", compose(*overrides))


@pytest.mark.parametrize("overrides", [["model=llama", "heads=gqa"], ["position=alibi"]])
def test_transformers_reads_the_same_model_and_tokenizer(write_run, capfd, tmp_path, overrides):
    import transformers

    folder = write_run(*overrides)
    trained = load_run(folder)
    assert entry.main(["export", f"run={folder.name[:5]}", "to=new/exported"]) == 0
    out = "new/exported: config.json, model.safetensors, tokenizer.json, tokenizer_config.json\n"
    assert capfd.readouterr().out == out
    exported = tmp_path / "new" / "exported"
    assert [path.name for path in exported.parent.iterdir()] == ["exported"], "no temporary folder stays"
    assert stat.S_IMODE(exported.stat().st_mode) & 0o700 == 0o700
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    ids = tokenizer("the fox jumps")["input_ids"]
    assert (ids, tokenizer.decode(ids)) == (trained.encode("the fox jumps"), "the fox jumps")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported, attn_implementation="eager")
    with torch.no_grad():
        expected, logits = trained.model(torch.tensor([ids])), theirs(torch.tensor([ids])).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model=llama score=forget", "model.attention.forgetting"),
        ("model=lstm", "no family can express this model"),
    ],
)
def test_model_that_no_family_has_is_one_line_and_writes_nothing(write_run, refuse, tmp_path, line, message):
    run = write_run(*line.split()).name
    before = {*tmp_path.iterdir()}
    refuse(f"export run={run} to=exported", f"run {run} cannot be exported: ", message)
    assert {*tmp_path.iterdir()} == before


def test_folder_that_loads_as_another_model_does_not_appear(write_run, refuse, tmp_path, monkeypatch):
    load_hf_model = conversion.load_hf_model

    def load_changed_model(folder):
        config, model = load_hf_model(folder)
        model.head.weight.data += 1.0
        return config, model

    run = write_run("model=llama").name
    before = {*tmp_path.iterdir()}
    monkeypatch.setattr(conversion, "load_hf_model", load_changed_model)
    refuse(f"export run={run} to=exported", "the written model has other logits")
    assert {*tmp_path.iterdir()} == before


def test_folder_in_use_is_kept_and_an_empty_one_is_filled(write_run, refuse, tmp_path):
    run = write_run("model=llama").name
    (tmp_path / "used").mkdir()
    (tmp_path / "empty").mkdir()
    for name in ("used/notes", "file"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("used", "file", "link"):
        refuse(f"export run={run} to={name}", f"to={name} exists and is not an empty folder")
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["notes"]
    assert entry.main(["export", f"run={run}", "to=empty"]) == 0
    assert (tmp_path / "empty" / "config.json").is_file()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run=aaa", "export needs to=, and one of run= and experiment="),
        ("to=x", "export needs to=, and one of run= and experiment="),
        ("run=fff to=x", "no runs in runs have an id that starts with it"),
        ("run=aaa arm=gqa to=x", "arm= and seed= select a run of an experiment"),
        ("run=aaa checkpoint=x to=x", "unknown word 'checkpoint=x'"),
    ],
)
def test_invalid_words_are_rejected(write_run, refuse, line, message):
    write_run("model=llama")
    refuse(f"export {line}", message)


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "names", "words"])
def test_exported_tokenizer_has_the_ids_and_text_of_the_run(kind):
    words = [f"k{i}" for i in range(7)]
    texts = [TEXT, "", "Deich 🦊", "\n\t "]
    if kind in ("names", "words"):
        state = "adeiklm" if kind == "names" else str(words).replace("'", '"')
        vocabulary = Vocabulary(kind, state)
        rng = random.Random(0)
        choices = [*state] if kind == "names" else words
        texts = [("" if kind == "names" else " ").join(rng.choices(choices, k=n)) for n in (1, 5, 30)]
    else:
        codec = {"char": CharTokenizer(), "byte": ByteTokenizer(), "bpe": BpeTokenizer(300)}[kind]
        vocabulary = build_vocabulary(codec, codec.fit(TEXT, ""))
    codec = vocabulary.load_codec()
    tokenizer = build_hf_tokenizer(vocabulary)
    assert tokenizer is not None
    assert tokenizer.get_vocab_size() == codec.vocab_size
    for text in texts:
        ids = codec.encode(text).tolist()
        assert tokenizer.encode(text).ids == ids
        separator = " " if kind == "words" else ""
        assert tokenizer.decode(ids, skip_special_tokens=False) == separator.join(codec.decode(ids))
    assert build_hf_tokenizer(Vocabulary("mine.Tokenizer", "")) is None
