"""Head scores of whole models: the planted head is found, in its place, and what has no score says why."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnlab.measure.heads import head_scores, probe_texts, repeated, written
from attnlab.model.build import build_model

VOCABULARY = 23
TEXTS = [torch.arange(20)[None] % 7]


def model_of(compose: Callable[..., Any], *overrides: str) -> Any:
    return build_model(compose("model.dim=32", "model.n_heads=4", *overrides), VOCABULARY)


def test_every_score_is_there_for_every_head_with_its_chance(compose: Callable[..., Any]) -> None:
    model = model_of(compose, "heads=gqa", "model.n_layers=3")
    found = head_scores(model, TEXTS, 32)
    tables = {name for name, value in found.items() if isinstance(value, list)}
    assert tables - {"positional"} == set(found["chance"])
    assert tables >= {"previous", "current", "duplicate", "induction", "copying", "sink", "entropy", "local"}
    assert all([len(row) for row in found[name]] == [4, 4, 4] for name in tables)
    assert found["notes"] == {}
    assert model.training, "the model is left as it was"


def test_an_untrained_model_scores_near_chance(compose: Callable[..., Any]) -> None:
    found = head_scores(model_of(compose, "heads=mha", "position=none"), TEXTS, 32)
    for name in ("previous", "current", "duplicate", "induction", "sink", "entropy", "local"):
        assert torch.tensor(found[name]).mean().item() == pytest.approx(found["chance"][name], abs=0.05), name


def test_a_planted_copying_head_is_found_and_grouped_heads_read_their_groups_values(
    compose: Callable[..., Any],
) -> None:
    model = model_of(compose, "heads=gqa", "position=none", "model.n_layers=1", "model.tie=true")
    with torch.no_grad():
        model.embedding.weight.copy_(torch.eye(VOCABULARY, 32) * 5)
        heads = model.blocks[0].mixer.heads
        wide = heads.n_heads * heads.head_dim
        v = heads.qkv.weight[wide + heads.n_kv_heads * heads.head_dim :].view(2, heads.head_dim, 32)
        out = heads.out.weight.view(32, 4, heads.head_dim)
        v.normal_(generator=torch.Generator().manual_seed(0))
        for head, sign in ((1, -1.0), (2, 1.0)):  # of the first group, and of the second
            out[:, head] = sign * v[head // 2].T
    copying = head_scores(model, TEXTS, 16)["copying"][0]
    assert copying[2] == max(copying)
    assert copying[1] == min(copying) == pytest.approx(-1, abs=0.02)


@pytest.mark.parametrize("values", ["own", "residual", "embedding"])
def test_what_heads_write_at_one_token_is_what_their_layer_adds(
    compose: Callable[..., Any], values: str
) -> None:
    """A token alone attends to itself, so the layer's output is what its heads write there, mixtures too."""
    model = model_of(compose, "heads=mha", f"values={values}", "model.n_layers=3").double()
    if model.values is not None:
        with torch.no_grad():
            model.values.table.weight.mul_(100)
    outputs: list[torch.Tensor] = []
    hooks = [
        block.mixer.register_forward_hook(lambda *passed: outputs.append(passed[-1]))
        for block in model.blocks
    ]
    found = [rise.sum(0) for rise in written(model, torch.tensor([[5]]))]
    for hook in hooks:
        hook.remove()
    added = [(output[0] @ model.head.weight.T).detach().float().numpy() for output in outputs]
    assert len(found) == len(added) == 3
    for rise, whole in zip(found, added, strict=True):
        assert rise == pytest.approx(whole, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("heads", "name"), [("mla", "LatentHeads"), ("differential", "DifferentialHeads")])
def test_heads_without_values_of_their_own_have_no_copying_score(
    compose: Callable[..., Any], heads: str, name: str
) -> None:
    found = head_scores(model_of(compose, f"heads={heads}"), TEXTS, 32)
    assert found["copying"] is None
    assert name in found["notes"]["copying"]
    assert found["induction"] is not None


def test_a_model_without_attention_has_no_head_scores(compose: Callable[..., Any]) -> None:
    assert head_scores(model_of(compose, "model=gru"), TEXTS, 32) == {}


def test_a_context_without_room_for_repeats_says_so(compose: Callable[..., Any]) -> None:
    found = head_scores(model_of(compose, "heads=mha"), [torch.arange(5)[None]], 5)
    assert found["induction"] is None
    assert "no room" in found["notes"]["induction"]
    assert found["local"] is None


def test_probe_texts_leave_padding_out() -> None:
    batch = {"tokens": torch.zeros(3, 9, dtype=torch.long), "lengths": torch.tensor([4, 9, 1])}
    assert [text.shape[1] for text in probe_texts(batch, 2)] == [4, 9]


def test_random_tokens_are_the_same_in_all_runs_and_each_text_repeats_one_period() -> None:
    rows = repeated(64, 200)
    assert torch.equal(rows, repeated(64, 200))
    assert rows.shape == (4, 64)
    assert all(torch.equal(row[:16].repeat(4), row) and len(row[:16].unique()) == 16 for row in rows)
