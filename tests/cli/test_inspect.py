"""`inspect`: strongest links, runs, and Hugging Face folders."""

import json
import re
import shutil
from dataclasses import fields

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from stored_runs import make_spec, write_spec
from untrained import write_untrained

from attnlab.cli.main import main
from attnlab.cli.verbs.inspect import format_strongest_links
from attnlab.measure.attention_maps import compute_attention_maps, encode_weights
from attnlab.model.build import build_model
from attnlab.model.huggingface.conversion import save_hf_model
from attnlab.report.tables.map_archive import PackedMaps, unpack_maps
from attnlab.store import run_directories
from attnlab.store.run_schema import RunResult
from attnlab.training.trained_model import load_run

TEXT = "the quick brown fox"


@pytest.fixture
def run_dir(compose, tmp_path):
    """The run directory of an untrained model."""
    config = compose("heads=gqa", "model.n_heads=4", "model.dim=32")
    return write_untrained(tmp_path / "runs", config)


@pytest.fixture
def hf_dir(tmp_path, compose):
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


@pytest.fixture
def run_inspect(tmp_path, capfd):
    """`run_inspect(line)`: inspect a text, into `tmp_path`; return stdout."""

    def call(line, text=TEXT):
        assert main(["inspect", *line.split(), f"text={text}", f"to={tmp_path}"]) == 0
        return capfd.readouterr().out

    return call


@pytest.fixture
def load_page(tmp_path):
    """`load_page()`: the page and its data."""

    def call():
        page = (tmp_path / "inspect.html").read_text("utf-8")
        return page, json.loads(page.split('id="data">')[1].split("</script>")[0])

    return call


def test_strongest_links_are_the_largest_weights_in_order():
    weights = np.zeros((2, 2, 3, 3))
    weights[:, :, 0, 0] = 1
    weights[1, 0, 2] = [0.7, 0.0, 0.3]
    weights[0, 1, 2] = [0.1, 0.9, 0.0]
    lines = format_strongest_links(weights, [*"abc"], None, None, top=2).splitlines()
    assert lines[3].split("-> ")[1] == '0.900 "b"@1 (0.1)   0.700 "a"@0 (1.0)'
    lines = format_strongest_links(weights, [*"abc"], 1, 0).splitlines()
    assert lines[3].split("-> ")[1] == '0.700 "a"@0   0.300 "c"@2'
    assert lines[2].endswith("-> ")


def test_run_is_shown_in_terminal_page_and_pictures(run_dir, run_inspect, load_page, tmp_path):
    output = run_inspect(f"run={run_dir.name[:5]} runs={run_dir.parent}")
    assert output.count("->") == len(TEXT)
    page, data = load_page()
    assert "could not be drawn" not in page
    title = f"Attention of {run_dir.name} on “{TEXT}”"
    assert f"<title>{title} · attnlab</title>" in page
    assert f"<h1>{title}</h1>" in page
    headers = {*re.findall(r"<th scope=\"col\"[^>]*>([^<]+)</th>", page)}
    assert "max |eager − fused|" in headers
    assert not {"arm", "seed range", "runs", run_dir.name} & headers, "columns that compare runs"
    assert "".join(data["maps"][0]["tokens"]) == TEXT
    assert {score["name"] for score in data["scores"]} >= {"previous", "sink"}
    assert {path.name for path in tmp_path.glob("*.png")} == {"layer0.png", "layer1.png"}
    with Image.open(tmp_path / "layer0.png") as image:
        assert image.size[0] > 600


@pytest.mark.usefixtures("blank_charts")
def test_character_of_several_bytes_is_shown_once(compose, tmp_path, run_inspect, load_page):
    folder = write_untrained(tmp_path / "runs", compose("data/tokenizer=byte"))
    first, *lines = run_inspect(f"checkpoint={folder} top=1", "né…").splitlines()
    assert first.endswith("; ‹ continues the character of the token before")
    tokens = [*"né‹…‹‹"]
    assert [line.split()[1] for line in lines[:6]] == [f'"{token}"' for token in tokens]
    assert load_page()[1]["maps"][0]["tokens"] == tokens


