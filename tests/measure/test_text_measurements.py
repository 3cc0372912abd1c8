"""Measurements on text: the displayed window, token categories, losses by category, samples."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnlab.measure.text import text_sample
from attnlab.measure.text.category_losses import find_repeated_pairs, measure_category_losses
from attnlab.measure.text.category_rules import CHARACTER_CATEGORIES, categorize_tokens
from attnlab.measure.text.probe_window import choose_probe_window, compute_readability, find_word_start
from attnlab.measure.text.text_sample import N_NEW_TOKENS, sample_continuation
from attnlab.model.build import build_model, instantiate_config
from attnlab.model.loss import cross_entropy

torch.set_num_threads(1)
CODE = "x[0] = {1: 2}; " * 40


def build_model_and_data(config: dict[str, Any]) -> tuple[Any, Any]:
    data = instantiate_config(config["data"])
    return build_model(config, data.task.vocab_size), data


def test_a_word_start_follows_another_token() -> None:
    assert find_word_start(list("at the end")) == 3
    assert find_word_start(["e", " the", " end"]) == 1
    assert find_word_start(list("(1) [2]")) is None


def test_readability_counts_letters_and_single_spaces() -> None:
    assert compute_readability("the cat") == 1
    assert compute_readability("a    b") == pytest.approx(2 / 5)
    assert compute_readability("c['red']") < 0.6


def test_the_probe_window_is_prose_if_the_text_has_any(compose: Callable[..., Any], tmp_path: Any) -> None:
    config = compose("data.val_fraction=0.5")
    (tmp_path / "book.txt").write_text(CODE * 2 + "here are some words to read in a row " * 5 + CODE)
    data = instantiate_config(config["data"])
    window = "".join(data.task.decode(choose_probe_window(data)[0].tolist()))
    assert window.replace(" ", "").isalpha()
    assert not window[0].isspace()
    assert choose_probe_window(data).shape == data.probe_tokens(1).shape


def test_the_probe_window_of_other_tasks_is_the_first_example(compose: Callable[..., Any]) -> None:
    model, example = build_model_and_data(compose())[0], torch.arange(8)[None]
    data = SimpleNamespace(task=SimpleNamespace(length=8), probe_tokens=lambda count: example)
    assert choose_probe_window(data) is example
    assert measure_category_losses(model, data.task, "cpu") == {}
    assert sample_continuation(model, data) == {}


def test_every_token_has_its_category() -> None:
    expected = ["first", "inside", "other", "space", "digit", "digit", "first", "space"]
    assert categorize_tokens(list("Ab, 12é\n")) == expected
    assert categorize_tokens(["the", " cat", "s", " 9", "  "]) == [
        "first",
        "first",
        "inside",
        "digit",
        "space",
    ]


def test_a_pair_is_repeated_only_after_its_first_occurrence() -> None:
    assert find_repeated_pairs(torch.tensor([[5, 7, 5, 7, 7]])).tolist() == [[False, False, True, False]]


def test_category_losses_average_to_the_mean_loss(compose: Callable[..., Any]) -> None:
    model, data = build_model_and_data(compose())
    losses = measure_category_losses(model, data.task, "cpu")
    windows = data.task.spans(256, data.task.length)
    with torch.no_grad():
        loss = cross_entropy(model(windows[:, :-1]), windows[:, 1:]).double().mean().item()
    for categories in (set(CHARACTER_CATEGORIES), {"seen", "new"}):
        parts = [losses[category] for category in categories & losses.keys()]
        total = sum(part["targets"] for part in parts)
        assert total == windows[:, 1:].numel()
        assert sum(part["loss"] * part["targets"] for part in parts) / total == pytest.approx(loss, rel=1e-6)
    assert model.training, "the mode of the model changed"


def test_a_sample_is_deterministic_and_within_the_trained_length(
    compose: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = build_model_and_data(
        compose("position=learned")
    )  # learned positions end at the trained length
    sample, second_sample = sample_continuation(model, data), sample_continuation(model, data)
    assert sample == second_sample
    assert sample["sample"] is not None
    assert len(sample["sample"]) == N_NEW_TOKENS
    window = "".join(data.task.decode(choose_probe_window(data)[0].tolist()))
    assert f"{sample['prompt']}{sample['rest']}" == window
    monkeypatch.setattr(text_sample, "SEED", 1)
    assert sample_continuation(model, data)["sample"] != sample["sample"]


def test_a_model_that_cannot_generate_has_a_reason(compose: Callable[..., Any]) -> None:
    sample = sample_continuation(*build_model_and_data(compose("mask=full", "decode=none")))
    assert sample["sample"] is None
    assert sample["reason"]
