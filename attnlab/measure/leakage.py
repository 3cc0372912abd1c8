"""Does a model see the tokens that it predicts? Later tokens are replaced by others at the same length: the
predictions before them must not change. Neither may those of a text whose batch has other texts beside it.
"""

import copy
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data import of_batch
from attnlab.model.loss import cross_entropy
from attnlab.model.transformer import Transformer

LONG = 192  # tokens of a second, longer text: some masks and mixers change beyond a chunk or a window
CUTS = 96  # places at most, per length, after which tokens are replaced
EDGES = (15, 16, 31, 32, 63, 64, 127, 128, 149, 150, 151, 255, 256, 511, 512)  # of chunks, windows and blocks
LOGITS = 2**26  # at most that are held of one pass; a larger batch is checked in its first rows alone
TOLERANCE = 1e-4  # change of a logit, relative to the largest one, that rounding may make


@torch.no_grad()
def leakage(model: Transformer, batch: Mapping[str, Tensor], longest: int = 0) -> dict[str, float]:
    """Measures whether predictions depend on later tokens or on other rows, in float32 at least.

    Args:
        model: on any device; its weights, mode and precision stay as they are.
        batch: a whole batch of validation {tokens [B, T], targets? [B, T], lengths?, documents?}.
        longest: tokens of the longest text at which losses are measured elsewhere.

    Returns:
        `sees_future`: 1 where a logit depends on a later token; targets inside `prefix` do not count.
        `sees_rows`: 1 where one depends on another row of the batch.
        `next_token`: 1 where most targets are the next tokens.
        `prefix`: how many first tokens a mask shows to every query by its declaration, 0 for none.
        `difference`: the largest change of a logit, relative to the largest logit where that is above 1.
        `with_future`, `without_future`: mean loss in nats of the token after each cut, with the tokens that
        follow it and with others in their place.
        `checked`: cuts. `longest`: tokens of the longest text that was checked.
        {} for texts of one token or a vocabulary of one.
    """
    tokens = batch["tokens"]
    if tokens.shape[1] < 2 or model.embedding.num_embeddings < 2:
        return {}
    training = model.training
    precision = torch.get_float32_matmul_precision()
    half = model.embedding.weight.dtype in (torch.bfloat16, torch.float16)
    model = copy.deepcopy(model).float() if half else model
    prefix = longest_prefix(model)
    batch = {
        key: value[: max(2, LOGITS // (tokens.shape[1] * model.embedding.num_embeddings))]
        for key, value in batch.items()
    }
    torch.set_float32_matmul_precision("highest")
    try:
        model.eval()
        found = [*_cut_changes(model, batch, prefix)]
        sees_rows = _depends_on_rows(model, batch)
        if (long := max(LONG, longest)) > tokens.shape[1]:
            flat = tokens.flatten()
            text = flat.repeat(-(-2 * long // len(flat)))[: 2 * long].view(2, long)
            try:
                found += _cut_changes(model, {"tokens": text}, prefix)
            except ValueError:  # it has no more positions, and so no loss there either
                long = 0
    finally:
        torch.set_float32_matmul_precision(precision)
        model.train(training)
    change, full, other = zip(*found, strict=True) if found else ((), (), ())
    return {
        "sees_future": int(any(size > TOLERANCE for size in change)),
        "sees_rows": int(sees_rows),
        "next_token": _is_next_token(batch),
        "prefix": prefix,
        "difference": min(max(change, default=0.0), 3e38),
        **({"with_future": sum(full) / len(full), "without_future": sum(other) / len(full)} if full else {}),
        "checked": len(change),
        "longest": max(long, tokens.shape[1]),
    }


def _cut_changes(
    model: Transformer, batch: Mapping[str, Tensor], prefix: int
) -> Iterator[tuple[float, float, float]]:
    """Per cut: the largest relative change of a logit up to it; and, of the token after it, the loss in nats
    with its own future and with another. Every row of a pass has a cut of its own.
    """
    rows, length = batch["tokens"].shape
    lengths = batch.get("lengths", torch.full((rows,), length)).tolist()
    cuts = iter([cut for cut in _cuts(length) if cut >= prefix - 1])
    while part := [*islice(cuts, rows)]:
        # a cut in the padding of its row tells nothing: it moves to the last real token that has a later one
        cut_B = torch.tensor([min(part[row % len(part)], max(lengths[row] - 2, 0)) for row in range(rows)])
        cut_B = cut_B.to(batch["tokens"].device)
        later = torch.arange(length, device=cut_B.device) > cut_B[:, None]
        true, replaced = _logits(model, batch, later)
        change = _relative_change(true, replaced).masked_fill(later, 0.0).amax(-1)
        target = batch["tokens"].gather(1, cut_B[:, None] + 1)
        each = torch.arange(rows, device=cut_B.device)
        losses = [cross_entropy(logits[each, cut_B][:, None], target)[:, 0] for logits in (true, replaced)]
        real = [row for row in range(rows) if lengths[row] > 1 and cut_B[row] >= prefix - 1]
        yield from zip(*(values[real].double().tolist() for values in (change, *losses)), strict=True)


def _depends_on_rows(model: Transformer, batch: Mapping[str, Tensor]) -> bool:
    """Whether logits of the even rows change where all tokens of the odd rows are replaced."""
    odd = torch.arange(len(batch["tokens"]), device=batch["tokens"].device)[:, None] % 2 == 1
    true, replaced = _logits(model, batch, odd.expand_as(batch["tokens"]))
    return bool((_relative_change(true, replaced)[::2] > TOLERANCE).any())


def _logits(model: Transformer, batch: Mapping[str, Tensor], where: Tensor) -> tuple[Tensor, Tensor]:
    """Of a batch, and of the same with other tokens in these places."""
    tokens = batch["tokens"]
    size = model.embedding.num_embeddings
    shift = torch.randint(1, size, tokens.shape, generator=torch.Generator().manual_seed(0))
    others = (tokens + shift.to(tokens.device)) % size
    mask = of_batch(batch)
    return model(tokens, mask=mask), model(torch.where(where, others, tokens), mask=mask)


def _relative_change(true: Tensor, replaced: Tensor) -> Tensor:
    """[B, T]: the largest change of a logit, relative to the largest logit where that is above 1."""
    change = (true - replaced).abs().masked_fill(true == replaced, 0.0)  # inf - inf is NaN
    return change.nan_to_num(nan=torch.inf).amax(-1) / true.abs().amax().clamp(min=1.0)


def _cuts(length: int) -> list[int]:
    """Last tokens whose later ones are replaced: all of a short text; of a long one the ends, those at the
    edges of common chunks, and others spread evenly.
    """
    if length - 1 <= CUTS:
        return [*range(length - 1)]
    fixed = {0, 1, length - 3, length - 2, *(edge for edge in EDGES if edge < length - 1)}
    even = torch.linspace(0, length - 2, CUTS - len(fixed)).round().long().tolist()
    return sorted({*fixed, *even})


def longest_prefix(model: Transformer) -> int:
    """The longest prefix that a mask which looks ahead shows by its declaration, and nothing else ahead."""
    masks = [block.mixer.mask for block in model.blocks if isinstance(block.mixer, Attention)]
    declared = [Capabilities.of(mask) for mask in masks]
    return max((each.prefix or 0 for each in declared if each.looks_ahead), default=0)


def _is_next_token(batch: Mapping[str, Tensor]) -> int:
    """1 where most targets that count are the next tokens, 0 where not; 1 for a batch without targets."""
    if "targets" not in batch:
        return 1
    targets = batch["targets"][:, :-1]
    following = batch["tokens"][:, 1:]
    scored = targets >= 0
    return int(not scored.any() or (targets == following)[scored].double().mean().item() > 0.5)


def batch_of(data: Any, device: torch.device | str) -> dict[str, Tensor]:
    """The first validation batch."""
    return {key: value.to(device) for key, value in next(iter(data.val_dataloader())).items()}
