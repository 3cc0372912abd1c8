"""Does a model look at what it is to predict? The loss of a token is taken twice: with the tokens after it in
the window, as in validation, and with the text up to it alone, as in use.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.layer import Attention
from attnlab.attention.masks.data import of_batch
from attnlab.model.loss import cross_entropy
from attnlab.model.transformer import Transformer

WINDOWS = 8  # of validation
TOLERANCE = 1e-3  # nats that one token's two losses may be apart: far above rounding in float32


@torch.no_grad()
def foresight(model: Transformer, batch: Mapping[str, Tensor]) -> dict[str, float]:
    """`full` and `prefix`: mean loss in nats of the same tokens, seen either way; `difference`: the largest
    between the two; `flagged`: 1 where that is more than rounding and no layer declares that it looks ahead
    or follows the length; `declared`: 1 where one looks ahead. {} where the windows are too short.
    """
    rows = {key: value[:WINDOWS] for key, value in batch.items()}
    tokens = rows["tokens"]
    lengths = rows.get("lengths", torch.full((len(tokens),), tokens.shape[1], device=tokens.device))
    cuts = _cuts(int(lengths.max()))
    if not cuts:
        return {}
    training, precision = model.training, torch.get_float32_matmul_precision()
    half = model.embedding.weight.dtype in (torch.bfloat16, torch.float16)
    model = copy.deepcopy(model).float() if half else model
    torch.set_float32_matmul_precision("highest")
    try:
        model.eval()
        mask = of_batch(rows)
        whole = model(tokens, mask=mask)
        pairs = []
        for cut in cuts:
            there = lengths > cut + 1
            both = (whole[:, cut], model(tokens[:, : cut + 1], mask=mask)[:, -1])
            losses = [cross_entropy(logits[:, None], tokens[:, cut + 1 : cut + 2])[:, 0] for logits in both]
            pairs.append(torch.stack(losses)[:, there])
    finally:
        torch.set_float32_matmul_precision(precision)
        model.train(training)
    full, prefix = torch.cat(pairs, dim=1).double()
    layers = [block.mixer for block in model.blocks]
    ahead = any(isinstance(layer, Attention) and layer.looks_ahead for layer in layers)
    excused = ahead or any(getattr(layer, "changes_with_length", False) for layer in layers)
    difference = (full - prefix).abs().max().item()
    return {
        "full": full.mean().item(),
        "prefix": prefix.mean().item(),
        "difference": difference,
        "flagged": int(difference > TOLERANCE and not excused),
        "declared": int(ahead),
    }


def _cuts(length: int) -> list[int]:
    """Tokens that have later ones beside them: the last such, the one before it, and two further in front."""
    return sorted(
        {cut for cut in (length - 2, length - 3, length // 2, length // 3) if 0 <= cut < length - 1}
    )


def batch_of(data: Any, device: torch.device | str) -> dict[str, Tensor]:
    """The first validation batch."""
    return {key: value.to(device) for key, value in next(iter(data.val_dataloader())).items()}
