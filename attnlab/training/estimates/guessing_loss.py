"""Loss of the best guess that ignores the order of tokens, which a model on generated data has to beat."""

from collections.abc import Iterable

import torch

from attnlab.data.task import IGNORE, Batch

MAX_TARGETS = 1000
SMOOTHINGS = (0.01, 0.1, 1.0, 10.0)
SOLVED_RATIO = 0.1  # a guess with less than this proportion of the loss by frequency solves the task


def compute_guessing_loss(batches: Iterable[Batch], vocab_size: int) -> float | None:
    """Return the mean loss of the best guess, in nats, on up to `MAX_TARGETS` scored targets.

    The guess p(v) is proportional to (c_v + s) g_v, where c_v counts token v in the row so far and g_v is its
    frequency among all targets. s is the best of `SMOOTHINGS`, or infinite: the frequency alone. A guess from
    the row that solves the task, as with a single needle, is not counted.

    Returns:
        None if no target is scored.
    """
    batches = list(batches)
    tokens, targets = (torch.cat([batch[key] for batch in batches]) for key in ("tokens", "targets"))
    scored = (targets != IGNORE).nonzero()
    if not len(scored):
        return None
    frequency = torch.bincount(targets[targets != IGNORE], minlength=vocab_size).double()
    frequency /= frequency.sum()
    sample = scored[:: -(-len(scored) // MAX_TARGETS)].tolist()
    counts = torch.stack(
        [torch.bincount(tokens[row, : t + 1], minlength=vocab_size) for row, t in sample]
    ).double()
    targets = torch.stack([targets[row, t] for row, t in sample])[:, None]
    loss_by_frequency = float(-frequency[targets].log().mean())
    losses_by_row = []
    for smoothing in SMOOTHINGS:
        weights = (counts + smoothing) * frequency
        losses_by_row.append(
            float((weights.sum(1, keepdim=True).log() - weights.gather(1, targets).log()).mean())
        )
    best = min(losses_by_row)
    return loss_by_frequency if best < SOLVED_RATIO * loss_by_frequency else min(best, loss_by_frequency)
