"""Loading loses no bit of a tensor, and no head of a file whose config ties the embedding."""

import json
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_huggingface import BOUNDS, CASES, make_hf_model
from transformers import AutoModelForCausalLM

from attnlab.model.huggingface.conversion import load_hf_model, save_hf_model
from attnlab.model.huggingface.shards import ShardReader

TIED = {"gpt2": "transformer.wte.weight", "llama-tied": "model.embed_tokens.weight"}
HEAD = "lm_head.weight"


@pytest.fixture(params=TIED)
def tied_checkpoint(request, tmp_path):
    """Folder whose config ties the embedding, the embedding's name, and the family's error bound."""
    make_hf_model(CASES[request.param], tmp_path)
    return tmp_path, TIED[request.param], BOUNDS[CASES[request.param].model_type]


def edit_tensors(folder, new):
    """Replace the tensors of a folder's file by those of `new(tensors)`."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | new(tensors), path, metadata={"format": "pt"})


@torch.no_grad()
def test_different_head_in_a_tied_file_is_used_as_in_transformers(tied_checkpoint, tmp_path):
    folder, embedding, bound = tied_checkpoint
    edit_tensors(folder, lambda tensors: {HEAD: tensors[embedding].flip(0)})
    tokens = torch.arange(13)[None]
    expected = AutoModelForCausalLM.from_pretrained(folder).eval()(tokens).logits
    config, ours = load_hf_model(folder)
    assert (ours(tokens) - expected).abs().max() < bound
    assert config["tie"] is False
    save_hf_model(tmp_path / "ours", ours, config)
    assert torch.equal(load_hf_model(tmp_path / "ours")[1](tokens), ours(tokens))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_head_equal_to_the_embedding_stays_tied(tied_checkpoint, dtype):
    folder, embedding, _ = tied_checkpoint
    edit_tensors(folder, lambda tensors: {embedding: tensors[embedding].bfloat16().double()})
    edit_tensors(folder, lambda tensors: {HEAD: tensors[embedding].to(dtype).clone()})
    config, ours = load_hf_model(folder)
    assert config["tie"] is True
    assert ours.head.weight is ours.embedding.weight


def test_head_of_another_shape_is_rejected(tied_checkpoint):
    folder, _, _ = tied_checkpoint
    edit_tensors(folder, lambda tensors: {HEAD: torch.ones(31, 5)})
    with pytest.raises(ValueError, match=r"lm_head.weight has shape \(31, 5\)"):
        load_hf_model(folder)


@pytest.mark.parametrize("head", [torch.clone, torch.neg], ids=["equal", "other"])
def test_each_tensor_is_read_once(tied_checkpoint, head, monkeypatch):
    folder, embedding, _ = tied_checkpoint
    edit_tensors(folder, lambda tensors: {HEAD: head(tensors[embedding])})
    read_counts, get_tensor = Counter(), ShardReader.get_tensor
    monkeypatch.setattr(
        ShardReader, "get_tensor", lambda self, name: read_counts.update([name]) or get_tensor(self, name)
    )
    load_hf_model(folder)
    assert read_counts[HEAD] == 1
    assert set(read_counts.values()) == {1}


def test_dtype_defaults_to_that_of_the_file(tmp_path):
    make_hf_model(CASES["gpt2"]).to(torch.bfloat16).save_pretrained(tmp_path)
    assert {p.dtype for p in load_hf_model(tmp_path)[1].parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load_hf_model(tmp_path, dtype=torch.float32)[1].parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("names", "narrow", "others", "widest"),
    [
        ("embed_tokens", torch.bfloat16, torch.float64, torch.float64),
        ("embed_tokens", torch.float64, torch.bfloat16, torch.float64),
        ("q_proj", torch.bfloat16, torch.float32, torch.float32),
        ("norm", torch.float16, torch.bfloat16, torch.float32),
    ],
)
def test_mixed_dtypes_load_without_loss(tmp_path, names, narrow, others, widest):
    make_hf_model(CASES["llama"], tmp_path / "theirs")
    edit_tensors(
        tmp_path / "theirs",
        lambda tensors: {
            name: tensor.to(narrow if names in name else others) for name, tensor in tensors.items()
        },
    )
    config, model = load_hf_model(tmp_path / "theirs")
    assert {p.dtype for p in model.parameters()} == {widest}
    save_hf_model(tmp_path / "ours", model, config)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].to(widest), after[name]) for name in before)


def test_ignored_tensors_do_not_widen_the_dtype(tmp_path):
    make_hf_model(CASES["gpt2"]).float().save_pretrained(tmp_path)
    edit_tensors(tmp_path, lambda tensors: {"h.0.attn.bias": torch.ones(1, 1, 29, 29).double()})
    assert {p.dtype for p in load_hf_model(tmp_path)[1].parameters()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantized_weights_are_rejected(tmp_path, dtype):
    make_hf_model(CASES["llama"], tmp_path)
    edit_tensors(tmp_path, lambda tensors: {"model.norm.weight": torch.ones(24).to(dtype)})
    with pytest.raises(ValueError, match=f"model.norm.weight has dtype {dtype}.*float32") as error:
        load_hf_model(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_rejected_with_their_name(tmp_path, value):
    make_hf_model(CASES["llama"], tmp_path)
    edit_tensors(tmp_path, lambda tensors: {"model.norm.weight": torch.tensor([value] * 2 + [1.0] * 22)})
    message = "model.safetensors: model.norm.weight has 2 NaN or infinite values of 24: the weights"
    with pytest.raises(ValueError, match=message) as error:
        load_hf_model(tmp_path)
    assert "\n" not in str(error.value)


def test_values_beyond_the_range_of_the_requested_dtype_are_rejected(tmp_path):
    make_hf_model(CASES["llama"], tmp_path)
    edit_tensors(tmp_path, lambda tensors: {"model.norm.weight": torch.full((24,), 1e5)})
    with pytest.raises(ValueError, match=r"in torch\.float16: norm\.weight has 24 NaN or infinite values"):
        load_hf_model(tmp_path, dtype=torch.float16)
    load_hf_model(tmp_path, dtype=torch.bfloat16)


@pytest.fixture
def shards(tmp_path):
    """Folder of a checkpoint in several files, and its index."""
    make_hf_model(CASES["llama"]).save_pretrained(tmp_path, max_shard_size="9KB")
    return tmp_path, json.loads((tmp_path / "model.safetensors.index.json").read_text())


def test_missing_shard_is_named(shards):
    folder, index = shards
    files = sorted(set(index["weight_map"].values()))
    (folder / files[1]).unlink()
    message = (
        rf"{files[1]} is missing, and model.safetensors.index.json names it .missing: 1 of {len(files)} "
    )
    with pytest.raises(ValueError, match=message) as error:
        load_hf_model(folder)
    assert "\n" not in str(error.value)


def test_tensor_in_two_shards_is_rejected(shards):
    folder, index = shards
    first, second = sorted(set(index["weight_map"].values()))[:2]
    tensors = load_file(folder / first)
    name = next(iter(tensors))
    save_file(load_file(folder / second) | {name: -tensors[name]}, folder / second)
    with pytest.raises(ValueError, match=f"{second} has {name}, and {first} has {name}"):
        load_hf_model(folder)


def test_tensor_with_and_without_the_prefix_is_rejected(tmp_path):
    make_hf_model(CASES["llama"], tmp_path)
    edit_tensors(tmp_path, lambda tensors: {"norm.weight": -tensors["model.norm.weight"]})
    with pytest.raises(ValueError, match=r"norm\.weight, which is the same tensor"):
        load_hf_model(tmp_path)


@pytest.mark.parametrize("code", ["F8_E8M0", "F4", "F6_E2M3", "I8", "C64"])
def test_tensor_of_any_other_dtype_is_rejected_in_one_line(tmp_path, code):
    """The header of the file is edited: the safetensors package cannot write all of them."""
    make_hf_model(CASES["llama"], tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    bits = {"F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "I8": 8, "C64": 64}[code]
    offset = max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
    n_bytes = 24 * bits // 8
    header["rotary_emb.inv_freq"] = header["model.norm.weight"]  # a name that is ignored
    entry = {"dtype": code, "shape": [24], "data_offsets": [offset, offset + n_bytes]}
    header["model.norm.weight"] = entry
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :] + bytes(n_bytes))
    with pytest.raises(ValueError, match=r"norm\.weight has dtype|Dtype not understood") as error:
        load_hf_model(tmp_path)
    assert "\n" not in str(error.value)
