"""Each preset's layers equal the attention modules of `transformers` with the same weights, in float64.

`transformers` is patched to compute in float64, as in `test_families`. Weights are random and large, gains
and biases included. Its delta rules add 1e-6 to the squared lengths of q and k, which ours do not: their
projections are enlarged until that vanishes.
"""

import pytest
import torch
from omegaconf import OmegaConf
from test_families import force_float64
from training_steps import train_on_one_batch
from transformers import DeepseekV3Config, Gemma3TextConfig, GptOssConfig, KimiLinearConfig, Qwen3NextConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.qwen3_next import modeling_qwen3_next

from attnlab.attention.mixers.delta import GatedDeltaNet
from attnlab.config import CONF
from attnlab.model.build import build_model, instantiate_config, list_mixer_configs
from attnlab.testing.conformance import compose_variants, evaluate_variant

DIM, N_HEADS, LENGTH = 64, 16, 21
PRESETS = sorted(path.stem for path in (CONF / "preset").glob("*.yaml"))
CONTEXT = 256  # makes the windows 8 tokens
LARGE = 1e9  # factor of projections to q and k before they are normalized
POSITIONS = torch.arange(LENGTH)[None]


def make_theirs(module_class, config, layer):
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    with force_float64():
        module = module_class(config, layer).double().eval()
        for parameter in module.parameters():
            parameter.data.normal_(0, 0.3)
    return module


def make_ours(compose, preset, layer):
    """Make the mixer of a layer of the composed preset, at the sizes of these tests."""
    config = compose(
        f"+preset={preset}", f"model.dim={DIM}", f"model.n_heads={N_HEADS}", f"data.length={CONTEXT}"
    )
    mixers = list_mixer_configs(config)
    return instantiate_config(mixers[layer % len(mixers)]).double().eval()


def copy_weights(module, weights):
    state = module.state_dict()
    assert state.keys() == weights.keys()
    module.load_state_dict(
        {name: weight.detach().reshape(state[name].shape) for name, weight in weights.items()}
    )


def make_mask(window=LENGTH):
    distance = POSITIONS[0][:, None] - POSITIONS[0]
    hidden = (distance < 0) | (distance >= window)
    return torch.zeros(LENGTH, LENGTH).double().masked_fill(hidden, -torch.inf)[None, None]


def assert_equal_outputs(ours, theirs, **context):
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    with force_float64(), torch.no_grad():
        expected = theirs(x, **context)
    expected = expected[0] if isinstance(expected, tuple) else expected
    with torch.no_grad():
        difference = (ours(x) - expected).abs().max()
    assert expected.abs().max() > 0.1
    assert difference < 1e-10


def rotate(module_class, config, *layer_type):
    with force_float64(), torch.no_grad():
        return module_class(config)(torch.zeros(1).double(), POSITIONS, *layer_type)


def join_qkv(theirs, name="weight"):
    return torch.cat([getattr(getattr(theirs, f"{part}_proj"), name) for part in "qkv"])


def regroup_latent(theirs, q_rank):
    """Map the weights of latent attention, whose shared key rotates in pairs of neighbors if `q_rank`."""
    heads, rope = theirs.num_heads, theirs.qk_rope_head_dim
    order = torch.arange(rope).view(-1, 2).T.flatten() if q_rank else torch.arange(rope)
    q = (theirs.q_b_proj if q_rank else theirs.q_proj).weight.view(heads, -1, q_rank or DIM)
    plain, rotated = q.split((theirs.qk_nope_head_dim, rope), 1)
    q = torch.cat((plain, rotated[:, order]), 1).flatten(0, 1)
    latent, k_rope = theirs.kv_a_proj_with_mqa.weight.split((theirs.kv_lora_rank, rope))
    up = theirs.kv_b_proj.weight.view(heads, -1, theirs.kv_lora_rank)
    k, v = (part.flatten(0, 1) for part in up.split((theirs.qk_nope_head_dim, theirs.v_head_dim), 1))
    first = theirs.q_a_proj.weight if q_rank else q
    weights = {
        "heads.down.weight": torch.cat((first, latent, k_rope[order])),
        "heads.norm.weight": theirs.kv_a_layernorm.weight,
        "heads.up.weight": torch.cat((k, v)),
        "heads.out.weight": theirs.o_proj.weight,
    }
    return weights | (
        {"heads.q_norm.weight": theirs.q_a_layernorm.weight, "heads.q_up.weight": q} if q_rank else {}
    )


