"""`generate`: text streamed from a run, and one-line errors."""

import itertools
import json
import re
import shlex
import shutil
import string

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
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
    text = root / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    line = (
        f"size=debug data=text data.path={text} data.allow_overlap=true position=learned paths.cache={root}/c"
    )
    return write_untrained(root / "runs", compose_config(line))


def compose_config(line):
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose("config", line.split()), resolve=True)


@pytest.fixture
def fill(store):
    """`fill(line)`: a whole line of `generate`, of the untrained run or of the checkpoint in `folder`."""

    def call(line="", folder=None):
        model = f"checkpoint={folder}" if folder else f"runs={store.parent} run={store.name[:6]}"
        text = f"{model} prompt='the fox' new_tokens=5 {line}".replace("NEAR", f"{store.name[:-1]}g")
        words = dict(word.split("=", 1) for word in shlex.split(text))
        return ["generate", *(f"{key}={value}" for key, value in words.items() if value != "-")]

    return call


@pytest.fixture
def generate(fill, capfd):
    def call(line="", folder=None):
        return entry.main(fill(line, folder)), *capfd.readouterr()

    return call


@pytest.fixture
def draw_tokens(monkeypatch):
    """`draw_tokens(...)`: the next generated tokens."""

    def call(*tokens):
        drawn = iter(tokens)
        monkeypatch.setattr(Sampling, "sample_tokens", lambda *_: torch.tensor([[next(drawn)]]))

    return call


def test_all_caches_generate_the_same_text_and_the_seed_determines_a_sample(generate):
    [text] = {generate(f"decode={cache}")[1] for cache in ("none", "dynamic", "static")}
    assert (text.startswith("the fox"), len(text)) == (True, len("the fox") + 5 + 1)
    first, again, other = (generate(f"temperature=3 seed={seed}")[1] for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("prompt=", "prompt is empty"),
        ("'prompt=the fox?'", "'?' (U+003F, character 7) is not among the"),
        ("prompt='the fox the fox the fox'", "the model has 16 learned positions"),
        ("new_tokens=11", "the model has 16 learned positions"),
        ("new_tokens=0", "new_tokens=0"),
        ("new_tokens=-1", "new_tokens=-1"),
        ("new_tokens=x", "new_tokens=x: must be an integer"),
        ("temperature=-0.1", "temperature=-0.1"),
        ("top_p=0", "top_p=0"),
        ("top_p=1.01", "top_p=1.01"),
        ("top_k=0", "top_k=0"),
        ("run=NEAR", "(nearest: RUN)"),
        ("run= checkpoint=-", "no runs in"),
        ("run=- checkpoint=nowhere", "checkpoint=nowhere"),
        ("run=-", "one of run= and checkpoint="),
        ("topk=3", "(nearest: top_k"),
        ("decode=statc", "(nearest: static"),
        ("decode=sliding", "decode=sliding needs a mask with a window"),
        ("decode=dynamic compile=true", "use decode=static"),
        ("compile=yes", "compile=yes: must be true or false"),
        ("prompt=a\udcff", "byte 0xff at character 1 is not UTF-8"),
        ("run=- checkpoint=a\udcff", "byte 0xff at character 1 is not UTF-8"),
        ("threads=0", "threads=0: must be an integer of at least 1"),
    ],
)
def test_invalid_arguments_are_one_line_with_exit_2(refuse, fill, store, options, message):
    refuse(fill(options), message.replace("RUN", store.name))


