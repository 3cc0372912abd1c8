"""Conversion from and to `transformers` gives equal logits; unsupported checkpoints are errors."""

import dataclasses
import json
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig

from attnlab.attention.cache import DynamicCache
from attnlab.model.huggingface.conversion import load_hf_model, save_hf_model
from attnlab.model.huggingface.families import LLAMA, ConfigKey

SIZES = {"vocab_size": 31, "bos_token_id": None, "eos_token_id": None}
GPT = SIZES | {"n_positions": 29, "n_embd": 21, "n_layer": 2, "n_head": 3}
LLAMAS = SIZES | {
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
# transformers computes RoPE and norms in float32 for any weights: 1e-6 allows only for that rounding.
BOUNDS = {"gpt2": 1e-10, "llama": 1e-6}
CASES = {
    "gpt2": GPT2Config(**GPT, layer_norm_epsilon=1e-3),
    "gpt2-untied": GPT2Config(**GPT, n_inner=50, tie_word_embeddings=False),
    "gpt2-unscaled": GPT2Config(**GPT, scale_attn_weights=False),
    "llama": LlamaConfig(**LLAMAS, rms_norm_eps=1e-3, rope_theta=5000.0),
    "llama-mqa": LlamaConfig(**(LLAMAS | {"num_key_value_heads": 1}), head_dim=10),
    "llama-biases": LlamaConfig(**LLAMAS, attention_bias=True, mlp_bias=True),
    "llama-tied": LlamaConfig(**LLAMAS, tie_word_embeddings=True),
    "llama-linear": LlamaConfig(
        **LLAMAS, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 700.0}
    ),
}


def make_hf_model(config, folder=None):
    """Make a `transformers` model whose parameters are random and large, and save it to `folder`."""
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    for parameter in model.parameters():
        parameter.data.add_(0.15 * torch.randn(parameter.shape, dtype=torch.float64))
    if folder:
        model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = make_hf_model(CASES[request.param], folder)
    config, ours = load_hf_model(folder)
    bound = BOUNDS[model.config.model_type]
    return SimpleNamespace(theirs=model, ours=ours, config=config, bound=bound, folder=folder)


@pytest.fixture
def tokens():
    return torch.randint(0, 31, (3, 13), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def folder(tmp_path):
    make_hf_model(CASES["llama"], tmp_path)
    return tmp_path


def edit_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@torch.no_grad()
def decode_greedily(model, prompt, steps, cached):
    caches = [DynamicCache() for _ in model.blocks] if cached else None
    sequence, new = prompt, prompt
    for _ in range(steps):
        logits = model(new if cached else sequence, caches=caches)
        new = logits[:, -1:].argmax(-1)
        sequence = torch.cat((sequence, new), dim=1)
    return sequence


@torch.no_grad()
def test_logits_equal_transformers(case, tokens):
    expected = case.theirs(tokens).logits
    assert expected.std() > 0.3  # small logits would agree trivially
    assert (case.ours(tokens) - expected).abs().max() < case.bound


@pytest.mark.parametrize("cached", [True, False])
def test_greedy_tokens_equal_transformers(case, tokens, cached):
    prompt = tokens[:, :4]
    expected = case.theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, pad_token_id=0
    )
    assert expected.unique().numel() > 5
    assert torch.equal(decode_greedily(case.ours, prompt, 20, cached), expected)


@torch.no_grad()
def test_saved_model_gives_equal_logits_in_transformers(case, tokens, tmp_path):
    save_hf_model(tmp_path, case.ours, case.config)
    reloaded = type(case.theirs).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(reloaded(tokens).logits, case.theirs(tokens).logits, rtol=0, atol=1e-12)


