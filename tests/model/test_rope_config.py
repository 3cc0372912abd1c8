"""RoPE settings in every format mean the same as in `transformers`; contradictions are errors."""

import json

import pytest
import torch
from test_huggingface import CASES, LLAMAS, edit_config, make_hf_model
from transformers import AutoModelForCausalLM, LlamaConfig

from attnlab.model.huggingface.conversion import load_hf_model, save_hf_model

DEFAULT = {"rope_type": "default"}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 11}
FREQUENCIES = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, **FREQUENCIES}
THETA, TRAINED = {"rope_theta": 5000.0}, {"original_max_position_embeddings": 11}


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    make_hf_model(CASES["llama"], folder)
    return folder


@pytest.fixture
def make_folder(llama_folder, tmp_path):
    """Function `make(**keys)`: a folder whose config has no RoPE settings other than these keys."""

    def make(**keys):
        (tmp_path / "model.safetensors").write_bytes((llama_folder / "model.safetensors").read_bytes())
        config = json.loads((llama_folder / "config.json").read_text())
        del config["rope_parameters"], config["max_position_embeddings"]
        (tmp_path / "config.json").write_text(json.dumps(config | keys))
        return tmp_path

    return make


@torch.no_grad()
def compute_logit_difference(folder):
    tokens = torch.randint(0, 31, (3, 13), generator=torch.Generator().manual_seed(1))
    expected = AutoModelForCausalLM.from_pretrained(folder).eval()(tokens).logits
    return (load_hf_model(folder)[1](tokens) - expected).abs().max()


def read_error(folder):
    with pytest.raises(ValueError, match=r"config\.json") as error:
        load_hf_model(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_older_format_means_the_same(make_folder):
    tokens = torch.arange(13)[None]
    old = load_hf_model(make_folder(rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 2.0}))[1](
        tokens
    )
    new = load_hf_model(
        make_folder(rope_parameters={"rope_type": "linear", "factor": 2.0, **THETA}, rope_scaling=None)
    )
    assert torch.equal(new[1](tokens), old)


@torch.no_grad()
def test_llama_3_scaling_equals_transformers(tmp_path):
    tokens = torch.arange(13)[None]
    model = make_hf_model(
        LlamaConfig(**LLAMAS | {"rope_parameters": LLAMA3 | THETA | TRAINED}), tmp_path / "theirs"
    )
    config, ours = load_hf_model(tmp_path / "theirs")
    expected, plain = model(tokens).logits, make_hf_model(LlamaConfig(**LLAMAS))(tokens).logits
    assert (ours(tokens) - expected).abs().max() < 1e-6 < 1e-4 < (plain - expected).abs().max()
    save_hf_model(tmp_path / "ours", ours, config)
    assert load_hf_model(tmp_path / "ours")[0] == config


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
def test_agreeing_duplicate_settings_equal_transformers(make_folder, keys):
    assert compute_logit_difference(make_folder(**keys)) < 1e-6


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
def test_disagreeing_duplicate_settings_are_both_named(make_folder, keys, one, other):
    message = read_error(make_folder(**keys))
    assert f"{one} and {other} disagree: " in message


def test_unsupported_type_is_named_with_its_table(make_folder):
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    assert "rope_scaling.rope_type = 'dynamic' is not supported" in read_error(
        make_folder(rope_scaling=dynamic)
    )


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("outside", [{"max_position_embeddings": 11}, TRAINED])
def test_llama_3_takes_an_absent_trained_length_from_the_outer_keys(make_folder, place, outside):
    assert compute_logit_difference(make_folder(**{place: LLAMA3 | THETA}, **outside)) < 1e-6


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("table", "key"),
    [(LINEAR, "factor")] + [(LLAMA3 | TRAINED, key) for key in ("factor", *TRAINED, *FREQUENCIES)],
)
def test_missing_number_is_named_with_the_remedy(make_folder, place, table, key):
    without = {name: value for name, value in table.items() if name != key}
    message = read_error(make_folder(**{place: without}))
    assert f"{place}.{key} is missing" in message
    assert "add the number that the model was trained with" in message


@pytest.mark.parametrize("value", ["4.0", True, float("nan"), float("inf"), [4.0], {"_target_": "os.getcwd"}])
@pytest.mark.parametrize("key", ["factor", *TRAINED, *FREQUENCIES, "rope_theta"])
def test_value_that_is_no_number_is_named(make_folder, key, value):
    folder = make_folder(rope_parameters=LLAMA3 | TRAINED | THETA | {key: value})
    assert f"rope_parameters.{key} must be a number, not {value!r}" in read_error(folder)


def test_outer_length_that_is_no_number_is_named(make_folder):
    folder = make_folder(rope_scaling=LLAMA3, max_position_embeddings="11")
    assert "max_position_embeddings must be a number, not '11'" in read_error(folder)
    edit_config(folder, rope_scaling=DEFAULT, rope_theta=True)
    assert "json: rope_theta must be a number, not True" in read_error(folder)


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_partial_rotation_is_rejected_in_both_tables(make_folder, place):
    keys = {place: LINEAR | {"partial_rotary_factor": 0.5}}
    assert f"{place}.partial_rotary_factor = 0.5 is not supported" in read_error(make_folder(**keys))
