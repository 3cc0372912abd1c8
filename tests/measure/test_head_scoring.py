"""Head scores of models: a constructed copying head is found, and missing scores have a reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnlab.measure.head_scoring import (
    compute_head_logits,
    compute_head_scores,
    make_repeated_tokens,
    select_probe_examples,
)
from attnlab.model.build import build_model

VOCABULARY = 23
EXAMPLES = [torch.arange(20)[None] % 7]


def build_test_model(compose: Callable[..., Any], *overrides: str) -> Any:
    return build_model(compose("model.dim=32", "model.n_heads=4", *overrides), VOCABULARY)


def test_every_head_has_every_score_with_its_chance_level(compose: Callable[..., Any]) -> None:
    model = build_test_model(compose, "heads=gqa", "model.n_layers=3")
    scores = compute_head_scores(model, EXAMPLES, 32)
    tables = {name for name, value in scores.items() if isinstance(value, list)}
    assert tables - {"positional"} == set(scores["chance"])
    assert tables >= {"previous", "current", "duplicate", "induction", "copying", "sink", "entropy", "local"}
    assert all([len(row) for row in scores[name]] == [4, 4, 4] for name in tables)
    assert scores["notes"] == {}
    assert model.training, "the mode of the model changed"


def test_an_untrained_model_scores_near_chance(compose: Callable[..., Any]) -> None:
    scores = compute_head_scores(build_test_model(compose, "heads=mha", "position=none"), EXAMPLES, 32)
    for name in ("previous", "current", "duplicate", "induction", "sink", "entropy", "local"):
        assert torch.tensor(scores[name]).mean().item() == pytest.approx(scores["chance"][name], abs=0.05), (
            name
        )


def test_a_constructed_copying_head_has_the_highest_copying_score(
    compose: Callable[..., Any],
) -> None:
    model = build_test_model(compose, "heads=gqa", "position=none", "model.n_layers=1", "model.tie=true")
    with torch.no_grad():
        model.embedding.weight.copy_(torch.eye(VOCABULARY, 32) * 5)
        heads = model.blocks[0].mixer.heads
        q_width = heads.n_heads * heads.head_dim
        v = heads.qkv.weight[q_width + heads.n_kv_heads * heads.head_dim :].view(2, heads.head_dim, 32)
        out = heads.out.weight.view(32, 4, heads.head_dim)
        v.normal_(generator=torch.Generator().manual_seed(0))
        for head, sign in ((1, -1.0), (2, 1.0)):  # of the first group, and of the second
            out[:, head] = sign * v[head // 2].T
    copying = compute_head_scores(model, EXAMPLES, 16)["copying"][0]
    assert copying[2] == max(copying)
    assert copying[1] == min(copying) == pytest.approx(-1, abs=0.02)


@pytest.mark.parametrize("values", ["own", "residual", "embedding"])
def test_head_logits_sum_to_the_logits_of_the_layer(compose: Callable[..., Any], values: str) -> None:
    """A token alone attends to itself, so the sum over heads is the layer's output, also for mixed values."""
    model = build_test_model(compose, "heads=mha", f"values={values}", "model.n_layers=3").double()
    if model.values is not None:
        with torch.no_grad():
            model.values.table.weight.mul_(100)
    outputs: list[torch.Tensor] = []
    hooks = [
        block.mixer.register_forward_hook(lambda *passed: outputs.append(passed[-1]))
        for block in model.blocks
    ]
    head_logits = [rise.sum(0) for rise in compute_head_logits(model, torch.tensor([[5]]))]
    for hook in hooks:
        hook.remove()
    layer_logits = [(output[0] @ model.head.weight.T).detach().float().numpy() for output in outputs]
    assert len(head_logits) == len(layer_logits) == 3
    for rise, layer_logit in zip(head_logits, layer_logits, strict=True):
        assert rise == pytest.approx(layer_logit, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("heads", "name"), [("mla", "LatentHeads"), ("differential", "DifferentialHeads")])
def test_heads_without_values_of_their_own_have_no_copying_score(
    compose: Callable[..., Any], heads: str, name: str
) -> None:
    scores = compute_head_scores(build_test_model(compose, f"heads={heads}"), EXAMPLES, 32)
    assert scores["copying"] is None
    assert name in scores["notes"]["copying"]
    assert scores["induction"] is not None


def test_a_model_without_attention_has_no_head_scores(compose: Callable[..., Any]) -> None:
    assert compute_head_scores(build_test_model(compose, "model=gru"), EXAMPLES, 32) == {}


def test_a_context_too_short_for_repeats_has_a_note(compose: Callable[..., Any]) -> None:
    scores = compute_head_scores(build_test_model(compose, "heads=mha"), [torch.arange(5)[None]], 5)
    assert scores["induction"] is None
    assert "too short" in scores["notes"]["induction"]
    assert scores["local"] is None


def test_probe_examples_have_no_padding() -> None:
    batch = {"tokens": torch.zeros(3, 9, dtype=torch.long), "lengths": torch.tensor([4, 9, 1])}
    assert [text.shape[1] for text in select_probe_examples(batch, 2)] == [4, 9]


def test_probe_examples_end_with_their_first_document() -> None:
    batch = {
        "tokens": torch.arange(12).view(2, 6),
        "documents": torch.tensor([[0, 0, 1, 1, 0, 1], [0, 0, 0, 0, 1, 1]]),  # padding is at the end
        "lengths": torch.tensor([4, 6]),
    }
    assert [text.tolist() for text in select_probe_examples(batch)] == [[[0, 1]], [[6, 7, 8, 9]]]


def test_repeated_tokens_are_deterministic_and_periodic() -> None:
    rows = make_repeated_tokens(64, 200)
    assert torch.equal(rows, make_repeated_tokens(64, 200))
    assert rows.shape == (4, 64)
    assert all(torch.equal(row[:16].repeat(4), row) and len(row[:16].unique()) == 16 for row in rows)
