"""What a model writes: a sample from the same prompt with the same draws in every run.

Surprising: what it reads is never longer than what it was trained at. Where the window is full, it goes on
from its second half, so a sample says nothing about lengths that were not trained.
"""

from typing import Any

import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import Unsupported
from attnlab.measure.text.probe import is_text, probe
from attnlab.model.generation import Decoder, Sampling
from attnlab.model.transformer import Transformer

TOKENS = 160
TEMPERATURE = 0.8
SEED = 0


def written(model: Transformer, data: Any) -> dict[str, str | None]:
    """`prompt`: the first half of the window that maps are shown on; `rest`: how the text goes on there;
    `sample`: how the model does, or None, and `why`. {} where the task is no text.
    """
    if not is_text(data.task):
        return {}
    window = probe(data)[0].tolist()
    half = max(1, len(window) // 2)
    said: dict[str, str | None] = {"sample": None, "why": None}
    try:
        new = _sampled(model, window[:half], max(2, min(len(window), data.task.length)))
        said["sample"] = "".join(data.task.decode(window[:half] + new)[half:])
    except Unsupported as error:
        said["why"] = str(error)
    words = data.task.decode(window)
    return said | {"prompt": "".join(words[:half]), "rest": "".join(words[half:])}


def _sampled(model: Transformer, prompt: list[int], longest: int) -> list[int]:
    """`TOKENS` new tokens, of which none is written behind `longest` others or more."""
    decoder = Decoder(model, DynamicCache)
    tokens = list(prompt)
    new = list[int]()
    while len(new) < TOKENS:
        tokens = tokens if len(tokens) < longest else tokens[-max(1, longest // 2) :]
        sampling = Sampling(TEMPERATURE, seed=SEED + len(new))
        count = min(longest - len(tokens), TOKENS - len(new))
        stream = decoder.stream(torch.tensor([tokens]), count, sampling)
        drawn = [int(token.item()) for token in stream]
        tokens = tokens + drawn
        new = new + drawn
    return new
