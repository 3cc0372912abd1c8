"""A child starts where its parent ended, or says in one line why it cannot."""

import pytest
import torch
from safetensors.torch import load_file

from attnlab.cli.main import main
from attnlab.errors import Refused
from attnlab.model.build import build_model
from attnlab.model.pooling import pool_heads
from attnlab.store import runs
from attnlab.training import run
from attnlab.training.parent import load_parent

torch.set_num_threads(1)
POOL = "convert={_target_:attnlab.model.pooling.pool_heads,_partial_:true,how:mean}"


@pytest.fixture
def parent(compose, store, trained):
    """A run that has ended; trained by the first test that asks."""
    folder = store("aaaa", compose("heads=mha", "trainer.max_steps=2"))
    if not trained:
        run.run(folder)
        trained.update({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
    for name, content in trained.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def trained():
    """The files of the parent, by name."""
    return {}


def start(config, folder):
    """The weights that a run of this config would start from."""
    model = build_model(config, runs.record(folder).estimate.data["vocab_size"])
    load_parent(model, config, folder.parent)
    return model.state_dict()


def test_a_child_starts_with_its_parents_bits(compose, parent):
    found = start(compose("heads=mha", "parent=aaaa"), parent)
    wanted = load_file(parent / "model.safetensors")
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_grouped_heads_start_as_the_means_of_their_parents(compose, parent):
    found = start(compose("heads=gqa", "parent=aaaa", POOL), parent)
    wanted = pool_heads(load_file(parent / "model.safetensors"), 2, "mean", 0, head_dim=4)
    assert {tuple(found[name].shape) for name in found if "qkv" in name} == {(16 + 2 * 8, 16)}
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_training_a_child_changes_what_it_ends_with(compose, store, parent):
    ends = []
    for name, line in (("bbbb", ["parent=aaaa"]), ("cccc", [])):
        folder = store(name, compose("trainer.max_steps=1", "optim.lr=1e-9", "optim.min_lr=0", *line))
        run.run(folder)
        ends.append(load_file(folder / "model.safetensors")["embedding.weight"])
    mother = load_file(parent / "model.safetensors")["embedding.weight"]
    assert torch.allclose(ends[0], mother, atol=1e-6)
    assert not torch.allclose(ends[1], mother, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            ["heads=gqa", "parent=aaaa"],
            r"its blocks.0.*qkv.weight is \(48, 16\), this run has \(32, 16\); set",
        ),
        (["parent=nobody"], "parent=nobody: there is no finished run of that id"),
        (["model.n_layers=3", "parent=aaaa"], "parent=aaaa has no blocks.2"),
        (["model.n_layers=1", "parent=aaaa"], "parent=aaaa has blocks.1.*no place"),
        (["heads=mla", "parent=aaaa", POOL], "has no n_kv_heads"),
    ],
)
def test_a_parent_that_does_not_fit_is_refused_in_one_line(compose, parent, line, told):
    with pytest.raises(ValueError, match=told) as caught:
        start(compose(*line), parent)
    assert "\n" not in str(caught.value)


OTHER = {  # how the text of a child differs, its options, and how the message describes it
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


@pytest.mark.parametrize("what", OTHER)
def test_a_parent_of_another_vocabulary_is_refused_when_planned(compose, parent, tmp_path, what):
    change, options, told = OTHER[what]
    config = compose(*options, f"paths.runs={parent.parent}", "parent=aaaa")
    book = tmp_path / "book.txt"
    book.write_text(change(book.read_text()))
    with pytest.raises(
        Refused, match=rf"parent=aaaa: its vocabulary differs from this run's {told}: use"
    ) as caught:
        run.check(config)
    assert "\n" not in str(caught.value)


def test_a_parent_of_other_data_with_its_vocabulary_is_taken(compose, parent, tmp_path):
    book = tmp_path / "book.txt"
    config = compose(f"paths.runs={parent.parent}", "parent=aaaa", "data.length=20")
    book.write_text(book.read_text()[::-1])
    assert run.check(config)["data"]["sha256"] != runs.record(parent).estimate.data["sha256"]


@pytest.mark.parametrize("known", [True, False])
def test_of_a_parent_without_a_record_of_its_vocabulary_the_same_data_alone_are_taken(
    compose, parent, tmp_path, known
):
    """As earlier versions left runs."""
    record = runs.record(parent)
    facts = {key: value for key, value in record.estimate.data.items() if key != "vocabulary"}
    runs.write_record(
        parent, record.model_copy(update={"estimate": record.estimate.model_copy(update={"data": facts})})
    )
    (parent / "vocabulary.json").unlink()
    config = compose(f"paths.runs={parent.parent}", "parent=aaaa")
    if known:
        assert run.check(config)["data"]["vocab_size"] == 30
        return
    book = tmp_path / "book.txt"
    book.write_text(book.read_text()[::-1])
    with pytest.raises(
        Refused, match=r"parent=aaaa: it has no record of its vocabulary, and its data \(book\)"
    ):
        run.check(config)


@pytest.mark.rare
def test_the_command_refuses_it_in_a_line_before_any_training(compose, parent, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.txt").write_text((tmp_path / "book.txt").read_text().replace("z", "ß"))
    line = ["size=debug", "logger=none", "data=text", "parent=aaaa", f"paths.runs={parent.parent}"]
    for verb in (["plan"], []):
        assert main([*verb, *line, "data.path=other.txt"]) == 2
        assert (
            capfd.readouterr().err.count(
                "attnlab: parent=aaaa: its vocabulary differs from this run's (29 of"
            )
            == 1
        )
    assert [path.name for path in parent.parent.glob("*/spec.json")] == ["spec.json"]


def test_a_conversion_without_a_parent_is_refused(compose):
    with pytest.raises(ValueError, match="set parent"):
        run.check(compose(POOL))


def test_of_a_strangers_parent_nothing_is_run(compose, parent, tmp_path):
    record = runs.record(parent)
    harm = {"_target_": "os.mkdir", "path": str(tmp_path / "harmed")}
    config = {**record.config, "model": {**record.config["model"], "positions": harm}}
    runs.write_record(parent, record.model_copy(update={"config": config}))
    with pytest.raises(ValueError, match=r"run.json: model.positions._target_ = os.mkdir"):
        start(compose("heads=gqa", "parent=aaaa", POOL), parent)
    assert not (tmp_path / "harmed").exists()