@pytest.mark.usefixtures("blank_charts")
def test_experiment_run_is_found_and_the_page_opens_at_the_selected_head(
    run_dir, run_inspect, refuse, load_page
):
    spec = run_directories.load_run_config(run_dir)
    retrained = make_spec(spec.config, "other code", spec.estimate)
    other = shutil.copytree(run_dir, run_dir.with_name(retrained.id))
    for folder, labeled, day, size in ((run_dir, spec, 2, "S"), (other, retrained, 1, "debug")):
        write_spec(folder.parent, labeled.with_provenance(axes={"size": size}))
        record = RunResult(
            id=folder.name, status="done", seed=0, config=spec.config, metrics={"val/loss": 2.0},
            started=f"2026-01-0{day}T00:00:00+00:00",
        )  # fmt: skip
        run_directories.write_run_result(folder, record)
    words = f"experiment=exam arm=mha runs={run_dir.parent}"
    lines = run_inspect(f"{words} seed=0 layer=1 head=2").splitlines()
    assert lines[:2] == [
        f"run {run_dir.name}: mha, seed 0, size=S",
        f"also finished: run={other.name}, size=debug",
    ]
    page, data = load_page()
    assert data["start"] == {"arm": run_dir.name, "seed": 0, "layer": 1, "head": 2}
    assert page.index('class="text"') < page.index("<canvas")
    assert run_inspect(f"{words} size=debug").startswith(f"run {other.name}: mha, seed 0, size=debug\n")
    first = f"size={'S' if run_dir.name < other.name else 'debug'}"
    for more, messages in {
        "seed=20": (
            "runs has no finished run of exam, arm mha, seed=20; "
            f"finished seeds: 0, {first}: use seed=0 {first}, "
            f"or train it with python -m attnlab +experiment=exam seed=20 {first}\n",
        ),
        "size=debug seed=20": (
            "seeds: 0, size=debug: use seed=0 size=debug, or train it with ",
            "+experiment=exam seed=20 size=debug\n",
        ),
        # another size than the stored ones
        "size=M": (f"use seed=0 {first}, or train it with ", "+experiment=exam size=M\n"),
        "sise=debug": ("sise=debug: not an axis or key of the run",),
    }.items():
        refuse(f"inspect {words} text=a {more}", *messages)


@pytest.mark.usefixtures("blank_charts")
def test_hugging_face_folder_is_read_with_its_own_tokenizer(hf_dir, run_inspect):
    lines = [line for line in run_inspect(f"checkpoint={hf_dir}").splitlines() if "->" in line]
    assert [line.split('"')[1] for line in lines] == TEXT.split()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("line", "message"),
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
def test_invalid_arguments_are_one_line_with_exit_2(request, refuse, line, message):
    folders = {name: request.getfixturevalue(name) for name in ("run_dir", "hf_dir") if f"{{{name}" in line}
    if "hf_dir" in folders:
        (folders["hf_dir"] / "tokenizer.json").unlink()
    refuse(f"inspect {line.format(**folders)}", message)


@pytest.mark.usefixtures("blank_charts")
def test_page_maps_equal_the_models_and_a_selected_head_replaces_the_other_pictures(
    run_dir, tmp_path, run_inspect, load_page
):
    weights = run_dir / "model.safetensors"
    run_inspect(f"checkpoint={weights}")
    [packed, *_] = load_page()[1]["maps"]
    run = load_run(run_dir)
    maps = compute_attention_maps(run.model, torch.tensor([run.encode(TEXT)]))
    packed = PackedMaps(**{field.name: packed[field.name] for field in fields(PackedMaps)})
    np.testing.assert_array_equal(unpack_maps(packed)[0], encode_weights(maps.weights))
    run_inspect(f"checkpoint={weights} layer=1 head=2")
    assert [path.name for path in tmp_path.glob("*.png")] == ["layer1_head2.png"]


@pytest.mark.parametrize("folder", ["run_dir", "hf_dir"])
@pytest.mark.parametrize("verb", [f"inspect text='{TEXT}'", "generate prompt='the quick'"])
def test_weights_that_are_not_finite_are_one_line(folder, verb, request, refuse):
    path = request.getfixturevalue(folder) / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("norm.weight"))
    weights[name][0] = float("inf")
    save_file(weights, path)
    refuse(f"{verb} checkpoint={path}", f"{name} has 1 NaN or infinite values of 32")