def test_deepseek_v3_equals_transformers(compose):
    config = DeepseekV3Config(
        hidden_size=DIM, num_attention_heads=N_HEADS, num_key_value_heads=N_HEADS, kv_lora_rank=8,
        q_lora_rank=24, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4,
    )  # fmt: skip
    theirs = make_theirs(modeling_deepseek_v3.DeepseekV3Attention, config, 0)
    ours = make_ours(compose, "deepseek_v3", 0)
    copy_weights(ours, regroup_latent(theirs, 24))
    tables = rotate(modeling_deepseek_v3.DeepseekV3RotaryEmbedding, config)
    assert_equal_outputs(ours, theirs, position_embeddings=tables, attention_mask=make_mask())


@pytest.mark.parametrize(("layer", "window"), [(0, 8), (4, 8), (5, LENGTH)])
def test_gemma3_equals_transformers(compose, layer, window):
    config = Gemma3TextConfig(
        hidden_size=DIM, num_hidden_layers=6, num_attention_heads=N_HEADS, num_key_value_heads=8, head_dim=4,
        query_pre_attn_scalar=4, sliding_window=8,
    )  # fmt: skip
    theirs = make_theirs(modeling_gemma3.Gemma3Attention, config, layer)
    assert theirs.is_sliding == (window < LENGTH)
    ours = make_ours(compose, "gemma3", layer)
    weights = {"heads.qkv.weight": join_qkv(theirs), "heads.out.weight": theirs.o_proj.weight}
    norms = {f"heads.{p}_norm.weight": getattr(theirs, f"{p}_norm").weight + 1 for p in "qk"}
    copy_weights(ours, weights | norms)
    tables = rotate(modeling_gemma3.Gemma3RotaryEmbedding, config, theirs.layer_type)
    assert_equal_outputs(ours, theirs, position_embeddings=tables, attention_mask=make_mask(window))


@pytest.mark.parametrize(("layer", "window"), [(0, 8), (1, LENGTH)])
def test_gpt_oss_equals_transformers(compose, layer, window):
    config = GptOssConfig(
        hidden_size=DIM, num_hidden_layers=2, num_attention_heads=N_HEADS, num_key_value_heads=2, head_dim=4,
        sliding_window=8, rope_parameters={"rope_type": "default", "rope_theta": 150000.0},
    )  # fmt: skip
    theirs = make_theirs(modeling_gpt_oss.GptOssAttention, config, layer)
    assert (theirs.sliding_window == 8) == (window == 8)
    ours = make_ours(compose, "gpt_oss", layer)
    weights = {
        "heads.qkv.weight": join_qkv(theirs),
        "heads.qkv.bias": join_qkv(theirs, "bias"),
        "heads.out.weight": theirs.o_proj.weight,
        "heads.out.bias": theirs.o_proj.bias,
        "epilogue.logit": theirs.sinks,
    }
    copy_weights(ours, weights)
    tables = rotate(modeling_gpt_oss.GptOssRotaryEmbedding, config)
    assert_equal_outputs(ours, theirs, position_embeddings=tables, attention_mask=make_mask(window))


def make_qwen3_next_config():
    return Qwen3NextConfig(
        hidden_size=DIM, num_hidden_layers=4, num_attention_heads=N_HEADS, num_key_value_heads=2, head_dim=8,
        linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=4, linear_value_head_dim=4,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    )  # fmt: skip


