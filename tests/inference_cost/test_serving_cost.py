"""Costs of a config.json: hand-computed examples, live quantized caches, edges and errors."""

import json
import subprocess
import sys
from dataclasses import replace
from html import unescape

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    QuantizedCache,
)

from attnlab.cli.main import main
from attnlab.cli.verbs.cost import load_models
from attnlab.errors import InvalidConfig
from attnlab.inference_cost.devices import DEVICES
from attnlab.inference_cost.hf_config import load_hf_cost
from attnlab.inference_cost.serving_cost import Serving, compute_serving_cost
from attnlab.report.charts import chart_renderer

LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
}  # fmt: skip
GIB = 2**30


def write_config(folder, **changes):
    file = folder / "config.json"
    values = {key: value for key, value in (LLAMA_3_8B | changes).items() if value is not ...}
    file.write_text(json.dumps(values))
    return file


def serve(folder, length=65536, batch=1, kv_dtype="bf16", device=None, **changes):
    cost = load_hf_cost(write_config(folder, **changes))
    return compute_serving_cost(cost, Serving(length, batch, "bf16", kv_dtype, device))


@pytest.mark.parametrize(
    ("kv_dtype", "expected"),  # 2 tensors x 32 layers x 8 heads x 128 numbers = 65,536 a token
    [
        ("fp32", 65536 * 4),
        ("bf16", 131072),
        ("fp8", 65536),
        ("int8", 65536 + 65536 // 64 * 4),
        ("int4", 65536 // 2 + 65536 // 64 * 4),
    ],
)
def test_cache_of_llama_3_8b_is_as_computed_by_hand(tmp_path, kv_dtype, expected):
    assert serve(tmp_path, kv_dtype=kv_dtype).cache_bytes_per_token == expected


def test_llama_3_8b_is_as_published_and_as_computed_by_hand(tmp_path):
    cost = serve(tmp_path, device="h100")
    assert cost.parameters == 8_030_261_248
    assert cost.cache_bytes == 8 * GIB
    embedding = 128256 * 4096
    weights = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert cost.decode_flops == 2 * (weights + embedding) + 32 * 4 * 4096 * 65537
    assert cost.prefill_flops == 2 * weights * 65536 + 2 * embedding + 32 * 4 * 4096 * (65536 * 65537 // 2)
    assert cost.decode_bytes == 2 * (cost.parameters - embedding) + cost.cache_bytes
    assert cost.minimum_ms == pytest.approx(1e3 * cost.decode_bytes / DEVICES["h100"].bandwidth)
    assert cost.largest_batch == (80 * 10**9 - cost.weight_bytes) // (8 * GIB)


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "rms_norm_eps": 1e-6,
    "first_k_dense_replace": 3, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
}  # fmt: skip


GPT_OSS_20B = {  # as released, with keys that no cost needs
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "attention_bias": True, "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "rope_theta": 150000, "initial_context_length": 4096, "swiglu_limit": 7.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "original_max_position_embeddings": 4096, "truncate": False},
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip


@pytest.mark.usefixtures("blank_charts")
def test_quantized_weights_are_counted_in_the_dtype_and_named(tmp_path, capsys):
    cost = serve(tmp_path, **GPT_OSS_20B)
    assert cost == replace(
        serve(tmp_path, **GPT_OSS_20B | {"quantization_config": ...}), quantization="mxfp4"
    )
    assert (round(cost.parameters / 1e7), cost.weight_bytes) == (2091, 2 * cost.parameters)  # 20.91 B
    page = tmp_path / "cost.html"
    assert main(["cost", str(write_config(tmp_path, **GPT_OSS_20B)), "--page", str(page)]) == 0
    for text in (capsys.readouterr().out, unescape(page.read_text("utf-8"))):
        assert "the checkpoint's mxfp4 weights are counted in bf16" in text


@pytest.mark.parametrize("changes", [{}, {"first_k_dense_replace": ..., "n_shared_experts": 3}])
def test_parameters_of_deepseek_v3_equal_the_live_model(tmp_path, changes):
    cost = serve(tmp_path, **DEEPSEEK_V3 | changes)
    assert [(row.kind, row.count) for row in cost.layers] == [("latent", 3), ("latent", 58)]
    known = {key: value for key, value in (DEEPSEEK_V3 | changes).items() if value is not ...}
    with torch.device("meta"):
        model = DeepseekV3ForCausalLM(DeepseekV3Config(**known))
    assert cost.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_deepseek_v3_is_as_published_and_as_computed_by_hand(tmp_path):
    cost = serve(tmp_path, **DEEPSEEK_V3)
    assert round(cost.parameters / 1e9) == 671
    assert round((cost.active_parameters - 129280 * 7168) / 1e9) == 37  # without the embedding
    assert cost.cache_bytes_per_token == 2 * 61 * (512 + 64)
    dense, experts = (row.decode_flops / row.count for row in cost.layers)
    assert experts - dense == 2 * 7168 * 256  # the router, as nine experts are as wide as a dense layer


def test_arithmetic_limits_a_large_batch_of_a_short_cache(tmp_path):
    cost = serve(tmp_path, length=16, batch=4096, device="h100")
    assert cost.minimum_ms == pytest.approx(1e3 * cost.decode_flops / DEVICES["h100"].flops)


def test_bytes_of_groups_that_are_not_full_include_their_scales(tmp_path):
    cost = serve(tmp_path, kv_dtype="int4", head_dim=9, num_key_value_heads=1)
    assert cost.cache_bytes_per_token == 32 * 2 * (5 + 4)


@torch.no_grad()
def test_fp8_cache_equals_the_live_cache_of_transformers(tmp_path):
    sizes = {"hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 3, "num_attention_heads": 6,
             "num_key_value_heads": 2, "vocab_size": 31}  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    cache = QuantizedCache("fp8", model.config)
    model(torch.zeros(5, 13, dtype=torch.long), past_key_values=cache)
    live = [part for layer in cache.layers for part in (*layer._quantized_keys, *layer._quantized_values)]
    cost = serve(tmp_path, length=13, batch=5, kv_dtype="fp8", **sizes)
    assert cost.cache_bytes == sum(tensor.numel() * tensor.element_size() for tensor in live)


@pytest.mark.parametrize("layers", [32, 400])
def test_weights_that_leave_no_room_give_a_batch_of_0(tmp_path, layers):
    length = 2**22 if layers == 32 else 16
    assert serve(tmp_path, length=length, device="h100", num_hidden_layers=layers).largest_batch == 0


def test_a_window_of_one_token_caches_nothing(tmp_path):
    cost = serve(tmp_path, device="h100", model_type="mistral", sliding_window=1)
    assert (cost.cache_bytes, cost.largest_batch) == (0, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "model_type 'bert' is not known"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_key_value_heads": 5}, "do not divide"),
        ({"num_attention_heads": ...}, "num_attention_heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads = 0: must be a whole number from 1"),
        ({"vocab_size": "31"}, "vocab_size"),
        ({"vocab_size": -5}, "vocab_size = -5"),
        ({"vocab_size": True}, "vocab_size = True"),
        ({"model_type": "mistral", "sliding_window": 0.5}, "sliding_window = 0.5"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window = 0: must be a whole number from 1"),
        ({"model_type": "olmo3", "sliding_window": 0}, "sliding_window = 0"),  # in some layers
        ({**DEEPSEEK_V3, "first_k_dense_replace": -1}, "first_k_dense_replace = -1: must be a whole number"),
        ({**DEEPSEEK_V3, "moe_layer_freq": 2}, "moe_layer_freq = 2 is not supported"),
        (
            {**DEEPSEEK_V3, "n_routed_experts": 7},
            "num_experts_per_tok = 8: must be a whole number from 1 to 7",
        ),
        (
            {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
            "num_experts_per_tok = 5: must be a whole number from 1 to 4",
        ),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_with_its_key(tmp_path, capsys, changes, message):
    assert main(["cost", str(write_config(tmp_path, **changes))]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "0"], "--batch 0"),
        (["--length", "-3"], "--length"),
        (["--length", "1.5"], "--length 1.5"),
        (["--dtype", "int4"], "--dtype int4"),
        (["--kv-dtype", "int2"], "--kv-dtype int2"),
        (["--device", "h1000"], "nearest: h100"),
        (["--vs", "heads=gqa"], "heads.n_kv_heads=N"),
        (["--vs", "heads=mla"], "heads=mla"),
        (["--vs", "heads.n_kv_heads=3"], "do not divide"),
        (["--vs", "heads.n_kv_heads=x"], "whole number"),
        (["--vs", "heads.n_kv_heads=0"], "heads.n_kv_heads=0: must be a whole number from 1"),
        (["--vs", "heads=mqa heads=mha"], "heads is set twice, heads=mqa and heads=mha: remove one"),
        (["--vs", "position=alibi"], "position=alibi"),
        (["--vs", "rope_theta=3"], "changes no cost"),
        (["--vs", "num_key_value_heads"], "not found"),
        (["--vs", ""], "--vs is empty"),
        (["--vs", "'"], "--vs '"),
        (["--page", "absent/x.html"], "absent/x.html"),
    ],
)
def test_invalid_words_get_one_line(tmp_path, capsys, words, message):
    assert main(["cost", str(write_config(tmp_path)), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["heads=mha", "++heads=gqa"], "heads is set twice, heads=mha and ++heads=gqa: remove one"),
        (["+experiment=smoke"], "+experiment=smoke: experiment= is only for sweeps"),
    ],
)
def test_overrides_that_would_be_dropped_get_one_line(capsys, words, message):
    assert main(["cost", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_alternatives_change_the_config_or_name_another(tmp_path):
    (tmp_path / "other").mkdir()
    other = write_config(tmp_path / "other", num_key_value_heads=2)
    words = ["num_key_value_heads=2", "heads.n_kv_heads=2", "heads=gqa heads.n_kv_heads=2", str(other)]
    models = load_models([str(write_config(tmp_path))], words, "bf16")
    assert len(models) == 5
    assert len(set(models.values())) == 2


def test_the_page_shows_every_model(tmp_path, monkeypatch):
    monkeypatch.setattr(chart_renderer, "_run_renderer", lambda tasks: ([], "blank"))
    page = tmp_path / "cost.html"
    words = [str(write_config(tmp_path)), "--vs", "heads=mqa", "--device", "h100", "--page", str(page)]
    assert main(["cost", *words]) == 0
    text = page.read_text("utf-8")
    for shown in ("131,072 B", "16,384 B", "heads=mqa", "NVIDIA H100 SXM data sheet, 2023"):
        assert shown in text


@pytest.mark.usefixtures("blank_charts")
def test_the_page_replaces_no_other_file(tmp_path, capsys):
    config = write_config(tmp_path)
    text = config.read_text("utf-8")
    assert main(["cost", str(config), "--page", str(config)]) == 2
    assert "exists and is no page of costs: give another file" in capsys.readouterr().err
    assert config.read_text("utf-8") == text
    page = tmp_path / "cost.html"
    for _ in range(2):
        assert main(["cost", str(config), "--page", str(page)]) == 0


def test_the_page_without_a_device_has_no_times(tmp_path):
    page = tmp_path / "cost.html"
    assert main(["cost", str(write_config(tmp_path)), "--page", str(page)]) == 0
    assert page.read_text("utf-8").count("<figure>") == 2  # cached bytes and bytes read
    assert "shortest step" not in page.read_text("utf-8")


def test_learned_positions_limit_the_length(tmp_path, capsys):
    file = tmp_path / "config.json"
    sizes = {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 31}
    file.write_text(json.dumps({"model_type": "gpt2", **sizes}))
    assert main(["cost", str(file), "--length", "64"]) == 2
    assert main(["cost", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["serving"]["length"] == 63


def test_a_config_json_is_read_without_torch(tmp_path):
    code = (
        "import sys; from attnlab.cli.main import main; "
        f"main(['cost', {str(write_config(tmp_path))!r}]); sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
    )


def test_a_folder_of_options_has_no_use_beside_a_path(tmp_path):
    config = write_config(tmp_path)
    with pytest.raises(InvalidConfig, match=r"^--config-dir has no effect on .*config\.json"):
        load_models([str(config)], [], "bf16", ["hydra.searchpath=[file:///x]"])
