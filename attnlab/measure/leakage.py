"""Measure whether a model sees the tokens that it predicts.

Later tokens are replaced by others at the same length: earlier predictions must not change. Predictions must
not change either if other rows of the batch are replaced.
"""

import copy
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data_masks import make_batch_mask
from attnlab.model.loss import cross_entropy
from attnlab.model.transformer import Transformer

LONG_TEXT_TOKENS = 192  # of a second text: some masks and mixers change beyond a chunk or window
MAX_CUTS = 96  # per length; a cut is the last token before the replaced ones
CHUNK_EDGES = (
    15,
    16,
    31,
    32,
    63,
    64,
    127,
    128,
    149,
    150,
    151,
    255,
    256,
    511,
    512,
)  # of chunks, windows and blocks
MAX_LOGITS = 2**26  # of one pass; only the first rows of a larger batch are checked
TOLERANCE = 1e-4  # change of a logit by rounding, relative to the largest logit


@torch.no_grad()
def measure_leakage(model: Transformer, batch: Mapping[str, Tensor], longest: int = 0) -> dict[str, float]:
    """Measure whether predictions depend on later tokens or on other rows, in float32 or better.

    Args:
        model: on any device; its weights, mode and precision do not change.
        batch: a whole validation batch {tokens [B, T], targets? [B, T], lengths?, documents?}.
        longest: length of the longest text at which other measurements compute losses.

    Returns:
        sees_future: 1 if a logit depends on a later token; targets inside `prefix` do not count.
        sees_rows: 1 if a logit depends on another row of the batch.
        next_token: 1 if most targets are the next tokens.
        prefix: number of first tokens that a mask declares visible to every query, 0 for none.
        difference: the largest change of a logit, relative to the largest logit if that is above 1.
        with_future, without_future: mean loss in nats of the token after each cut, with its own later tokens
            and with replaced ones.
        checked: number of cuts.
        longest: length of the longest text checked.
        {} for texts of one token or a vocabulary of one.
    """
    tokens = batch["tokens"]
    if tokens.shape[1] < 2 or model.embedding.num_embeddings < 2:
        return {}
    training = model.training
    precision = torch.get_float32_matmul_precision()
    half = model.embedding.weight.dtype in (torch.bfloat16, torch.float16)
    model = copy.deepcopy(model).float() if half else model
    prefix = find_longest_prefix(model)
    batch = {
        key: value[: max(2, MAX_LOGITS // (tokens.shape[1] * model.embedding.num_embeddings))]
        for key, value in batch.items()
    }
    torch.set_float32_matmul_precision("highest")
    try:
        model.eval()
        changes = [*_measure_cut_changes(model, batch, prefix)]
        sees_rows = _has_row_dependence(model, batch)
        if (long_length := max(LONG_TEXT_TOKENS, longest)) > tokens.shape[1]:
            flat = tokens.flatten()
            text = flat.repeat(-(-2 * long_length // len(flat)))[: 2 * long_length].view(2, long_length)
            try:
                changes += _measure_cut_changes(model, {"tokens": text}, prefix)
            except ValueError:  # the model has no more positions, hence no loss there either
                long_length = 0
    finally:
        torch.set_float32_matmul_precision(precision)
        model.train(training)
    logit_changes, losses, replaced_losses = zip(*changes, strict=True) if changes else ((), (), ())
    return {
        "sees_future": int(any(size > TOLERANCE for size in logit_changes)),
        "sees_rows": int(sees_rows),
        "next_token": _has_next_token_targets(batch),
        "prefix": prefix,
        "difference": min(max(logit_changes, default=0.0), 3e38),
        **(
            {"with_future": sum(losses) / len(losses), "without_future": sum(replaced_losses) / len(losses)}
            if losses
            else {}
        ),
        "checked": len(logit_changes),
        "longest": max(long_length, tokens.shape[1]),
    }


def _measure_cut_changes(
    model: Transformer, batch: Mapping[str, Tensor], prefix: int
) -> Iterator[tuple[float, float, float]]:
    """Yield, per cut, the largest relative change of a logit up to it, and two losses of the next token.

    The losses are in nats, with the token's own later tokens and with replaced ones. Every row of a pass has
    a cut of its own.
    """
    rows, length = batch["tokens"].shape
    lengths = batch.get("lengths", torch.full((rows,), length)).tolist()
    cuts = iter([cut for cut in _choose_cuts(length) if cut >= prefix - 1])
    while part := [*islice(cuts, rows)]:
        # a cut in a row's padding is uninformative: it moves to the last real token with a later one
        cut_B = torch.tensor([min(part[row % len(part)], max(lengths[row] - 2, 0)) for row in range(rows)])
        cut_B = cut_B.to(batch["tokens"].device)
        later = torch.arange(length, device=cut_B.device) > cut_B[:, None]
        true, replaced = _compute_logits(model, batch, later)
        change = _compute_relative_change(true, replaced).masked_fill(later, 0.0).amax(-1)
        target = batch["tokens"].gather(1, cut_B[:, None] + 1)
        rows_B = torch.arange(rows, device=cut_B.device)
        losses = [cross_entropy(logits[rows_B, cut_B][:, None], target)[:, 0] for logits in (true, replaced)]
        real = [row for row in range(rows) if lengths[row] > 1 and cut_B[row] >= prefix - 1]
        yield from zip(*(values[real].double().tolist() for values in (change, *losses)), strict=True)


def _has_row_dependence(model: Transformer, batch: Mapping[str, Tensor]) -> bool:
    """Return whether logits of the even rows change if all tokens of the odd rows are replaced."""
    odd = torch.arange(len(batch["tokens"]), device=batch["tokens"].device)[:, None] % 2 == 1
    true, replaced = _compute_logits(model, batch, odd.expand_as(batch["tokens"]))
    return bool((_compute_relative_change(true, replaced)[::2] > TOLERANCE).any())


def _compute_logits(
    model: Transformer, batch: Mapping[str, Tensor], replaced_positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the logits of a batch, and of the batch with other tokens at `replaced_positions`."""
    tokens = batch["tokens"]
    size = model.embedding.num_embeddings
    shift = torch.randint(1, size, tokens.shape, generator=torch.Generator().manual_seed(0))
    others = (tokens + shift.to(tokens.device)) % size
    mask = make_batch_mask(batch)
    return model(tokens, mask=mask), model(torch.where(replaced_positions, others, tokens), mask=mask)


def _compute_relative_change(true: Tensor, replaced: Tensor) -> Tensor:
    """Return the largest change of a logit [B, T], relative to the largest logit if that is above 1."""
    change = (true - replaced).abs().masked_fill(true == replaced, 0.0)  # inf - inf is NaN
    return change.nan_to_num(nan=torch.inf).amax(-1) / true.abs().amax().clamp(min=1.0)


def _choose_cuts(length: int) -> list[int]:
    """Return the cuts: the last tokens before replaced ones.

    A short text has all cuts. A long one has cuts at its ends, at the edges of common chunks, and evenly
    spread.
    """
    if length - 1 <= MAX_CUTS:
        return [*range(length - 1)]
    fixed = {0, 1, length - 3, length - 2, *(edge for edge in CHUNK_EDGES if edge < length - 1)}
    even = torch.linspace(0, length - 2, MAX_CUTS - len(fixed)).round().long().tolist()
    return sorted({*fixed, *even})


def find_longest_prefix(model: Transformer) -> int:
    """Return the longest visible prefix that a future-seeing mask declares, 0 for none."""
    masks = [block.mixer.mask for block in model.blocks if isinstance(block.mixer, Attention)]
    capabilities = [Capabilities.from_part(mask) for mask in masks]
    return max((capability.prefix or 0 for capability in capabilities if capability.sees_future), default=0)


def _has_next_token_targets(batch: Mapping[str, Tensor]) -> int:
    """Return 1 if most scored targets are the next tokens, else 0; 1 for a batch without targets."""
    if "targets" not in batch:
        return 1
    targets = batch["targets"][:, :-1]
    following = batch["tokens"][:, 1:]
    scored = targets >= 0
    return int(not scored.any() or (targets == following)[scored].double().mean().item() > 0.5)


def load_first_batch(data: Any, device: torch.device | str) -> dict[str, Tensor]:
    """Return the first validation batch on a device."""
    return {key: value.to(device) for key, value in next(iter(data.val_dataloader())).items()}
