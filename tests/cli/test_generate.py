"""The verb: text streamed from a run's folder, and one line for what cannot be done."""

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from safetensors.torch import save_model

from attnlab.cli import main as entry
from attnlab.cli.verbs.generate import pieces
from attnlab.config import CONF, register_resolvers
from attnlab.data.tokenizers import Byte
from attnlab.model.build import build_model, make
from attnlab.store import runs
from attnlab.store.schema import RunSpec

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
    folder = root / "runs" / RUN
    folder.mkdir(parents=True)
    model = build_model(config, make(config["data"]).task.vocab_size)
    save_model(model, str(folder / "model.safetensors"))
    runs.write_spec(folder.parent, RunSpec(id=RUN, config=config))
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
        (["decode=rolling"], "decode=rolling needs what this model's config does not have"),
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


def test_half_a_character_waits_for_its_rest():
    bytes_ = list("né…".encode())
    told = list(pieces(lambda ids: "".join(Byte().decode(ids)), iter(bytes_), "> "))
    assert "".join(told) == "> né…"
    assert not any("\ufffd" in piece for piece in told)
