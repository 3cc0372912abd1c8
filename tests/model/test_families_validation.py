"""A value in a family's config means the same as in transformers, or is an error of one line with its key."""

import json
import random

import pytest
import torch
from test_families import CASES, SIZES, TOKENS, compute_hf_logits, load_with_transformers, make_hf_model

from attnlab.model.huggingface.conversion import load_hf_model, save_hf_model
from attnlab.model.huggingface.families.family_table import FAMILIES

GPT2_SIZES = {"vocab_size": 31, "n_positions": 29, "n_embd": 24, "n_layer": 2, "n_head": 3}
WITHOUT_ROPE = ("gpt2", "mpt", "opt")
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
NESTED = {"full_attention": DEFAULT_ROPE}  # by layer type
BY_TYPE = NESTED | {"sliding_attention": DEFAULT_ROPE}
REMOVED = "a key that is removed"
ODD_VALUES = (
    None, "x", -1, 0, 2.5, 10**12, 10**30, [], ["x"], [1], {}, {"x": 1}, NESTED, True, False,
)  # fmt: skip
ADDED_KEYS = (  # of other families, or of all of them in newer versions of transformers
    "is_causal", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "rotary_pct",
    "rotary_emb_base", "rope_local_base_freq", "sliding_window_pattern", "no_rope_layer_interval", "head_dim",
    "per_layer_config", "quantization_config", "num_attention_heads", "num_hidden_layers", "n_embed",
)  # fmt: skip
ODD_TABLES = (
    NESTED, BY_TYPE, NESTED | {"sliding_attention": None}, NESTED | DEFAULT_ROPE, DEFAULT_ROPE | {"x": 1},
    DEFAULT_ROPE | {"factor": 4.0}, {"rope_type": "x"}, {"rope_type": None}, {"rope_theta": None},
    {"rope_theta": 0}, {"partial_rotary_factor": None}, {"partial_rotary_factor": 0.5},
    LINEAR, LINEAR | {"factor": 0.5}, {"type": "linear", "factor": 2.0, "rope_type": None}, YARN,
    {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "proportional"},
    {"rope_type": "yarn", "factor": 4.0},
    YARN | {"truncate": None}, YARN | {"factor": None}, YARN | {"original_max_position_embeddings": None},
    YARN | {"beta_fast": None, "attention_factor": 0.0},
)  # fmt: skip


@pytest.fixture(scope="module")
def family_folders(tmp_path_factory):
    """Checkpoint folders: the first case of each family."""
    folders = {}
    for kind, changes in CASES.items():
        folders[kind] = tmp_path_factory.mktemp(kind)
        make_hf_model(kind, SIZES | changes[0] if changes else GPT2_SIZES).save_pretrained(folders[kind])
    return folders


@pytest.fixture
def edit_config(family_folders):
    """Function `edit(kind, **keys)`: sets config keys until the test ends and returns the folder."""
    original_texts = {kind: (folder / "config.json").read_text() for kind, folder in family_folders.items()}

    def edit(kind, **keys):
        (family_folders[kind] / "config.json").write_text(json.dumps(json.loads(original_texts[kind]) | keys))
        return family_folders[kind]

    yield edit
    for kind, text in original_texts.items():
        (family_folders[kind] / "config.json").write_text(text)


