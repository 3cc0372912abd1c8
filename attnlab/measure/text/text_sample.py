"""A generated sample of text, from the same prompt and random draws in every run.

The model's input never exceeds its trained length. When the window is full, generation continues from its
second half, so a sample does not test untrained lengths.
"""

from typing import Any

import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import Unsupported
from attnlab.measure.text.probe_window import choose_probe_window, is_text
from attnlab.model.generation import Decoder, Sampling
from attnlab.model.transformer import Transformer

N_NEW_TOKENS = 160
TEMPERATURE = 0.8
SEED = 0


def sample_continuation(model: Transformer, data: Any) -> dict[str, str | None]:
    """Sample the model's continuation of the first half of the displayed window.

    Returns:
        prompt: the first half of the window.
        rest: the text's own continuation.
        sample: the model's continuation, or None.
        reason: why there is no sample.
        {} for a task that is no text.
    """
    if not is_text(data.task):
        return {}
    window = choose_probe_window(data)[0].tolist()
    half = max(1, len(window) // 2)
    result: dict[str, str | None] = {"sample": None, "reason": None}
    try:
        new_tokens = _generate_tokens(model, window[:half], max(2, min(len(window), data.task.length)))
        result["sample"] = "".join(data.task.decode(window[:half] + new_tokens)[half:])
    except Unsupported as error:
        result["reason"] = str(error)
    pieces = data.task.decode(window)
    return result | {"prompt": "".join(pieces[:half]), "rest": "".join(pieces[half:])}


def _generate_tokens(model: Transformer, prompt: list[int], longest: int) -> list[int]:
    """Return `N_NEW_TOKENS` new tokens, each with fewer than `longest` tokens before it."""
    decoder = Decoder(model, DynamicCache)
    tokens = list(prompt)
    new_tokens = list[int]()
    while len(new_tokens) < N_NEW_TOKENS:
        tokens = tokens if len(tokens) < longest else tokens[-max(1, longest // 2) :]
        sampling = Sampling(TEMPERATURE, seed=SEED + len(new_tokens))
        count = min(longest - len(tokens), N_NEW_TOKENS - len(new_tokens))
        stream = decoder.stream_tokens(torch.tensor([tokens]), count, sampling)
        sampled = [int(token.item()) for token in stream]
        tokens = tokens + sampled
        new_tokens = new_tokens + sampled
    return new_tokens