def test_qwen3_next_attention_equals_transformers(compose):
    config = make_qwen3_next_config()
    assert config.layer_types == [*["linear_attention"] * 3, "full_attention"]
    theirs = make_theirs(modeling_qwen3_next.Qwen3NextAttention, config, 3)
    ours = make_ours(compose, "qwen3_next", 3)
    q, gate = theirs.q_proj.weight.view(N_HEADS, 2, 8, DIM).unbind(1)  # by head: q, then its gate
    qkv = torch.cat((q.flatten(0, 1), theirs.k_proj.weight, theirs.v_proj.weight))
    weights = {
        "heads.qkv.weight": qkv,
        "heads.out.weight": theirs.o_proj.weight,
        "epilogue.gate.weight": gate,
    }
    norms = {f"heads.{p}_norm.weight": getattr(theirs, f"{p}_norm").weight + 1 for p in "qk"}
    copy_weights(ours, weights | norms)
    tables = rotate(modeling_qwen3_next.Qwen3NextRotaryEmbedding, config)
    assert_equal_outputs(ours, theirs, position_embeddings=tables, attention_mask=make_mask())


def map_convolution(theirs):
    """[C, 1, W] in order of time to [W, C] by distance, whose first row is added to one."""
    weight = theirs.conv1d.weight[:, 0].flip(1).T.clone()
    weight[0] -= 1
    return weight


def test_qwen3_next_delta_rule_equals_transformers(compose):
    config = make_qwen3_next_config()
    theirs = make_theirs(modeling_qwen3_next.Qwen3NextGatedDeltaNet, config, 0)
    parts = theirs.in_proj_qkvz.weight.view(16, -1, DIM).split((4, 4, 8, 8), 1)
    for part in parts[:2]:
        part.data.mul_(LARGE)
    q, k, v, gate = (part.flatten(0, 1) for part in parts)
    write, step = (part.flatten() for part in theirs.in_proj_ba.weight.view(16, 2, -1).unbind(1))
    ours = make_ours(compose, "qwen3_next", 0)
    ours.norm.eps = 4 * config.rms_norm_eps  # they divide queries by the square root of 4 features
    weights = {
        "qkv.weight": torch.cat((q, k, v)),
        "convolution.weight": map_convolution(theirs),
        "rates.step.weight": step,
        "rates.log_rate": theirs.A_log,
        "rates.shift": theirs.dt_bias,
        "write.weight": write,
        "gate.weight": gate,
        "norm.weight": theirs.norm.weight,
        "out.weight": theirs.out_proj.weight,
    }
    copy_weights(ours, weights)
    assert_equal_outputs(ours, theirs)


def make_kimi_config():
    return KimiLinearConfig(
        hidden_size=DIM, num_hidden_layers=4, num_attention_heads=N_HEADS, num_key_value_heads=N_HEADS,
        kv_lora_rank=16, qk_rope_head_dim=2, qk_nope_head_dim=4, v_head_dim=4, linear_head_dim=4,
        linear_num_heads=N_HEADS, linear_attn_config={"full_attn_layers": [4], "kda_layers": [1, 2, 3]},
    )  # fmt: skip


def test_kimi_linear_attention_equals_transformers(compose):
    theirs = make_theirs(modeling_kimi_linear.KimiLinearAttention, make_kimi_config(), 3)
    ours = make_ours(compose, "kimi_linear", 3)
    copy_weights(ours, regroup_latent(theirs, None))
    assert_equal_outputs(ours, theirs, attention_mask=make_mask())


