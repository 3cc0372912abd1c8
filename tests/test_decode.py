"""Generation through every shipped cache, made as a run makes it."""

import pytest
import torch

from attnlab.build import make
from attnlab.decode import generate
from attnlab.laws.compose import alone, options


@pytest.mark.parametrize("cache", [option for option in options("decode") if option != "none"])
def test_a_cache_changes_nothing_that_is_generated(cache):
    variant = alone("decode", cache)
    model, prompt = variant.model(), variant.tokens()[:, :6]
    expected = generate(model, prompt, 5, None)
    assert expected.shape == (2, 11)
    assert torch.equal(generate(model, prompt, 5, make(variant.cache)), expected)
