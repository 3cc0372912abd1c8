"""`inspect`: the strongest links are the largest weights; runs and foreign folders open alike."""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from untrained import write_untrained

from attnlab.cli.main import main
from attnlab.cli.verbs.inspect import links
from attnlab.model.build import build_model, make
from attnlab.model.huggingface.convert import save
from attnlab.store import runs
from attnlab.store.schema import RunRecord

TEXT = "the quick brown fox"


@pytest.fixture
def ours(compose: Callable[..., Any], tmp_path: Path) -> Path:
    """A run as training leaves it, but for the training."""
    config = compose("heads=gqa", "model.n_heads=4", "model.dim=32")
    return write_untrained(tmp_path / "runs", "abc0123456789def", config)


@pytest.fixture
def theirs(tmp_path: Path, compose: Callable[..., Any]) -> Path:
    """A Hugging Face folder with a tokenizer of four words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "the": 1, "quick": 2, "brown": 3, "fox": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = compose("model=llama", "heads=gqa", "model.n_heads=4", "model.dim=32")
    folder = tmp_path / "theirs"
    save(folder, build_model(config, len(words)), config["model"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def run(*arguments: str) -> int:
    return main(["inspect", *arguments])


def test_the_strongest_links_are_the_largest_weights_in_order() -> None:
    weights = np.zeros((2, 2, 3, 3))
    weights[:, :, 0, 0] = 1
    weights[1, 0, 2] = [0.7, 0.0, 0.3]
    weights[0, 1, 2] = [0.1, 0.9, 0.0]
    said = links(weights, ["a", "b", "c"], None, None, top=2).splitlines()
    assert said[3].split("-> ")[1] == '0.900 "b"@1 (0.1)   0.700 "a"@0 (1.0)'
    alone = links(weights, ["a", "b", "c"], 1, 0).splitlines()
    assert alone[3].split("-> ")[1] == '0.700 "a"@0   0.300 "c"@2'
    assert alone[2].endswith("-> ")


def test_a_run_is_looked_at_in_the_terminal_as_a_page_and_as_pictures(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"run={ours.name[:5]}", f"runs={ours.parent}", f"text={TEXT}", f"to={tmp_path / 'out'}") == 0
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if "->" in line]) == len(TEXT)
    page = (tmp_path / "out" / "inspect.html").read_text("utf-8")
    assert "could not be drawn" not in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert "".join(data["maps"][0]["tokens"]) == TEXT
    assert {score["name"] for score in data["scores"]} >= {"previous", "sink"}
    pictures = sorted((tmp_path / "out").glob("*.png"))
    assert [path.name for path in pictures] == [
        f"layer{i}.png" for i in range(len(data["maps"][0]["layers"]))
    ]
    with Image.open(pictures[0]) as image:
        assert image.size[0] > 600


@pytest.mark.usefixtures("blank")
def test_a_run_is_opened_by_its_weights_too(ours: Path, tmp_path: Path) -> None:
    assert run(f"checkpoint={ours / 'model.safetensors'}", f"text={TEXT}", f"to={tmp_path / 'out'}") == 0
    assert (tmp_path / "out" / "inspect.html").is_file()


@pytest.mark.usefixtures("blank")
def test_the_run_of_an_experiment_is_found_and_its_page_opens_at_the_head_asked_for(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = runs.spec(ours)
    other = ours.parent / "fff0123456789def"
    shutil.copytree(ours, other)
    for folder, day, axes in ((ours, 2, {"size": "S"}), (other, 1, {"size": "debug"})):
        known = spec.used(axes=axes).but(id=folder.name)
        (folder / "spec.json").write_text(json.dumps(known.plain()))
        record = RunRecord(
            id=folder.name, status="done", seed=0, config=spec.config, metrics={"val/loss": 2.0},
            started=f"2026-01-0{day}T00:00:00+00:00",
        )  # fmt: skip
        runs.write_record(folder, record)
    asked = ["experiment=exam", "arm=mha", f"runs={ours.parent}", f"text={TEXT}", f"to={tmp_path / 'out'}"]
    assert run(*asked, "seed=0", "layer=1", "head=2") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [f"run {ours.name}: mha, seed 0, size=S", f"there is run={other.name} too: size=debug"]
    page = (tmp_path / "out" / "inspect.html").read_text("utf-8")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["start"] == {"arm": ours.name, "seed": 0, "layer": 1, "head": 2}
    assert page.index('class="text"') < page.index("<canvas")
    assert run(*asked, "size=debug") == 0
    assert capsys.readouterr().out.startswith(f"run {other.name}: mha, seed 0, size=debug\n")
    assert run(*asked, "seed=20") == 2
    said = capsys.readouterr().err
    assert f"no finished run of exam, arm mha, seed=20 in {ours.parent}; finished seeds: 0; train" in said
    assert run(*asked, "sise=debug") == 2
    assert "sise=debug: no axis of the run" in capsys.readouterr().err


@pytest.mark.usefixtures("blank")
def test_one_head_gets_a_picture_of_its_own_and_loses_the_others(ours: Path, tmp_path: Path) -> None:
    for more in ([], ["layer=1", "head=2"]):
        assert run(f"checkpoint={ours}", f"text={TEXT}", f"to={tmp_path}", *more) == 0
    assert [path.name for path in tmp_path.glob("*.png")] == ["layer1_head2.png"]


@pytest.mark.usefixtures("blank")
def test_a_hugging_face_folder_is_read_with_its_own_tokenizer(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"checkpoint={theirs}", f"text={TEXT}", f"to={tmp_path / 'out'}") == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "->" in line]
    assert [line.split('"')[1] for line in said] == TEXT.split()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "inspect needs text=, and one of run=, checkpoint= and experiment="),
        (["text=a", "run=x", "checkpoint=y"], "one of run=, checkpoint= and experiment="),
        (["text=a", "run=x", "seed=1"], "add experiment=NAME"),
        (["text=a", "experiment=exam", "runs=nowhere"], "experiment=exam of which arm? Add arm=NAME"),
        (["text=a", "experiment=exam", "runs={ours.parent}"], "Add arm=mha"),
        (
            ["text=a", "experiment=exam", "arm=mha", "seed=3", "runs={ours.parent}"],
            "train its runs with: python -m attnlab +experiment=exam seed=3",
        ),
        (
            ["text=a", "experiment=exam", "arm=gqa", "runs={ours.parent}"],
            "train its runs with: python -m attnlab +experiment=exam\n",
        ),
        (["text=a", "experiment=exam", "arm=mah", "runs={ours.parent}"], "(nearest: mha)"),
        (["txt=a"], "does not know 'txt=a' (nearest: text)"),
        (["run=../{ours.name}", "text=a", "runs={ours}"], "no runs of that name in"),
        (["run=*", "text=a", "runs={ours.parent}"], "no runs of that name in"),
        (["run=none", "text=a", "runs=nowhere"], "no runs of that name in nowhere"),
        (["checkpoint={ours}", "text=a", "layer=9"], "layer=9: it must be a whole number from 0 to 1"),
        (["checkpoint={ours}", "text="], "text is empty"),
        (["checkpoint={ours}", "text=\N{SNOWMAN}"], "is not among the"),
        (["checkpoint={ours}/..", "text=a"], "has neither spec.json"),
        (["checkpoint={theirs}", "text=a"], "has no tokenizer.json"),
    ],
)
def test_what_cannot_be_inspected_is_refused_in_one_line(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    needed = [name for name in ("ours", "theirs") if any(f"{{{name}" in word for word in arguments)]
    folders = {name: request.getfixturevalue(name) for name in needed}
    if "theirs" in folders:
        (folders["theirs"] / "tokenizer.json").unlink()
    assert run(*(word.format(**folders) for word in arguments)) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_a_run_cut_short_is_refused(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = ours / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    assert run(f"checkpoint={ours}", "text=a") == 2
    assert "cannot be loaded" in capsys.readouterr().err
    weights.unlink()
    assert run(f"checkpoint={ours}", "text=a") == 2


@pytest.mark.usefixtures("blank")
def test_the_maps_are_those_of_the_model(ours: Path, tmp_path: Path) -> None:
    from attnlab.measure.maps import attention_maps, encode
    from attnlab.report.tables.maps import PackedMaps, decode

    assert run(f"checkpoint={ours}", f"text={TEXT}", f"to={tmp_path}") == 0
    page = (tmp_path / "inspect.html").read_text("utf-8")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    config = json.loads((ours / "spec.json").read_text())["config"]
    task = make(config["data"]).task
    model = build_model(config, task.vocab_size)
    maps = attention_maps(model, torch.tensor([list(task.encode(TEXT))]))
    packed = PackedMaps(**{field.name: data["maps"][0][field.name] for field in fields(PackedMaps)})
    np.testing.assert_array_equal(decode(packed)[0], encode(maps.weights))