def test_kimi_linear_delta_rule_equals_transformers(compose):
    config = make_kimi_config()
    theirs = make_theirs(modeling_kimi_linear.KimiLinearDeltaAttention, config, 0)
    for projection in (theirs.q_proj, theirs.k_proj):
        projection.weight.data.mul_(LARGE)
    ours = make_ours(compose, "kimi_linear", 0)
    ours.norm.eps = 4 * config.rms_norm_eps
    weights = {
        "qkv.weight": join_qkv(theirs),
        "convolution.weight": map_convolution(theirs),
        "rates.down.weight": theirs.forget_gate.f_a_proj.weight,
        "rates.up.weight": theirs.forget_gate.f_b_proj.weight,
        "rates.log_rate": theirs.forget_gate.A_log,
        "rates.shift": theirs.forget_gate.dt_bias,
        "write.weight": theirs.b_proj.weight,
        "gate_down.weight": theirs.g_a_proj.weight,
        "gate_up.weight": theirs.g_b_proj.weight,
        "norm.weight": theirs.o_norm.weight,
        "out.weight": theirs.o_proj.weight,
    }
    copy_weights(ours, weights)
    assert_equal_outputs(ours, theirs)


@pytest.mark.parametrize("n_layers", [1, 2, 5, 12])
@pytest.mark.parametrize(
    ("preset", "period", "last"),
    [("gemma3", 6, "Attention"), ("kimi_linear", 4, "Attention"), ("qwen3_next", 4, "Attention")],
)
def test_short_model_has_the_end_of_the_pattern(compose, preset, period, last, n_layers):
    model = build_model(compose(f"+preset={preset}", f"model.n_layers={n_layers}"), 31)
    is_full = [
        type(block.mixer).__name__ == last and len(getattr(block.mixer.mask, "parts", ())) == 0
        for block in model.blocks
    ]
    period = min(period, n_layers)
    assert is_full == [(n + 1) % period == 0 for n in range(n_layers)]


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads"), [(1, 1), (4, 1), (12, 1), (16, 2), (20, 2), (36, 4), (64, 8)]
)
def test_number_of_key_heads_follows_the_size(compose, n_heads, n_kv_heads):
    config = compose("+preset=gpt_oss", f"model.n_heads={n_heads}", "model.dim=576")
    assert config["model"]["attention"]["heads"]["n_kv_heads"] == n_kv_heads


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("preset", "key"),
    [
        ("deepseek_v3", "model.attention.heads.q_rank"),
        ("gemma3", "model.window"),
        ("gpt_oss", "model.attention.heads.n_kv_heads"),
        ("kimi_linear", "model.attention.heads.rank"),
        ("qwen3_next", "model.mixer.n_key_heads"),
    ],
)
@pytest.mark.parametrize("size", ["debug", "mini", "S", "M", "L"])
def test_single_key_overrides_a_preset_at_any_size(compose, preset, key, size):
    preset_config, config = (
        compose(f"+preset={preset}", f"size={size}", *line) for line in ([], [f"{key}=2"])
    )
    assert OmegaConf.select(OmegaConf.create(preset_config), key) != 2
    assert OmegaConf.select(OmegaConf.create(config), key) == 2
    with torch.device("meta"):
        build_model(config, 31)


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_learns_and_decodes_as_one_pass(compose, preset):
    config = compose(f"+preset={preset}")
    losses = train_on_one_batch(config)
    assert losses[2] < losses[0]
    for variant in compose_variants([f"+preset={preset}"]):
        outcomes = evaluate_variant(variant, ["cache", "model_cache", "state_size"])
        assert [outcome.status for outcome in outcomes] == ["passed"] * 3, outcomes


@pytest.mark.rare(sample=5)
@pytest.mark.parametrize("preset", PRESETS)
def test_preset_passes_all_conformance_tests(preset):
    for variant in compose_variants([f"+preset={preset}"]):
        outcomes = evaluate_variant(variant)
        assert {outcome.status for outcome in outcomes} == {"passed"}, [*map(str, outcomes)]


@pytest.mark.parametrize("n_key_heads", [0, 3, 8])
def test_key_heads_that_do_not_divide_the_heads_fail(n_key_heads):
    with pytest.raises(ValueError, match=rf"n_key_heads={n_key_heads} does not divide n_heads=4"):
        GatedDeltaNet(24, 4, n_key_heads=n_key_heads)
