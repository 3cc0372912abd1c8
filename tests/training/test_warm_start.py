"""Warm start: a run starts from the weights of its parent, or fails with one line."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored_runs import make_spec, write_spec

from attnlab.cli.main import main
from attnlab.errors import InvalidConfig
from attnlab.model.build import build_model
from attnlab.model.pooling import pool_heads
from attnlab.store import run_directories
from attnlab.training import run
from attnlab.training.warm_start import load_parent_weights

torch.set_num_threads(1)
POOL = "convert={_target_:attnlab.model.pooling.pool_heads,_partial_:true,how:mean}"


@pytest.fixture
def parent(compose, make_run_dir, parent_files):
    """A finished run, trained by the first test that needs it."""
    folder = make_run_dir("aaaa", compose("heads=mha", "trainer.max_steps=2"))
    if not parent_files:
        run.run(folder)
        parent_files.update({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
    for name, content in parent_files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def parent_files():
    """The files of the parent, by name."""
    return {}


def load_start_weights(config, folder):
    """Return the weights that a run of this config would start from."""
    model = build_model(config, run_directories.load_run_result(folder).estimate.data["vocab_size"])
    load_parent_weights(model, config, folder.parent)
    return model.state_dict()


def test_a_child_starts_with_the_weights_of_its_parent(compose, parent):
    weights = load_start_weights(compose("heads=mha", f"parent='{parent.name}'"), parent)
    expected = load_file(parent / "model.safetensors")
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name


def test_grouped_heads_start_as_means_of_the_parent_heads(compose, parent):
    weights = load_start_weights(compose("heads=gqa", f"parent='{parent.name}'", POOL), parent)
    expected = pool_heads(load_file(parent / "model.safetensors"), 2, "mean", 0, head_dim=4)
    assert {tuple(weights[name].shape) for name in weights if "qkv" in name} == {(16 + 2 * 8, 16)}
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name


def test_training_starts_from_the_parent(compose, make_run_dir, parent):
    embeddings = []
    for name, line in (("bbbb", [f"parent='{parent.name}'"]), ("cccc", [])):
        folder = make_run_dir(name, compose("trainer.max_steps=1", "optim.lr=1e-9", "optim.min_lr=0", *line))
        run.run(folder)
        embeddings.append(load_file(folder / "model.safetensors")["embedding.weight"])
    parent_embedding = load_file(parent / "model.safetensors")["embedding.weight"]
    assert torch.allclose(embeddings[0], parent_embedding, atol=1e-6)
    assert not torch.allclose(embeddings[1], parent_embedding, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            ["heads=gqa", "parent=aaaa"],
            r"its blocks.0.*qkv.weight has shape \(48, 16\), but this run's has \(32, 16\): set",
        ),
        (["parent=nobody"], "parent=nobody: no finished run"),
        (["model.n_layers=3", "parent=aaaa"], "has no tensor blocks.2"),
        (["model.n_layers=1", "parent=aaaa"], "has a tensor blocks.1.*lacks"),
        (["heads=mla", "parent=aaaa", POOL], "has no n_kv_heads"),
    ],
)
def test_a_mismatched_parent_is_rejected_in_one_line(compose, parent, line, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_start_weights(compose(*(word.replace("aaaa", f"'{parent.name}'") for word in line)), parent)
    assert "\n" not in str(caught.value)


OTHER_VOCABULARIES = {  # case: change of the text, overrides, and part of the message
    "as many characters, not the same": (
        lambda text: text.replace("z", "ß"),
        [],
        r"\(29 of 31 characters shared; only the parent has 'z'; only this run has 'ß'\)",
    ),
    "fewer characters": (
        lambda text: text.replace("q", "k").replace("x", "k"),
        [],
        r"\(28 of 30 characters shared; only the parent has 'q', 'x'\)",
    ),
    "another tokenizer": (
        lambda text: text,
        ["data/tokenizer=byte"],
        r"\(30 tokens \(char\) of book, this run has 256 tokens \(byte\) of book\)",
    ),
}


@pytest.mark.parametrize("case", OTHER_VOCABULARIES)
def test_a_parent_of_another_vocabulary_is_rejected_in_the_check(compose, parent, tmp_path, case):
    change, options, message = OTHER_VOCABULARIES[case]
    config = compose(*options, f"paths.runs={parent.parent}", f"parent='{parent.name}'")
    book = tmp_path / "book.txt"
    book.write_text(change(book.read_text()))
    with pytest.raises(
        InvalidConfig, match=rf"parent={parent.name}: its vocabulary differs from this run's {message}: use"
    ) as caught:
        run.check(config)
    assert "\n" not in str(caught.value)


def test_a_parent_of_another_text_with_the_same_vocabulary_is_accepted(compose, parent, tmp_path):
    other = tmp_path / "other.txt"
    config = compose(f"paths.runs={parent.parent}", f"parent='{parent.name}'", f"data.path={other}")
    other.write_text((tmp_path / "book.txt").read_text()[::-1])
    assert (
        run.check(config)["data"]["sha256"] != run_directories.load_run_result(parent).estimate.data["sha256"]
    )


@pytest.mark.parametrize(
    ("line", "allowed"),
    [("data.val_fraction=0.13", False), ("data.length=20", True)],
)
def test_a_parent_needs_the_same_split_of_its_text(compose, parent, line, allowed):
    config = compose(f"paths.runs={parent.parent}", f"parent='{parent.name}'", line)
    if allowed:
        run.check(config)
        return
    with pytest.raises(
        InvalidConfig,
        match=rf"^parent={parent.name}: its split of book \(\d+ training and \d+ validation tokens\) differs",
    ) as caught:
        run.check(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("known", [True, False])
def test_a_parent_without_a_vocabulary_needs_the_same_data(compose, parent, tmp_path, known):
    """Results of earlier versions lack the vocabulary."""
    result = run_directories.load_run_result(parent)
    facts = {key: value for key, value in result.estimate.data.items() if key != "vocabulary"}
    run_directories.write_run_result(
        parent, result.model_copy(update={"estimate": result.estimate.model_copy(update={"data": facts})})
    )
    (parent / "vocabulary.json").unlink()
    config = compose(f"paths.runs={parent.parent}", f"parent='{parent.name}'")
    if known:
        assert run.check(config)["data"]["vocab_size"] == 30
        return
    book = tmp_path / "book.txt"
    book.write_text(book.read_text()[::-1])
    with pytest.raises(
        InvalidConfig, match=rf"parent={parent.name}: its vocabulary is not recorded, and its data \(book\)"
    ):
        run.check(config)


@pytest.mark.rare
def test_the_command_rejects_it_in_one_line_before_training(compose, parent, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.txt").write_text((tmp_path / "book.txt").read_text().replace("z", "ß"))
    line = [
        "size=debug",
        "logger=none",
        "data=text",
        f"parent='{parent.name}'",
        f"paths.runs={parent.parent}",
        "data.allow_overlap=true",
    ]
    for verb in (["plan"], []):
        assert main([*verb, *line, "data.path=other.txt"]) == 2
        assert (
            capfd.readouterr().err.count(
                f"attnlab: parent={parent.name}: its vocabulary differs from this run's (29 of"
            )
            == 1
        )
    assert [path.name for path in parent.parent.glob("*/spec.json")] == ["spec.json"]


def test_a_conversion_without_a_parent_is_rejected(compose):
    with pytest.raises(ValueError, match="set parent"):
        run.check(compose(POOL))


def test_untrusted_targets_of_a_parent_are_not_built(compose, parent, tmp_path):
    harm = {"_target_": "os.mkdir", "path": str(tmp_path / "harmed")}
    spec, result = run_directories.load_run_config(parent), run_directories.load_run_result(parent)
    config = {**spec.config, "model": {**spec.config["model"], "positions": harm}}
    run_directories.write_run_result(parent, result.model_copy(update={"config": config}))  # never built
    load_start_weights(compose("heads=gqa", f"parent='{parent.name}'", POOL), parent)
    foreign = make_spec(config, estimate=spec.estimate)
    for changed, message in (
        (spec.with_changes(config=config), "spec.json was edited: model.positions"),
        (foreign, "spec.json: model.positions._target_ = os.mkdir: not trusted"),
    ):
        folder = parent.rename(parent.with_name(changed.id))
        write_spec(folder.parent, changed)
        run_directories.write_run_result(folder, result.model_copy(update={"id": changed.id}))
        with pytest.raises(InvalidConfig, match=message):
            load_start_weights(compose("heads=gqa", f"parent='{folder.name}'", POOL), folder)
    assert not (tmp_path / "harmed").exists()


def test_a_parent_with_weights_that_are_not_finite_is_rejected_in_the_check(compose, parent):
    path = parent / "model.safetensors"
    weights = load_file(path)
    weights["norm.weight"][3] = float("nan")
    save_file(weights, path)
    with pytest.raises(
        ValueError, match=rf"^parent={parent.name}: .*norm.weight has 1 NaN or infinite values"
    ) as caught:
        run.check(compose(f"paths.runs={parent.parent}", f"parent='{parent.name}'"))
    assert "\n" not in str(caught.value)