def test_load_after_save_is_identity(case, tmp_path):
    save_hf_model(tmp_path, case.ours, case.config)
    config, model = load_hf_model(tmp_path)
    assert config == case.config
    pairs = zip(model.state_dict().items(), case.ours.state_dict().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
    assert (model.head.weight is model.embedding.weight) == config["tie"]


def test_tensors_survive_the_round_trip_bit_for_bit(case, tmp_path):
    save_hf_model(tmp_path, case.ours, case.config)
    before, after = load_file(case.folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_sharded_checkpoint_equals_a_single_file(tmp_path, tokens):
    model = make_hf_model(CASES["llama"])
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="9KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = load_hf_model(tmp_path / "one")[1], load_hf_model(tmp_path / "many")[1]
    assert torch.equal(one(tokens), many(tokens))


def test_names_without_prefix_and_mask_buffers_are_accepted(tmp_path, tokens):
    make_hf_model(CASES["gpt2"], tmp_path)
    expected = load_hf_model(tmp_path)[1](tokens)
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    save_file(tensors | {"h.0.attn.bias": torch.ones(1, 1, 29, 29)}, path, metadata={"format": "pt"})
    assert torch.equal(load_hf_model(tmp_path)[1](tokens), expected)


def test_keys_absent_from_old_configs_take_their_defaults(tmp_path, tokens):
    make_hf_model(LlamaConfig(**(LLAMAS | {"num_key_value_heads": 6})), tmp_path)
    expected = load_hf_model(tmp_path)[1](tokens)
    config = json.loads((tmp_path / "config.json").read_text())
    mandatory_keys = ("model_type", "vocab_size", "hidden_size", "intermediate_size")
    mandatory_keys += ("num_hidden_layers", "num_attention_heads")
    (tmp_path / "config.json").write_text(json.dumps({key: config[key] for key in mandatory_keys}))
    assert torch.equal(load_hf_model(tmp_path)[1](tokens), expected)


@torch.no_grad()
def test_a_new_family_needs_only_a_table(tmp_path, tokens):
    def masks(size):
        return {"window": {"_target_": "attnlab.attention.masks.window.window", "size": size}}

    window = ConfigKey(
        "sliding_window", ("attention.masks",), None, masks, lambda masks: masks["window"]["size"]
    )
    table = dataclasses.replace(LLAMA, architecture="MistralForCausalLM", keys=(*LLAMA.keys, window))
    model = make_hf_model(MistralConfig(**LLAMAS, sliding_window=5), tmp_path / "theirs")
    config, ours = load_hf_model(tmp_path / "theirs", {"mistral": table})
    assert (ours(tokens) - model(tokens).logits).abs().max() < 1e-6
    save_hf_model(tmp_path / "ours", ours, config, {"llama": LLAMA, "mistral": table})
    reloaded = type(model).from_pretrained(tmp_path / "ours")
    torch.testing.assert_close(reloaded(tokens).logits, model(tokens).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "bert"}, "model_type 'bert' is not known .known: gpt2, llama, "),
        ({"hidden_act": "relu"}, "hidden_act = 'relu' is not supported .only 'silu', 'swish'."),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5 is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": None}, "vocab_size must be an integer"),
        ({"num_key_value_heads": 4}, "n_kv_heads=4 does not divide n_heads=6"),
        ({"rms_norm_eps": {"_target_": "os.getcwd"}}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": "${oc.env:HOME}"}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number, not nan"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a number, not True"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, not 1"),
        ({"rope_scaling": "linear", "rope_parameters": None}, "rope_scaling must be a mapping"),
        (
            {"intermediate_size": 38},
            r"mlp.gate_proj.weight has shape \(37, 24\), config.json requires \(38, 24\)",
        ),
        ({"num_hidden_layers": 3}, "tensor layers.2.*missing .and 8 more."),
        ({"num_hidden_layers": 1}, "tensor layers.1.*is unexpected .and 8 more."),
    ],
)
def test_unsupported_config_raises_in_one_line(folder, values, message):
    edit_config(folder, **values)
    with pytest.raises(ValueError, match=message) as error:
        load_hf_model(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("size", [10**6, 10**12, 10**18, 10**30, -1, 2.5])
@pytest.mark.parametrize("key", [*sorted(LLAMAS.keys() - SIZES.keys()), "head_dim", "vocab_size"])
def test_absurd_size_raises_in_one_line_within_a_second(folder, key, size):
    edit_config(folder, **{key: size})
    start = time.process_time()
    with pytest.raises(ValueError, match=r"config.json|has shape|is missing") as error:
        load_hf_model(folder)
    assert time.process_time() - start < 1
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_other_gpt2_activation_is_rejected(tmp_path):
    make_hf_model(GPT2Config(**GPT, activation_function="relu"), tmp_path)
    with pytest.raises(ValueError, match="activation_function = 'relu' is not supported"):
        load_hf_model(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_corrupt_file_is_named(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"{name}.*(cannot be read as safetensors|is not valid json)"):
        load_hf_model(folder)


def test_index_cannot_reference_files_outside_the_folder(folder):
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="of files in the same folder"):
        load_hf_model(folder)


def test_pickled_weights_are_rejected(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pickled weights are not supported"):
        load_hf_model(folder)
