"""A rotation is read as `transformers` reads it, however written; what contradicts itself is refused."""

import json

import pytest
import torch
from test_huggingface import CASES, LLAMAS, edit, theirs
from transformers import AutoModelForCausalLM, LlamaConfig

from attnlab.model.huggingface.convert import load, save

DEFAULT = {"rope_type": "default"}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 11}
FREQUENCIES = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, **FREQUENCIES}
THETA, TRAINED = {"rope_theta": 5000.0}, {"original_max_position_embeddings": 11}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    theirs(CASES["llama"], folder)
    return folder


@pytest.fixture
def rotated(written, tmp_path):
    """`rotated(**keys)`: a folder whose config says nothing of its rotation but these keys."""

    def make(**keys):
        (tmp_path / "model.safetensors").write_bytes((written / "model.safetensors").read_bytes())
        config = json.loads((written / "config.json").read_text())
        del config["rope_parameters"], config["max_position_embeddings"]
        (tmp_path / "config.json").write_text(json.dumps(config | keys))
        return tmp_path

    return make


@torch.no_grad()
def difference(folder):
    tokens = torch.randint(0, 31, (3, 13), generator=torch.Generator().manual_seed(1))
    want = AutoModelForCausalLM.from_pretrained(folder).eval()(tokens).logits
    return (load(folder)[1](tokens) - want).abs().max()


def refusal(folder):
    with pytest.raises(ValueError, match=r"config\.json") as refused:
        load(folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_older_spelling_means_the_same(rotated):
    tokens = torch.arange(13)[None]
    old = load(rotated(rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 2.0}))[1](tokens)
    new = load(rotated(rope_parameters={"rope_type": "linear", "factor": 2.0, **THETA}, rope_scaling=None))
    assert torch.equal(new[1](tokens), old)


@torch.no_grad()
def test_the_scaling_of_llama_3_is_theirs(tmp_path):
    tokens = torch.arange(13)[None]
    model = theirs(LlamaConfig(**LLAMAS | {"rope_parameters": LLAMA3 | THETA | TRAINED}), tmp_path / "theirs")
    config, ours = load(tmp_path / "theirs")
    want, plain = model(tokens).logits, theirs(LlamaConfig(**LLAMAS))(tokens).logits
    assert (ours(tokens) - want).abs().max() < 1e-6 < 1e-4 < (plain - want).abs().max()
    save(tmp_path / "ours", ours, config)
    assert load(tmp_path / "ours")[0] == config


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": LINEAR, "rope_parameters": LINEAR | THETA, **THETA},
        {"rope_scaling": LINEAR | THETA, "rope_parameters": {"type": "linear", "factor": 4} | THETA},
        {"rope_scaling": LINEAR | THETA},
        {"rope_scaling": {}, "rope_parameters": LINEAR | THETA},
        {"rope_scaling": LINEAR, "rope_parameters": {}, **THETA},
        {"rope_scaling": {"type": "linear", **LINEAR}},
        {"rope_parameters": DEFAULT, **THETA},
        {"rope_scaling": LLAMA3 | TRAINED, "rope_parameters": LLAMA3 | TRAINED},
    ],
)
def test_what_is_written_twice_and_agrees_is_read_as_theirs(rotated, keys):
    assert difference(rotated(**keys)) < 1e-6


@pytest.mark.parametrize(
    ("keys", "one", "other"),
    [
        (
            {"rope_scaling": YARN, "rope_parameters": DEFAULT | THETA},
            "rope_scaling.rope_type = 'yarn'",
            "rope_parameters.rope_type = 'default'",
        ),
        (
            {"rope_scaling": {"factor": 4.0}, "rope_parameters": LINEAR},
            "rope_scaling.rope_type = 'default'",
            "rope_parameters.rope_type = 'linear'",
        ),
        (
            {"rope_scaling": LINEAR, "rope_parameters": LINEAR | {"factor": 2.0}},
            "rope_scaling.factor = 4.0",
            "rope_parameters.factor = 2.0",
        ),
        (
            {"rope_parameters": DEFAULT | THETA, "rope_theta": 700.0},
            "rope_parameters.rope_theta = 5000.0",
            "rope_theta = 700.0",
        ),
        (
            {"rope_scaling": LINEAR | {"rope_theta": 700.0}, **THETA},
            "rope_scaling.rope_theta = 700.0",
            "rope_theta = 5000.0",
        ),
        (
            {"rope_scaling": LINEAR, "rope_parameters": LINEAR | THETA},
            "rope_scaling.rope_theta (left out) = 10000.0",
            "rope_parameters.rope_theta = 5000.0",
        ),
        (
            {"rope_scaling": LLAMA3, "rope_parameters": LLAMA3 | TRAINED, "max_position_embeddings": 7},
            "rope_scaling.original_max_position_embeddings (left out) = 7",
            "rope_parameters.original_max_position_embeddings = 11",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "type": "yarn", "factor": 2.0}},
            "rope_parameters.rope_type = 'linear'",
            "rope_parameters.type = 'yarn'",
        ),
        (
            {"rope_parameters": LLAMA3 | TRAINED, "original_max_position_embeddings": 7},
            "rope_parameters.original_max_position_embeddings = 11",
            "original_max_position_embeddings = 7",
        ),
    ],
)
def test_what_is_written_twice_and_disagrees_is_refused_with_both(rotated, keys, one, other):
    message = refusal(rotated(**keys))
    assert f"{one} and {other} disagree: " in message


def test_a_type_that_we_cannot_compute_is_named_where_it_stands(rotated):
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    assert "rope_scaling.rope_type = 'dynamic' is not supported" in refusal(rotated(rope_scaling=dynamic))


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("outside", [{"max_position_embeddings": 11}, TRAINED])
def test_llama_3_without_a_trained_length_has_the_one_beside_it(rotated, place, outside):
    assert difference(rotated(**{place: LLAMA3 | THETA}, **outside)) < 1e-6


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("table", "key"),
    [(LINEAR, "factor")] + [(LLAMA3 | TRAINED, key) for key in ("factor", *TRAINED, *FREQUENCIES)],
)
def test_a_number_that_is_missing_is_named_with_the_remedy(rotated, place, table, key):
    without = {name: value for name, value in table.items() if name != key}
    message = refusal(rotated(**{place: without}))
    assert f"{place}.{key} is missing" in message
    assert "add the number that the model was trained with" in message


@pytest.mark.parametrize("value", ["4.0", True, float("nan"), float("inf"), [4.0], {"_target_": "os.getcwd"}])
@pytest.mark.parametrize("key", ["factor", *TRAINED, *FREQUENCIES, "rope_theta"])
def test_what_is_no_number_is_named(rotated, key, value):
    folder = rotated(rope_parameters=LLAMA3 | TRAINED | THETA | {key: value})
    assert f"rope_parameters.{key} must be a number, not {value!r}" in refusal(folder)


def test_a_length_beside_it_that_is_no_number_is_named(rotated):
    folder = rotated(rope_scaling=LLAMA3, max_position_embeddings="11")
    assert "max_position_embeddings must be a number, not '11'" in refusal(folder)
    edit(folder, rope_scaling=DEFAULT, rope_theta=True)
    assert "json: rope_theta must be a number, not True" in refusal(folder)


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_half_a_rotation_is_refused_in_both_places(rotated, place):
    keys = {place: LINEAR | {"partial_rotary_factor": 0.5}}
    assert f"{place}.partial_rotary_factor = 0.5 is not supported" in refusal(rotated(**keys))
