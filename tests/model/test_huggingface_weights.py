"""No tensor of a file is lost: neither the bits of one, nor a head beside an embedding called tied."""

from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_huggingface import BOUNDS, CASES, theirs
from transformers import AutoModelForCausalLM

from attnlab.model.huggingface.convert import load, save
from attnlab.model.huggingface.shards import Shards

TIED = {"gpt2": "transformer.wte.weight", "llama-tied": "model.embed_tokens.weight"}
HEAD = "lm_head.weight"


@pytest.fixture(params=TIED)
def tied(request, tmp_path):
    """(a folder whose config ties the embedding, its embedding's name, the bound of its family)."""
    theirs(CASES[request.param], tmp_path)
    return tmp_path, TIED[request.param], BOUNDS[CASES[request.param].model_type]


def change(folder, new):
    """`new(tensors)`: the tensors of the folder's file that are to be others."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | new(tensors), path, metadata={"format": "pt"})


@torch.no_grad()
def test_another_head_in_the_file_is_used_as_theirs_is(tied, tmp_path):
    folder, embedding, bound = tied
    change(folder, lambda tensors: {HEAD: tensors[embedding].flip(0)})
    tokens = torch.arange(13)[None]
    want = AutoModelForCausalLM.from_pretrained(folder).eval()(tokens).logits
    config, ours = load(folder)
    assert (ours(tokens) - want).abs().max() < bound
    assert config["tie"] is False
    save(tmp_path / "ours", ours, config)
    assert torch.equal(load(tmp_path / "ours")[1](tokens), ours(tokens))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_head_that_equals_the_embedding_stays_tied(tied, dtype):
    folder, embedding, _ = tied
    change(folder, lambda tensors: {embedding: tensors[embedding].bfloat16().double()})
    change(folder, lambda tensors: {HEAD: tensors[embedding].to(dtype).clone()})
    config, ours = load(folder)
    assert config["tie"] is True
    assert ours.head.weight is ours.embedding.weight


def test_a_head_of_another_shape_is_refused(tied):
    folder, _, _ = tied
    change(folder, lambda tensors: {HEAD: torch.ones(31, 5)})
    with pytest.raises(ValueError, match=r"lm_head.weight has shape \(31, 5\)"):
        load(folder)


@pytest.mark.parametrize("head", [torch.clone, torch.neg], ids=["equal", "other"])
def test_each_tensor_is_read_once(tied, head, monkeypatch):
    folder, embedding, _ = tied
    change(folder, lambda tensors: {HEAD: head(tensors[embedding])})
    read, tensor = Counter(), Shards.tensor
    monkeypatch.setattr(Shards, "tensor", lambda self, name: read.update([name]) or tensor(self, name))
    load(folder)
    assert read[HEAD] == 1
    assert set(read.values()) == {1}


def test_dtype_is_the_files_or_the_callers(tmp_path):
    theirs(CASES["gpt2"]).to(torch.bfloat16).save_pretrained(tmp_path)
    assert {p.dtype for p in load(tmp_path)[1].parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load(tmp_path, dtype=torch.float32)[1].parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("names", "narrow", "others", "widest"),
    [
        ("embed_tokens", torch.bfloat16, torch.float64, torch.float64),
        ("embed_tokens", torch.float64, torch.bfloat16, torch.float64),
        ("q_proj", torch.bfloat16, torch.float32, torch.float32),
        ("norm", torch.float16, torch.bfloat16, torch.float32),
    ],
)
def test_the_widest_dtype_of_a_file_keeps_all_its_bits(tmp_path, names, narrow, others, widest):
    theirs(CASES["llama"], tmp_path / "theirs")
    change(
        tmp_path / "theirs",
        lambda tensors: {
            name: tensor.to(narrow if names in name else others) for name, tensor in tensors.items()
        },
    )
    config, model = load(tmp_path / "theirs")
    assert {p.dtype for p in model.parameters()} == {widest}
    save(tmp_path / "ours", model, config)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].to(widest), after[name]) for name in before)


def test_what_is_passed_over_does_not_widen(tmp_path):
    theirs(CASES["gpt2"]).float().save_pretrained(tmp_path)
    change(tmp_path, lambda tensors: {"h.0.attn.bias": torch.ones(1, 1, 29, 29).double()})
    assert {p.dtype for p in load(tmp_path)[1].parameters()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_weights_are_refused(tmp_path, dtype):
    theirs(CASES["llama"], tmp_path)
    change(tmp_path, lambda tensors: {"model.norm.weight": torch.ones(24).to(dtype)})
    with pytest.raises(ValueError, match=f"model.norm.weight holds {dtype}.*float32") as refused:
        load(tmp_path)
    assert "\n" not in str(refused.value)
