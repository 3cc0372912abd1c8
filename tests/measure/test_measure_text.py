"""Text: the window that is shown can be read, a token has one kind, samples are the same every time."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnlab.measure.text import written as writing
from attnlab.measure.text.kinds import by_kind, seen_before
from attnlab.measure.text.probe import begin, probe, prose
from attnlab.measure.text.signs import SIGNS, signs_of
from attnlab.measure.text.written import TOKENS, written
from attnlab.model.build import build_model, make
from attnlab.model.loss import cross_entropy

torch.set_num_threads(1)
CODE = "x[0] = {1: 2}; " * 40


def of(config: dict[str, Any]) -> tuple[Any, Any]:
    data = make(config["data"])
    return build_model(config, data.task.vocab_size), data


def test_a_window_begins_with_a_word() -> None:
    assert begin(list("at the end")) == 3
    assert begin(["e", " the", " end"]) == 1
    assert begin(list("(1) [2]")) is None


def test_prose_has_letters_and_single_spaces() -> None:
    assert prose("the cat") == 1
    assert prose("a    b") == pytest.approx(2 / 5)
    assert prose("c['red']") < 0.6


def test_the_window_shown_is_prose_where_the_text_has_any(compose: Callable[..., Any], tmp_path: Any) -> None:
    config = compose("data.val_fraction=0.5")
    (tmp_path / "book.txt").write_text(CODE * 2 + "here are some words to read in a row " * 5 + CODE)
    data = make(config["data"])
    shown = "".join(data.task.decode(probe(data)[0].tolist()))
    assert shown.replace(" ", "").isalpha()
    assert not shown[0].isspace()
    assert probe(data).shape == data.probe(1).shape


def test_what_is_no_text_shows_its_first_example(compose: Callable[..., Any]) -> None:
    model, first = of(compose())[0], torch.arange(8)[None]
    drawn = SimpleNamespace(task=SimpleNamespace(length=8), probe=lambda count: first)
    assert probe(drawn) is first
    assert by_kind(model, drawn.task, "cpu") == {}
    assert written(model, drawn) == {}


def test_every_sign_has_its_kind() -> None:
    said = ["first", "inside", "other", "space", "digit", "digit", "first", "space"]
    assert signs_of(list("Ab, 12é\n")) == said
    assert signs_of(["the", " cat", "s", " 9", "  "]) == ["first", "first", "inside", "digit", "space"]


def test_a_pair_counts_as_seen_only_after_it_stood_there() -> None:
    assert seen_before(torch.tensor([[5, 7, 5, 7, 7]])).tolist() == [[False, False, True, False]]


def test_kinds_divide_the_loss(compose: Callable[..., Any]) -> None:
    model, data = of(compose())
    found = by_kind(model, data.task, "cpu")
    windows = data.task.spans(256, data.task.length)
    with torch.no_grad():
        loss = cross_entropy(model(windows[:, :-1]), windows[:, 1:]).double().mean().item()
    for division in (set(SIGNS), {"seen", "new"}):
        parts = [found[kind] for kind in division & found.keys()]
        total = sum(part["targets"] for part in parts)
        assert total == windows[:, 1:].numel()
        assert sum(part["loss"] * part["targets"] for part in parts) / total == pytest.approx(loss, rel=1e-6)
    assert model.training, "the model is left as it was"


def test_a_sample_is_the_same_every_time_and_never_behind_more_than_was_trained(
    compose: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = of(compose("position=learned"))  # which knows no position beyond
    found, again = written(model, data), written(model, data)
    assert found == again
    assert found["sample"] is not None
    assert len(found["sample"]) == TOKENS
    window = "".join(data.task.decode(probe(data)[0].tolist()))
    assert f"{found['prompt']}{found['rest']}" == window
    monkeypatch.setattr(writing, "SEED", 1)
    assert written(model, data)["sample"] != found["sample"]


def test_a_model_that_cannot_write_says_why(compose: Callable[..., Any]) -> None:
    found = written(*of(compose("mask=full", "decode=none")))
    assert found["sample"] is None
    assert found["why"]
