"""`generate`: text streamed from a run, and one-line errors."""

import string

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from untrained import write_untrained

from attnlab.cli import main as entry
from attnlab.cli.verbs.generate import stream_text
from attnlab.config import CONF, register_resolvers
from attnlab.data.tokenizers import BpeTokenizer, ByteTokenizer, CharTokenizer
from attnlab.store import run_directories
from attnlab.store.guards import digests
from attnlab.store.run_schema import RunResult

RUN = "0123456789abcdef"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run directory with one tiny untrained run of 16 positions."""
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
        config_node = compose("config", overrides=overrides)
    config = OmegaConf.to_container(config_node, resolve=True)
    write_untrained(root / "runs", RUN, config)
    return root / "runs"


@pytest.fixture
def generate(store, capfd):
    def call(*options):
        prompt_ids = {"runs": str(store), "run": RUN[:6], "prompt": "the fox", "new_tokens": "5"}
        prompt_ids |= dict(option.split("=", 1) for option in options)
        line = [f"{key}={value}" for key, value in prompt_ids.items() if value != "-"]
        return entry.main(["generate", *line]), *capfd.readouterr()

    return call


def test_all_caches_generate_the_same_text(generate):
    texts = {generate(f"decode={cache}")[1] for cache in ("none", "dynamic", "static")}
    assert len(texts) == 1
    (text,) = texts
    assert text.startswith("the fox")
    assert len(text) == len("the fox") + 5 + 1


def test_seed_determines_the_sample(generate):
    texts = [generate("temperature=3", "seed=1")[1] for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0] != generate("temperature=3", "seed=2")[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["prompt="], "prompt is empty"),
        (["prompt=the fox?"], "'?' (U+003F, character 7) is not among the"),
        (["prompt=" + "the fox " * 4], "the model has 16 learned positions"),
        (["new_tokens=11"], "the model has 16 learned positions"),
        (["new_tokens=0"], "new_tokens=0"),
        (["new_tokens=-1"], "new_tokens=-1"),
        (["new_tokens=x"], "new_tokens=x: must be an integer"),
        (["temperature=-0.1"], "temperature=-0.1"),
        (["top_p=0"], "top_p=0"),
        (["top_p=1.01"], "top_p=1.01"),
        (["top_k=0"], "top_k=0"),
        (["run=0123456789abcdee"], f"(nearest: {RUN})"),
        (["run=", "checkpoint=-"], "no runs in"),
        (["run=-", "checkpoint=nowhere"], "checkpoint=nowhere"),
        (["run=-"], "one of run= and checkpoint="),
        (["topk=3"], "(nearest: top_k"),
        (["decode=statc"], "(nearest: static"),
        (["decode=sliding"], "decode=sliding needs a mask with a window"),
        (["decode=dynamic", "compile=true"], "use decode=static"),
        (["compile=yes"], "compile=yes: must be true or false"),
        (["threads=0"], "threads=0: must be an integer of at least 1"),
    ],
)
def test_invalid_arguments_are_one_line_with_exit_2(generate, options, message):
    status, out, errors = generate(*options)
    assert (status, out) == (2, "")
    assert errors.startswith("attnlab: ")
    assert errors.count("\n") == 1
    assert message in errors


@pytest.mark.parametrize("broken", [b"", b"\x80\x04pickle", "half"])
def test_corrupt_checkpoint_is_named_and_not_executed(generate, store, tmp_path, broken):
    source, folder = store / RUN, tmp_path / RUN
    folder.mkdir()
    (folder / "spec.json").write_bytes((source / "spec.json").read_bytes())
    weights = (source / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2] if broken == "half" else broken)
    status, _, errors = generate("run=-", f"checkpoint={folder}")
    assert status == 2
    assert errors.count("\n") == 1
    assert str(folder / "model.safetensors") in errors


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: None, "is missing"),
        (lambda content: content[:-1] + b"!", "is truncated or was changed"),
    ],
)
def test_changed_weights_are_rejected_in_one_line(generate, store, tmp_path, damage, message):
    folder, name = tmp_path / RUN, "model.safetensors"
    folder.mkdir()
    for file in ("spec.json", "vocabulary.json", name):
        (folder / file).write_bytes((store / RUN / file).read_bytes())
    record = RunResult(
        id=RUN, status="done", seed=0, config={}, metrics={"val/loss": 1.0},
        files=digests.hash_run_files(folder),
        estimate=run_directories.load_run_config(folder).estimate,
    )  # fmt: skip
    run_directories.write_run_result(folder, record)
    assert generate("run=-", f"checkpoint={folder}")[0] == 0
    content = damage((folder / name).read_bytes())
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    status, _, errors = generate("run=-", f"checkpoint={folder}")
    assert status == 2
    assert f"{folder / name} {message}" in errors
    assert errors.count("\n") == 1


TEXT = "Où est-ce? Là-bas… the quick brown fox, the lazy dog. \U0001f98a\U0001f436ß\U0001f98a, naïf "


def build_space_tokenizer():
    """Build a tokenizer whose words start with a space mark, which its decoder drops from the first word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def build_byte_fallback_tokenizer():
    """Build a tokenizer like Llama 2's, with byte fallback for unknown characters."""
    characters = f"▁{string.ascii_letters},.-?"
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    vocabulary = {token: n for n, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def wrap_shipped_tokenizer(kind, *options):
    """Return encode and decode of a shipped tokenizer, as for a run."""
    tokenizer = kind(*options)
    tokenizer.fit(TEXT, "")
    return lambda text: tokenizer.encode(text).tolist(), lambda ids: "".join(tokenizer.decode(ids))


def wrap_hf_tokenizer(tokenizer):
    """Return encode and decode of a Hugging Face tokenizer."""
    return lambda text: tokenizer.encode(text).ids, tokenizer.decode


TOKENIZERS = {
    "char": lambda: wrap_shipped_tokenizer(CharTokenizer),
    "byte": lambda: wrap_shipped_tokenizer(ByteTokenizer),
    "bpe": lambda: wrap_shipped_tokenizer(BpeTokenizer, 300),
    "spaced": lambda: wrap_hf_tokenizer(build_space_tokenizer()),
    "spaced, with bytes": lambda: wrap_hf_tokenizer(build_byte_fallback_tokenizer()),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_streamed_text_is_complete_for_every_prompt_end(name):
    encode, decode = TOKENIZERS[name]()
    ids = encode(TEXT)
    text = decode(ids)
    assert text.strip() == TEXT.strip()
    for cut in range(1, len(ids)):
        prompt = decode(ids[:cut])
        if "\ufffd" not in prompt:  # otherwise the cut splits a character
            message = list(stream_text(decode, iter(ids[cut:]), prompt, ids[:cut]))
            assert "".join(message) == text
            assert not any("\ufffd" in piece for piece in message)


def test_space_after_the_prompt_is_kept_and_a_stop_token_writes_nothing():
    encode, decode = TOKENIZERS["spaced"]()
    prompt, new_ids = encode("the quick"), [*encode("brown"), 1]
    assert decode(new_ids) == "brown"
    for prompt_ids in (prompt, [*prompt, *[1] * 20]):
        assert "".join(stream_text(decode, iter(new_ids), "the quick", prompt_ids)) == "the quick brown"


def test_incomplete_character_is_held_back():
    prompt_ids, new_ids = list(b"> "), list("né…".encode())
    message = list(
        stream_text(lambda ids: "".join(ByteTokenizer().decode(ids)), iter(new_ids), "> ", prompt_ids)
    )
    assert "".join(message) == "> né…"
    assert not any("\ufffd" in piece for piece in message)
    truncated = list(
        stream_text(lambda ids: "".join(ByteTokenizer().decode(ids)), iter(new_ids[:-1]), "> ", prompt_ids)
    )
    assert "".join(truncated) == "> né\ufffd"
