"""Loading loses no bit of a tensor, and no head of a file whose config ties the embedding."""

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