@pytest.mark.parametrize("kind", CASES)
def test_quantized_weights_are_rejected_in_every_family(edit_config, kind):
    with pytest.raises(ValueError, match=r"quantization_config = .*is not supported"):
        load_hf_model(edit_config(kind, quantization_config={"quant_method": "mxfp4"}))


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        (
            "qwen2",
            {"layer_types": ["chunked_attention"] * 3},
            "layer_types = .*'chunked_attention'.* is not supported",
        ),
        ("qwen2", {"layer_types": ["full_attention"] * 2}, "layer_types = .* is not supported .only 3 of"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "sliding_window is missing"),
        ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types = .* is not supported"),
        ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, "rope_type = 'longrope' is not supported"),
        (
            "phi3",
            {"rope_parameters": {}, "partial_rotary_factor": 0.4},
            "partial_rotary_factor = 0.4 of 4 features",
        ),
        ("gpt_neox", {"hidden_act": "relu"}, "hidden_act = 'relu' is not supported"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers = .1. is not supported"),
        (
            "gemma2",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention = True is not supported",
        ),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar .* must be more than 0"),
        ("gemma3_text", {"attn_logit_softcapping": 2.0}, "attn_logit_softcapping = 2.0 is not supported"),
        (
            "gemma3_text",
            {"rope_parameters": {"rope_type": "linear"}},
            "rope_parameters must hold full_attention",
        ),
        ("gemma3_text", {"rope_parameters": 0}, "rope_parameters must hold full_attention"),
        ("gpt_oss", {"num_experts_per_tok": 2.5}, "num_experts_per_tok must be an integer, not 2.5"),
        ("gpt_oss", {"num_experts_per_tok": 9}, "n_chosen=9 and n_experts=5"),
        ("deepseek_v3", {"first_k_dense_replace": 1}, "first_k_dense_replace = 1 is not supported: experts"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave = False is not supported"),
        ("deepseek_v3", {"rope_interleave": None}, "rope_interleave = None is not supported"),
        ("deepseek_v3", {"head_dim": 2}, "head_dim = 2 is not supported .only qk_rope_head_dim = 4"),
        ("deepseek_v3", {"head_dim": None}, "head_dim = None is not supported"),
        ("deepseek_v3", {"num_key_value_heads": 3}, "num_key_value_heads = 3 is not supported .only 6."),
        ("mpt", {"attn_config": {"clip_qkv": 6.0}}, "attn_config.clip_qkv = 6.0 is not supported"),
        ("mpt", {"attn_config": {"alibi": False}}, "attn_config.alibi = False is not supported"),
        ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn = 2 is not supported"),
        ("diffllama", {"num_key_value_heads": 3}, "an even n_heads and an even n_kv_heads"),
        ("llama", {"is_causal": False}, "is_causal = False is not supported"),
        (
            "qwen3",
            {"per_layer_config": {"0": {"rms_norm_eps": 0.1}}},
            "per_layer_config = .* is not supported",
        ),
        ("olmo2", {"rms_norm_eps": None}, "rms_norm_eps is missing .null.: add the value"),
        ("gpt2", {"scale_attn_weights": None}, "scale_attn_weights is missing .null."),
        ("gpt2", {"scale_attn_weights": "no"}, "scale_attn_weights must be true or false, not 'no'"),
        ("gpt_neox", {"rope_parameters": None, "rotary_pct": None}, "partial_rotary_factor is null"),
        (
            "smollm3",
            {"no_rope_layers": None, "no_rope_layer_interval": 0},
            "no_rope_layer_interval must be an int",
        ),
        ("gpt2", {"num_attention_heads": 2}, "num_attention_heads = 2 and n_head = 3 disagree: keep"),
        ("mpt", {"num_attention_heads": 3}, "num_attention_heads = 3 and n_heads = 6 disagree: keep"),
        ("falcon", {"multi_query": None}, "multi_query is null: set true or false"),
        ("gpt_neox", {"head_dim": 2}, "head_dim = 2 is not supported"),
        ("phi3", {"head_dim": {"x": 1}}, "head_dim must be a number, not {'x': 1}"),
        ("qwen2", {"layer_types": []}, "layer_types = .. is not supported"),
        ("granite", {"logits_scaling": 0}, "logits_scaling must not be 0"),
        ("granite", {"attention_multiplier": 0}, "attention_multiplier must not be 0"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm = True is not supported"),
        (
            "stablelm",
            {"rope_parameters": {"partial_rotary_factor": 2.0}},
            "partial_rotary_factor must be more than 0 and at most 1, not 2.0",
        ),
        (
            "olmo3",
            {"rope_theta": 300.0, "rope_parameters": None},
            "rope_theta = 300.0 leaves the base of sliding layers open: set rope_parameters.sliding_",
        ),
        ("exaone4", {"sliding_window": None, "layer_types": None}, "layer_types is missing"),
        ("helium", {"head_dim": 10}, "head_dim = 10 is not supported: 6 heads .* hidden_size = 24"),
        ("cohere", {"use_qk_norm": True}, "use_qk_norm = True is not supported"),
        (
            "cohere2",
            {"sliding_window_pattern": 0, "layer_types": None},
            "sliding_window_pattern must be an integer above 0",
        ),
        ("arcee", {"hidden_act": "silu"}, "hidden_act = 'silu' is not supported .only 'relu2'"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before = False is not supported"),
        (
            "opt",
            {"word_embed_proj_dim": 12},
            "word_embed_proj_dim = 12 is not supported .only hidden_size = 24",
        ),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise = 0.1 is not supported .only 0.0"),
        ("mixtral", {"num_experts": 2}, "num_experts = 2 and num_local_experts = 4 disagree: keep"),
        ("mixtral", {"num_local_experts": 10**9}, "1,000,000,000 experts, but the folder has only"),
        ("mixtral", {"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ("qwen2_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step = 2 is not supported .only 1"),
        ("qwen2_moe", {"mlp_only_layers": [1]}, "mlp_only_layers = .1. is not supported"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "shared_width must be at least 1, got 0"),
        ("qwen2_moe", {"norm_topk_prob": None}, "norm_topk_prob is missing .null."),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step = 0 is not supported .only 1"),
        ("qwen3_moe", {"mlp_only_layers": [0, 2]}, "mlp_only_layers = .0, 2. is not supported"),
        ("qwen3_moe", {"layer_types": ["full_attention"] * 3}, "layer_types = .* is not supported"),
        ("qwen3_moe", {"num_experts": 4}, "num_experts = 4 and num_local_experts = 5 disagree: keep"),
        ("qwen3_moe", {"num_local_experts": None}, "num_local_experts is missing .null."),
    ],
)
def test_unsupported_value_is_named(edit_config, kind, keys, message):
    folder = edit_config(kind, **keys)
    with pytest.raises(ValueError, match=message) as error:
        load_hf_model(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


@pytest.mark.sampled(24)
@pytest.mark.parametrize(
    "kind", [kind for kind in CASES if kind not in (*WITHOUT_ROPE, "gemma3_text", "olmo3")]
)
@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize(("table", "key"), [
    (BY_TYPE, "full_attention"), (DEFAULT_ROPE | {"long_factor": [1.0]}, "long_factor"),
    (DEFAULT_ROPE | {"factor": 4.0}, "factor"),
])  # fmt: skip
def test_rope_key_that_the_type_does_not_read_is_named(edit_config, kind, place, table, key):
    folder = edit_config(kind, **({"rope_parameters": None} | {place: table}))
    with pytest.raises(
        ValueError, match=rf"{place}.{key} = .* is not supported where rope_type is 'default'"
    ):
        load_hf_model(folder)


def test_empty_rope_table_of_gpt_oss_is_the_default_and_an_absent_one_is_yarn(edit_config):
    for table in ({}, None):
        ours = compute_our_logits(folder := edit_config("gpt_oss", rope_parameters=table))
        torch.testing.assert_close(ours, compute_hf_logits(load_with_transformers(folder), TOKENS))


def test_order_of_rotary_features_is_written_for_a_mixer_key(edit_config, tmp_path):
    config, model = load_hf_model(edit_config("helium"))
    mixer = {"attention": {"_target_": "nowhere"}, "mixer": config["attention"]}
    save_hf_model(tmp_path, model, config | mixer, {"helium": FAMILIES["helium"]})
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "helium"
    assert torch.equal(load_hf_model(tmp_path)[1](TOKENS), model(TOKENS))


ACTIVATIONS = {
    "gpt2": "activation_function", "gpt_neox": "hidden_act", "falcon": "activation",
    "gemma2": "hidden_activation", "gemma3_text": "hidden_activation", "gemma": "hidden_act",
    "starcoder2": "hidden_act",
}  # fmt: skip
GELUS = (
    "gelu",
    "gelu_python",
    "gelu_new",
    "gelu_pytorch_tanh",
    "gelu_python_tanh",
    "gelu_fast",
    "gelu_accurate",
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("name", GELUS)
def test_every_name_of_an_equal_activation_is_accepted(edit_config, kind, name):
    folder = edit_config(kind, **{ACTIVATIONS[kind]: name})
    expected = compute_hf_logits(load_with_transformers(folder), TOKENS)
    assert (compute_our_logits(folder) - expected).abs().max() < 1e-9 * expected.abs().max()


@pytest.mark.parametrize("name", ["gelu_10", "quick_gelu", "relu"])
def test_another_activation_is_refused(edit_config, name):
    with pytest.raises(ValueError, match=f"hidden_act = '{name}' is not supported"):
        load_hf_model(edit_config("gpt_neox", hidden_act=name))


def list_edits(config):
    """Edits of a config: each key and nested key is set to each odd value or removed, and some are added."""
    nested = {key: value for key, value in config.items() if isinstance(value, dict)}
    tables = [{"rope_parameters": table} for table in ODD_TABLES]
    edits = [{key: odd} for key in config for odd in ODD_VALUES]
    edits += [
        {key: value | {name: odd}} for key, value in nested.items() for name in value for odd in ODD_VALUES
    ]
    edits += [{key: REMOVED} for key in config]
    edits += [
        {key: {n: v for n, v in value.items() if n != name}}
        for key, value in nested.items()
        for name in value
    ]
    added = [{key: odd} for key in ADDED_KEYS if key not in config for odd in ODD_VALUES]
    return edits + added + tables + [{"rope_scaling": table["rope_parameters"]} for table in tables]


def compute_our_logits(folder):
    """Load a folder and compute logits; ValueError if it is refused."""
    with torch.no_grad():
        return load_hf_model(folder, dtype=torch.float64)[1](TOKENS)


def attempt(work):
    """Return the result of `work()` and None, or None and its error."""
    try:
        return work(), None
    except Exception as error:
        return None, error


def compare_edit_with_transformers(folder, config, edit):
    """Write an edited config; it must be refused here or give the logits of transformers.

    A RoPE setting that transformers refuses must be refused here. Its other refusals are of types, many of
    them of keys that no logit depends on.
    """
    edited = {key: value for key, value in (config | edit).items() if value is not REMOVED}
    (folder / "config.json").write_text(json.dumps(edited))
    ours, refusal = attempt(lambda: compute_our_logits(folder))
    if refusal:
        assert isinstance(refusal, ValueError), (edit, refusal)
        assert "\n" not in str(refusal), edit
        assert len(str(refusal)) < 1000, edit
        return
    theirs, error = attempt(lambda: compute_hf_logits(load_with_transformers(folder), TOKENS))
    if error:
        has_rope = config["model_type"] not in WITHOUT_ROPE
        assert not (has_rope and any(key.startswith("rope_") for key in edit)), (edit, error)
        return
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10, msg=lambda text: f"{edit}: {text}")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", CASES)
def test_odd_config_values_are_refused_or_mean_the_same_as_in_transformers(family_folders, kind):
    compare_edits(family_folders[kind], lambda edits: random.Random(kind).sample(edits, 6))


@pytest.mark.rare(sample=1)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", CASES)
def test_all_odd_config_values_are_refused_or_mean_the_same_as_in_transformers(family_folders, kind):
    compare_edits(family_folders[kind], lambda edits: edits)


def compare_edits(folder, select):
    text = (folder / "config.json").read_text()
    config = json.loads(text)
    try:
        for edit in select(list_edits(config)):
            compare_edit_with_transformers(folder, config, edit)
    finally:
        (folder / "config.json").write_text(text)
