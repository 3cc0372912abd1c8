"""The verb: text streamed from a run's folder, and one line for what cannot be done."""

import string

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from untrained import write_untrained

from attnlab.cli import main as entry
from attnlab.cli.verbs.generate import pieces
from attnlab.config import CONF, register_resolvers
from attnlab.data.tokenizers import Bpe, Byte, Char
from attnlab.store import runs
from attnlab.store.guards import digests
from attnlab.store.schema import RunRecord

RUN = "0123456789abcdef"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with one tiny run, untrained, whose positions end at 16."""
    root = tmp_path_factory.mktemp("store")
    register_resolvers()
    text = root / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        overrides = [
            "size=debug",
            "data=text",
            f"data.path={text}",
            "position=learned",
            f"paths.cache={root}/c",
        ]
        composed = compose("config", overrides=overrides)
    config = OmegaConf.to_container(composed, resolve=True)
    write_untrained(root / "runs", RUN, config)
    return root / "runs"


@pytest.fixture
def generate(store, capfd):
    def call(*options):
        given = {"runs": str(store), "run": RUN[:6], "prompt": "the fox", "new_tokens": "5"}
        given |= dict(option.split("=", 1) for option in options)
        line = [f"{key}={value}" for key, value in given.items() if value != "-"]
        return entry.main(["generate", *line]), *capfd.readouterr()

    return call


def test_every_cache_writes_the_same_text(generate):
    written = {generate(f"decode={cache}")[1] for cache in ("none", "growing", "static")}
    assert len(written) == 1
    (text,) = written
    assert text.startswith("the fox")
    assert len(text) == len("the fox") + 5 + 1


def test_a_seed_decides_what_is_drawn(generate):
    again = [generate("temperature=3", "seed=1")[1] for _ in range(2)]
    assert again[0] == again[1]
    assert again[0] != generate("temperature=3", "seed=2")[1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["prompt="], "prompt is empty"),
        (["prompt=the fox?"], "'?' (U+003F, character 7) is not among the"),
        (["prompt=" + "the fox " * 4], "the model has learned 16"),
        (["new_tokens=11"], "the model has learned 16"),
        (["new_tokens=0"], "new_tokens=0"),
        (["new_tokens=-1"], "new_tokens=-1"),
        (["new_tokens=x"], "new_tokens=x: it must be a whole number"),
        (["temperature=-0.1"], "temperature=-0.1"),
        (["top_p=0"], "top_p=0"),
        (["top_p=1.01"], "top_p=1.01"),
        (["top_k=0"], "top_k=0"),
        (["run=0123456789abcdee"], f"(nearest: {RUN})"),
        (["run=", "checkpoint=-"], "no runs of that name"),
        (["run=-", "checkpoint=nowhere"], "checkpoint=nowhere"),
        (["run=-"], "one of run= and checkpoint="),
        (["topk=3"], "(nearest: top_k"),
        (["decode=statc"], "(nearest: static"),
        (["decode=rolling"], "decode=rolling: no layer's mask has a window"),
        (["decode=growing", "compile=true"], "use decode=static"),
        (["compile=yes"], "compile=yes: it must be true or false"),
        (["threads=0"], "threads=0: it must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_generated_is_one_line_and_exit_2(generate, options, told):
    status, out, errors = generate(*options)
    assert (status, out) == (2, "")
    assert errors.startswith("attnlab: ")
    assert errors.count("\n") == 1
    assert told in errors


@pytest.mark.parametrize("broken", [b"", b"\x80\x04pickle", "half"])
def test_a_corrupt_checkpoint_is_named_and_not_executed(generate, store, tmp_path, broken):
    source, folder = store / RUN, tmp_path / RUN
    folder.mkdir()
    (folder / "spec.json").write_bytes((source / "spec.json").read_bytes())
    whole = (source / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2] if broken == "half" else broken)
    status, _, errors = generate("run=-", f"checkpoint={folder}")
    assert status == 2
    assert errors.count("\n") == 1
    assert str(folder / "model.safetensors") in errors


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda content: None, "is missing"),
        (lambda content: content[:-1] + b"!", "is not what the run wrote"),
    ],
)
def test_weights_that_are_not_what_the_run_wrote_are_refused_in_a_line(
    generate, store, tmp_path, spoil, told
):
    folder, name = tmp_path / RUN, "model.safetensors"
    folder.mkdir()
    for file in ("spec.json", "vocabulary.json", name):
        (folder / file).write_bytes((store / RUN / file).read_bytes())
    record = RunRecord(
        id=RUN, status="done", seed=0, config={}, metrics={"val/loss": 1.0}, files=digests.of_files(folder),
        estimate=runs.spec(folder).estimate,
    )  # fmt: skip
    runs.write_record(folder, record)
    assert generate("run=-", f"checkpoint={folder}")[0] == 0
    content = spoil((folder / name).read_bytes())
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    status, _, errors = generate("run=-", f"checkpoint={folder}")
    assert status == 2
    assert f"{folder / name} {told}" in errors
    assert errors.count("\n") == 1


TEXT = "Où est-ce? Là-bas… the quick brown fox, the lazy dog. \U0001f98a\U0001f436ß\U0001f98a, naïf "


def spaced():
    """Words begin with a mark for their space, which the decoder leaves away from the first one."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def spaced_with_bytes():
    """As Llama 2's: a character that is not in the vocabulary is its bytes."""
    characters = f"▁{string.ascii_letters},.-?"
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    vocabulary = {token: n for n, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def shipped(kind, *options):
    """In and out of tokens, as `load` has them of a run."""
    tokenizer = kind(*options)
    tokenizer.fit(TEXT, "")
    return lambda text: tokenizer.encode(text).tolist(), lambda ids: "".join(tokenizer.decode(ids))


def foreign(tokenizer):
    """The same of a Hugging Face folder."""
    return lambda text: tokenizer.encode(text).ids, tokenizer.decode


TOKENIZERS = {
    "char": lambda: shipped(Char),
    "byte": lambda: shipped(Byte),
    "bpe": lambda: shipped(Bpe, 300),
    "spaced": lambda: foreign(spaced()),
    "spaced, with bytes": lambda: foreign(spaced_with_bytes()),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_wherever_a_prompt_ends_what_follows_is_the_text(name):
    encode, decode = TOKENIZERS[name]()
    ids = encode(TEXT)
    text = decode(ids)
    assert text.strip() == TEXT.strip()
    for cut in range(1, len(ids)):
        prompt = decode(ids[:cut])
        if "\ufffd" not in prompt:  # else it ends inside a character
            told = list(pieces(decode, iter(ids[cut:]), prompt, ids[:cut]))
            assert "".join(told) == text
            assert not any("\ufffd" in piece for piece in told)


def test_a_space_after_the_prompt_is_kept_and_a_stop_token_writes_nothing():
    encode, decode = TOKENIZERS["spaced"]()
    prompt, new = encode("the quick"), [*encode("brown"), 1]
    assert decode(new) == "brown"
    for given in (prompt, [*prompt, *[1] * 20]):
        assert "".join(pieces(decode, iter(new), "the quick", given)) == "the quick brown"


def test_half_a_character_waits_for_its_rest():
    given, new = list(b"> "), list("né…".encode())
    told = list(pieces(lambda ids: "".join(Byte().decode(ids)), iter(new), "> ", given))
    assert "".join(told) == "> né…"
    assert not any("\ufffd" in piece for piece in told)
    unfinished = list(pieces(lambda ids: "".join(Byte().decode(ids)), iter(new[:-1]), "> ", given))
    assert "".join(unfinished) == "> né\ufffd"