@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "pickle", "truncated", "changed"])
def test_corrupt_checkpoint_is_named_and_not_executed(
    refuse, fill, generate, store, tmp_path, damage, has_record
):
    folder = shutil.copytree(store, tmp_path / store.name)
    if has_record:
        record = RunResult(
            id=store.name, status="done", seed=0, config={}, metrics={"val/loss": 1.0},
            files=digests.hash_run_files(folder),
            estimate=run_directories.load_run_config(folder).estimate,
        )  # fmt: skip
        run_directories.write_run_result(folder, record)
    assert generate("", folder)[0] == 0
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        damaged = {"empty": b"", "pickle": b"\x80\x04pickle", "truncated": content[: len(content) // 2]}
        file.write_bytes(damaged.get(damage, b"!" + content[1:]))
    reason = "is missing" if damage == "missing" else "is truncated or was changed"
    refuse(fill(folder=folder), f"{file} {reason}" if has_record else file.name)


@pytest.fixture
def names_run(tmp_path):
    """The folder of an untrained run on names of the letters a to d."""
    file = tmp_path / "names.txt"
    file.write_text("\n".join(map("".join, itertools.product("abcd", repeat=3))))
    line = f"size=debug data=names data.path={file} data.normalize=NFC paths.cache={tmp_path}"
    return write_untrained(tmp_path, compose_config(line))


@pytest.mark.parametrize(
    ("line", "tokens", "text"),
    [
        ("", [2, 1, 0, 3], "abba"),
        ("stop=none", [2, 0, 3, 0], "abb<start>c<start>"),
        ("stop=b", [2, 1, 0, 3], "abb"),
        ("prompt=", [2, 0], "b"),
    ],
)
def test_generation_of_a_name_stops_at_its_end(names_run, generate, draw_tokens, line, tokens, text):
    draw_tokens(*tokens)
    assert generate(f"prompt=ab new_tokens=4 {line}", names_run) == (0, f"{text}\n", "")


@pytest.fixture
def hf_folder(tmp_path):
    """A Hugging Face folder whose tokenizer has five words and appends the last one, the end token."""
    words = {"[UNK]": 0, "the": 1, "quick": 2, "fox": 3, "</s>": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 4)])
    model = compose_config("size=debug model=llama")["model"]
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
def test_generation_stops_at_the_end_token_of_a_checkpoint(generate, hf_folder, draw_tokens, files, output):
    for name, value in files.items():
        set_end_token(hf_folder, name, value)
    draw_tokens(2, 3)
    assert generate("prompt=the new_tokens=2", hf_folder)[:2] == (0, f"{output}\n")


def test_end_token_is_part_of_a_prompt_only_if_written_and_then_reported(generate, hf_folder, draw_tokens):
    set_end_token(hf_folder, "config.json", 4)
    file = hf_folder / "tokenizer.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # a byte order mark is ignored
    model = load_selected_model({"checkpoint": str(hf_folder)})
    assert (model.encode("the fox"), model.encode("the fox </s>")) == ([1, 3], [1, 3, 4])
    draw_tokens(4)
    status, _, errors = generate("prompt='the </s>'", hf_folder)
    assert (status, "token 1 of the prompt is the model's end token (4)" in errors) == (0, True)


LFS = b"version https://git-lfs.github.com/spec/v1\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", LFS, "is a git-lfs pointer: fetch"),
        ("model.safetensors", LFS, "is a git-lfs pointer"),
        ("config.json", LFS, "is a git-lfs pointer"),
        ("tokenizer.json", b'{"model": {"type": "New"}}', "cannot be read by tokenizers"),
        ("tokenizer.json", b"{}\xff", "is not UTF-8 (byte 0xff at offset 2)"),
        ("generation_config.json", b'{"eos_token_id": "</s>"}', "eos_token_id='</s>' must be a token id"),
    ],
)
def test_broken_file_of_a_checkpoint_is_named_in_one_line(refuse, fill, hf_folder, name, content, message):
    (hf_folder / name).write_bytes(content)
    refuse(fill("prompt=the", hf_folder), str(hf_folder / name), message)


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
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *f"▁{string.ascii_letters},.-?"]
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
def test_invalid_bytes_are_escapes(tmp_path, generate, compose, tokenizer):
    folder = write_untrained(tmp_path / "runs", compose(f"data/tokenizer={tokenizer}"))
    output = generate("prompt=né new_tokens=60 temperature=3", folder)[1]
    assert (output.startswith("né"), "\ufffd" in output) == (True, False)
    assert re.search(r"\\x[89a-f][0-9a-f]", output)


def test_invalid_byte_keeps_its_value_and_an_incomplete_one_is_held_back():
    tokens = [0xFF, *"é".encode(), 0xC3]
    pieces = stream_text(lambda ids: bytes(ids).decode(errors="surrogateescape"), iter(tokens), ">", [62])
    assert list(map(escape_bytes, pieces)) == [">", "", "\\xffé", "", "\\xc3"]
