"""Generation: one prefill over the prompt, then one token at a time through the caches. Without caches, the
whole text each time.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnlab.model import Transformer


@torch.inference_mode()
def generate(
    model: Transformer, prompt_BT: Tensor, new_tokens: int, make_cache: Callable[[], Any] | None
) -> Tensor:
    """Greedy continuation: prompt [B, T] -> [B, T + new_tokens]. `make_cache` None computes every step anew.

    ValueError for an empty prompt or fewer than one new token.
    """
    if prompt_BT.shape[1] < 1 or new_tokens < 1:
        raise ValueError(
            f"generate needs a prompt and new_tokens >= 1, got {prompt_BT.shape[1]} tokens and {new_tokens}"
        )
    caches = [make_cache() for _ in model.blocks] if make_cache is not None else None
    tokens, feed = prompt_BT, prompt_BT
    for _ in range(new_tokens):
        hidden = model.hidden(feed, caches=caches)[:, -1:]
        newest = model.head(hidden).argmax(-1)
        tokens = torch.cat((tokens, newest), dim=1)
        feed = tokens if caches is None else newest
    return tokens
