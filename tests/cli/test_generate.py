"""`generate`: text streamed from a run, and one-line errors."""

import itertools
import json
import re
import string

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from untrained import write_untrained

from attnlab.cli import main as entry
from attnlab.cli.select_model import load_selected_model
from attnlab.cli.verbs.generate import escape_bytes, stream_text
from attnlab.config import CONF, register_resolvers
from attnlab.data.tokenizers import BpeTokenizer, ByteTokenizer, CharTokenizer
from attnlab.model.build import build_model
from attnlab.model.generation import Sampling
from attnlab.model.huggingface.conversion import save_hf_model
from attnlab.store import run_directories
from attnlab.store.guards import digests
from attnlab.store.run_schema import RunResult


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The run directory of a tiny untrained run of 16 positions."""
    root = tmp_path_factory.mktemp("store")
    register_resolvers()
    text = root / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        overrides = [
            "size=debug",
            "data=text",
            f"data.path={text}",
            "data.allow_overlap=true",
            "position=learned",
            f"paths.cache={root}/c",
        ]
        config_node = compose("config", overrides=overrides)
    config = OmegaConf.to_container(config_node, resolve=True)
    return write_untrained(root / "runs", config)


@pytest.fixture
def generate(store, capfd):
    def call(*options):
        prompt_ids = {
            "runs": str(store.parent),
            "run": store.name[:6],
            "prompt": "the fox",
            "new_tokens": "5",
        }
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
        (["run=NEAR"], "(nearest: RUN)"),
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
def test_invalid_arguments_are_one_line_with_exit_2(generate, store, options, message):
    status, out, errors = generate(*(word.replace("NEAR", f"{store.name[:-1]}g") for word in options))
    assert (status, out) == (2, "")
    assert errors.startswith("attnlab: ")
    assert errors.count("\n") == 1
    assert message.replace("RUN", store.name) in errors


@pytest.mark.parametrize("broken", [b"", b"\x80\x04pickle", "half"])
def test_corrupt_checkpoint_is_named_and_not_executed(generate, store, tmp_path, broken):
    source, folder = store, tmp_path / store.name
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
    folder, name = tmp_path / store.name, "model.safetensors"
    folder.mkdir()
    for file in ("spec.json", "vocabulary.json", name):
        (folder / file).write_bytes((store / file).read_bytes())
    record = RunResult(
        id=store.name, status="done", seed=0, config={}, metrics={"val/loss": 1.0},
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


def test_prompt_that_is_not_utf8_is_rejected(generate):
    status, _, errors = generate("prompt=a\udcff")
    assert status == 2
    assert "byte 0xff at character 1 is not UTF-8" in errors
    assert errors.count("\n") == 1


@pytest.fixture
def names_run(tmp_path):
    """The folder of an untrained run on names of the letters a to d."""
    (tmp_path / "names.txt").write_text("\n".join(map("".join, itertools.product("abcd", repeat=3))))
    names = ["data=names", f"data.path={tmp_path / 'names.txt'}", "data.normalize=NFC"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config_node = compose("config", ["size=debug", *names, f"paths.cache={tmp_path}"])
    return write_untrained(tmp_path, OmegaConf.to_container(config_node, resolve=True))


def test_generation_of_a_name_stops_at_its_end(names_run, generate, monkeypatch):
    new_tokens = iter([2, 1, 0, 3])
    monkeypatch.setattr(Sampling, "sample_tokens", lambda *_: torch.tensor([[next(new_tokens)]]))
    model = ["run=-", f"checkpoint={names_run}", "prompt=ab", "new_tokens=4"]
    assert generate(*model) == (0, "abba\n", "")
    new_tokens = iter([2, 0, 3, 0])
    assert generate(*model, "stop=none") == (0, "abb<start>c<start>\n", "")
    new_tokens = iter([2, 1, 0, 3])
    assert generate(*model, "stop=b") == (0, "abb\n", "")


def test_a_name_may_start_from_nothing(names_run, generate, monkeypatch):
    new_tokens = iter([2, 0])
    monkeypatch.setattr(Sampling, "sample_tokens", lambda *_: torch.tensor([[next(new_tokens)]]))
    assert generate("run=-", f"checkpoint={names_run}", "prompt=", "new_tokens=4") == (0, "b\n", "")


@pytest.fixture
def hf_folder(tmp_path):
    """A Hugging Face folder whose tokenizer has five words and appends the last one, the end token."""
    words = {"[UNK]": 0, "the": 1, "quick": 2, "fox": 3, "</s>": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 4)])
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config_node = compose("config", ["size=debug", "model=llama"])
    model = OmegaConf.to_container(config_node.model, resolve=True)
    folder = tmp_path / "theirs"
    save_hf_model(folder, build_model({"model": model}, len(words)), model)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def set_end_token(folder, name, value):
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | {"eos_token_id": value}))


@pytest.mark.parametrize(
    ("files", "output"),
    [
        ({}, "the quick fox"),
        ({"config.json": 3}, "the quick"),
        ({"generation_config.json": [3, 4]}, "the quick"),
        ({"config.json": 3, "generation_config.json": 1}, "the quick fox"),
    ],
)
def test_generation_stops_at_the_end_token_of_a_checkpoint(generate, hf_folder, monkeypatch, files, output):
    for name, value in files.items():
        set_end_token(hf_folder, name, value)
    tokens = iter([2, 3])
    monkeypatch.setattr(Sampling, "sample_tokens", lambda *_: torch.tensor([[next(tokens)]]))
    assert generate("run=-", f"checkpoint={hf_folder}", "prompt=the", "new_tokens=2")[:2] == (
        0,
        f"{output}\n",
    )


def test_end_token_that_the_tokenizer_appends_is_no_part_of_the_prompt(hf_folder):
    set_end_token(hf_folder, "config.json", 4)
    model = load_selected_model({"checkpoint": str(hf_folder)})
    assert model.encode("the fox") == [1, 3]
    assert model.encode("the fox </s>") == [1, 3, 4]


def test_end_token_in_a_prompt_is_reported(generate, hf_folder, monkeypatch):
    set_end_token(hf_folder, "config.json", 4)
    monkeypatch.setattr(Sampling, "sample_tokens", lambda *_: torch.tensor([[4]]))
    status, _, errors = generate("run=-", f"checkpoint={hf_folder}", "prompt=the </s>")
    assert status == 0
    assert "token 1 of the prompt is the model's end token (4)" in errors


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "tokenizer.json",
            b"version https://git-lfs.github.com/spec/v1\n",
            "is a git-lfs pointer: fetch",
        ),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "is a git-lfs pointer"),
        ("config.json", b"version https://git-lfs.github.com/spec/v1\n", "is a git-lfs pointer"),
        ("tokenizer.json", b'{"model": {"type": "New"}}', "cannot be read by tokenizers"),
        ("tokenizer.json", b"{}\xff", "is not UTF-8 (byte 0xff at offset 2)"),
        ("generation_config.json", b'{"eos_token_id": "</s>"}', "eos_token_id='</s>' must be a token id"),
    ],
)
def test_broken_file_of_a_checkpoint_is_named_in_one_line(generate, hf_folder, name, content, message):
    (hf_folder / name).write_bytes(content)
    status, _, errors = generate("run=-", f"checkpoint={hf_folder}", "prompt=the")
    assert status == 2
    assert f"{hf_folder / name} " in errors or f"{hf_folder / name}:" in errors
    assert message in errors
    assert errors.count("\n") == 1


def test_byte_order_mark_of_a_tokenizer_is_ignored(hf_folder):
    file = hf_folder / "tokenizer.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_selected_model({"checkpoint": str(hf_folder)}).encode("the fox")[:2] == [1, 3]


def test_weights_that_are_not_finite_are_rejected(generate, hf_folder):
    weights = load_file(hf_folder / "model.safetensors")
    name = min(weights)
    weights[name].view(-1)[3] = float("nan")
    save_file(weights, hf_folder / "model.safetensors", metadata={"format": "pt"})
    status, _, errors = generate("run=-", f"checkpoint={hf_folder}", "prompt=the")
    assert status == 2
    assert "NaN or infinite values of" in errors


def test_folder_name_that_is_not_utf8_is_rejected(generate):
    status, _, errors = generate("run=-", "checkpoint=a\udcff")
    assert status == 2
    assert "byte 0xff at character 1 is not UTF-8" in errors
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


@pytest.mark.parametrize("tokenizer", ["byte", "bpe"])
def test_invalid_bytes_are_escapes(tmp_path, capfd, compose, tokenizer):
    folder = write_untrained(tmp_path / "runs", compose(f"data/tokenizer={tokenizer}"))
    line = [
        "generate",
        f"runs={tmp_path / 'runs'}",
        f"run={folder.name}",
        "prompt=né",
        "new_tokens=60",
        "temperature=3",
    ]
    assert entry.main(line) == 0
    output = capfd.readouterr().out
    assert output.startswith("né")
    assert "\ufffd" not in output
    assert re.search(r"\\x[89a-f][0-9a-f]", output)


def test_invalid_byte_keeps_its_value_and_an_incomplete_one_is_held_back():
    tokens = [0xFF, *"é".encode(), 0xC3]
    pieces = list(
        stream_text(lambda ids: bytes(ids).decode(errors="surrogateescape"), iter(tokens), ">", [62])
    )
    assert list(map(escape_bytes, pieces)) == [">", "", "\\xffé", "", "\\xc3"]


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
