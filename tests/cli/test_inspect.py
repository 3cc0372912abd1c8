"""`inspect`: strongest links, runs, and Hugging Face folders."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from stored_runs import make_spec, write_spec
from untrained import write_untrained

from attnlab.cli.main import main
from attnlab.cli.verbs.inspect import format_strongest_links
from attnlab.model.build import build_model, instantiate_config
from attnlab.model.huggingface.conversion import save_hf_model
from attnlab.store import run_directories
from attnlab.store.run_schema import RunResult

TEXT = "the quick brown fox"


@pytest.fixture
def run_dir(compose: Callable[..., Any], tmp_path: Path) -> Path:
    """The run directory of an untrained model."""
    config = compose("heads=gqa", "model.n_heads=4", "model.dim=32")
    return write_untrained(tmp_path / "runs", config)


@pytest.fixture
def hf_dir(tmp_path: Path, compose: Callable[..., Any]) -> Path:
    """A Hugging Face folder whose tokenizer has four words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "the": 1, "quick": 2, "brown": 3, "fox": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = compose("model=llama", "heads=gqa", "model.n_heads=4", "model.dim=32")
    folder = tmp_path / "theirs"
    save_hf_model(folder, build_model(config, len(words)), config["model"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def run_inspect(*arguments: str) -> int:
    return main(["inspect", *arguments])


def test_strongest_links_are_the_largest_weights_in_order() -> None:
    weights = np.zeros((2, 2, 3, 3))
    weights[:, :, 0, 0] = 1
    weights[1, 0, 2] = [0.7, 0.0, 0.3]
    weights[0, 1, 2] = [0.1, 0.9, 0.0]
    output = format_strongest_links(weights, ["a", "b", "c"], None, None, top=2).splitlines()
    assert output[3].split("-> ")[1] == '0.900 "b"@1 (0.1)   0.700 "a"@0 (1.0)'
    single_head = format_strongest_links(weights, ["a", "b", "c"], 1, 0).splitlines()
    assert single_head[3].split("-> ")[1] == '0.700 "a"@0   0.300 "c"@2'
    assert single_head[2].endswith("-> ")


def test_run_is_shown_in_terminal_page_and_pictures(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run_inspect(
            f"run={run_dir.name[:5]}", f"runs={run_dir.parent}", f"text={TEXT}", f"to={tmp_path / 'out'}"
        )
        == 0
    )
    output = capsys.readouterr().out.splitlines()
    assert len([line for line in output if "->" in line]) == len(TEXT)
    page = (tmp_path / "out" / "inspect.html").read_text("utf-8")
    assert "could not be drawn" not in page
    title = f"Attention of {run_dir.name} on “{TEXT}”"
    assert f"<title>{title} · attnlab</title>" in page
    assert f"<h1>{title}</h1>" in page
    headers = re.findall(r"<th scope=\"col\"[^>]*>([^<]+)</th>", page)
    assert "max |eager − fused|" in headers
    assert not {"arm", "seed range", "runs", run_dir.name} & {*headers}, "columns that compare runs"
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert "".join(data["maps"][0]["tokens"]) == TEXT
    assert {score["name"] for score in data["scores"]} >= {"previous", "sink"}
    pictures = sorted((tmp_path / "out").glob("*.png"))
    assert [path.name for path in pictures] == [
        f"layer{i}.png" for i in range(len(data["maps"][0]["layers"]))
    ]
    with Image.open(pictures[0]) as image:
        assert image.size[0] > 600


@pytest.mark.usefixtures("blank_charts")
def test_character_of_several_bytes_is_shown_once(
    compose: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_untrained(tmp_path / "runs", compose("data/tokenizer=byte"))
    assert run_inspect(f"checkpoint={folder}", "text=né…", f"to={tmp_path / 'out'}", "top=1") == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0].endswith("; ‹ continues the character of the token before")
    assert [line.split()[1] for line in output[1:7]] == ['"n"', '"é"', '"‹"', '"…"', '"‹"', '"‹"']
    page = (tmp_path / "out" / "inspect.html").read_text("utf-8")
    assert '"tokens":["n","é","‹","…","‹","‹"]' in page


@pytest.mark.usefixtures("blank_charts")
def test_run_is_opened_by_its_weights_file(run_dir: Path, tmp_path: Path) -> None:
    assert (
        run_inspect(f"checkpoint={run_dir / 'model.safetensors'}", f"text={TEXT}", f"to={tmp_path / 'out'}")
        == 0
    )
    assert (tmp_path / "out" / "inspect.html").is_file()


@pytest.mark.usefixtures("blank_charts")
def test_experiment_run_is_found_and_the_page_opens_at_the_selected_head(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = run_directories.load_run_config(run_dir)
    retrained = make_spec(spec.config, "other code", spec.estimate)
    other = run_dir.parent / retrained.id
    shutil.copytree(run_dir, other)
    for folder, day, axes in ((run_dir, 2, {"size": "S"}), (other, 1, {"size": "debug"})):
        labeled = spec if folder == run_dir else retrained
        write_spec(folder.parent, labeled.with_provenance(axes=axes))
        record = RunResult(
            id=folder.name, status="done", seed=0, config=spec.config, metrics={"val/loss": 2.0},
            started=f"2026-01-0{day}T00:00:00+00:00",
        )  # fmt: skip
        run_directories.write_run_result(folder, record)
    arguments = [
        "experiment=exam",
        "arm=mha",
        f"runs={run_dir.parent}",
        f"text={TEXT}",
        f"to={tmp_path / 'out'}",
    ]
    assert run_inspect(*arguments, "seed=0", "layer=1", "head=2") == 0
    output = capsys.readouterr().out.splitlines()
    assert output[:2] == [
        f"run {run_dir.name}: mha, seed 0, size=S",
        f"also finished: run={other.name}, size=debug",
    ]
    page = (tmp_path / "out" / "inspect.html").read_text("utf-8")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["start"] == {"arm": run_dir.name, "seed": 0, "layer": 1, "head": 2}
    assert page.index('class="text"') < page.index("<canvas")
    assert run_inspect(*arguments, "size=debug") == 0
    assert capsys.readouterr().out.startswith(f"run {other.name}: mha, seed 0, size=debug\n")
    assert run_inspect(*arguments, "seed=20") == 2
    output = capsys.readouterr().err
    sizes = {run_dir.name: "S", other.name: "debug"}
    first = f"size={sizes[min(sizes)]}"
    assert (
        "runs has no finished run of exam, arm mha, seed=20; "
        f"finished seeds: 0, {first}: use seed=0 {first}, "
        f"or train it with python -m attnlab +experiment=exam seed=20 {first}\n"
    ) in output
    assert run_inspect(*arguments, "size=debug", "seed=20") == 2
    output = capsys.readouterr().err
    assert "seeds: 0, size=debug: use seed=0 size=debug, or train it with " in output
    assert output.endswith("+experiment=exam seed=20 size=debug\n")
    assert run_inspect(*arguments, "size=M") == 2
    output = capsys.readouterr().err
    assert f"use seed=0 {first}, or train it with " in output, "another size than the stored ones"
    assert output.endswith("+experiment=exam size=M\n")
    assert run_inspect(*arguments, "sise=debug") == 2
    assert "sise=debug: not an axis or key of the run" in capsys.readouterr().err


@pytest.mark.usefixtures("blank_charts")
def test_selected_head_replaces_the_other_pictures(run_dir: Path, tmp_path: Path) -> None:
    for selection in ([], ["layer=1", "head=2"]):
        assert run_inspect(f"checkpoint={run_dir}", f"text={TEXT}", f"to={tmp_path}", *selection) == 0
    assert [path.name for path in tmp_path.glob("*.png")] == ["layer1_head2.png"]


@pytest.mark.usefixtures("blank_charts")
def test_hugging_face_folder_is_read_with_its_own_tokenizer(
    hf_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_inspect(f"checkpoint={hf_dir}", f"text={TEXT}", f"to={tmp_path / 'out'}") == 0
    output = [line for line in capsys.readouterr().out.splitlines() if "->" in line]
    assert [line.split('"')[1] for line in output] == TEXT.split()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "inspect needs text=, and one of run=, checkpoint= and experiment="),
        ("text=a run=x checkpoint=y", "one of run=, checkpoint= and experiment="),
        ("text=a run=x seed=1", "add experiment=NAME"),
        ("text=a experiment=exam runs=nowhere", "experiment=exam needs an arm: add arm=NAME"),
        ("text=a experiment=exam 'runs={run_dir.parent}'", "add arm=mha"),
        (
            "text=a experiment=exam arm=mha seed=3 'runs={run_dir.parent}'",
            "train it with python -m attnlab +experiment=exam seed=3",
        ),
        (
            "text=a experiment=exam arm=gqa 'runs={run_dir.parent}'",
            "train it with python -m attnlab +experiment=exam\n",
        ),
        ("text=a experiment=exam arm=mah 'runs={run_dir.parent}'", "(nearest: mha)"),
        ("txt=a", "unknown word 'txt=a' (nearest: text)"),
        ("'run=../{run_dir.name}' text=a 'runs={run_dir}'", "no runs in"),
        ("'run=*' text=a 'runs={run_dir.parent}'", "no runs in"),
        ("run=none text=a runs=nowhere", "no runs in nowhere"),
        ("'checkpoint={run_dir}' text=a layer=9", "layer=9: must be an integer from 0 to 1"),
        ("'checkpoint={run_dir}' text=", "text is empty"),
        ("'checkpoint={run_dir}' 'text=☃'", "is not among the"),
        ("'checkpoint={run_dir}/..' text=a", "has neither spec.json"),
        ("'checkpoint={hf_dir}' text=a", "has no tokenizer.json"),
    ],
)
def test_invalid_arguments_are_one_line_with_exit_2(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    fixture_names = [name for name in ("run_dir", "hf_dir") if any(f"{{{name}" in word for word in arguments)]
    folders = {name: request.getfixturevalue(name) for name in fixture_names}
    if "hf_dir" in folders:
        (folders["hf_dir"] / "tokenizer.json").unlink()
    assert run_inspect(*(word.format(**folders) for word in arguments)) == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1


def test_truncated_or_missing_weights_are_rejected(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = run_dir / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    assert run_inspect(f"checkpoint={run_dir}", "text=a") == 2
    assert "cannot be loaded" in capsys.readouterr().err
    weights.unlink()
    assert run_inspect(f"checkpoint={run_dir}", "text=a") == 2


@pytest.mark.usefixtures("blank_charts")
def test_page_maps_equal_the_models(run_dir: Path, tmp_path: Path) -> None:
    from attnlab.measure.attention_maps import compute_attention_maps, encode_weights
    from attnlab.report.tables.map_archive import PackedMaps, unpack_maps

    assert run_inspect(f"checkpoint={run_dir}", f"text={TEXT}", f"to={tmp_path}") == 0
    page = (tmp_path / "inspect.html").read_text("utf-8")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    config = json.loads((run_dir / "spec.json").read_text())["config"]
    task = instantiate_config(config["data"]).task
    model = build_model(config, task.vocab_size)
    maps = compute_attention_maps(model, torch.tensor([list(task.encode(TEXT))]))
    packed = PackedMaps(**{field.name: data["maps"][0][field.name] for field in fields(PackedMaps)})
    np.testing.assert_array_equal(unpack_maps(packed)[0], encode_weights(maps.weights))


@pytest.mark.parametrize("folder", ["run_dir", "hf_dir"])
@pytest.mark.parametrize("verb", [["inspect", f"text={TEXT}"], ["generate", "prompt=the quick"]])
def test_weights_that_are_not_finite_are_one_line(
    folder: str, verb: list[str], request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    path = request.getfixturevalue(folder) / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("norm.weight"))
    weights[name][0] = float("inf")
    save_file(weights, path)
    assert main([*verb, f"checkpoint={path}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{name} has 1 NaN or infinite values of 32" in line
