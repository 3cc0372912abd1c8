"""Checks of caches, padding and batches: the outputs of a sequence do not depend on how it is given."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate, cycle, pairwise, takewhile

import torch
from torch import Tensor

from attnlab.attention.contracts import Unsupported
from attnlab.testing.checks.deviation import CheckFailed, CheckSkipped, Deviation, Measured
from attnlab.testing.checks.random_state import disable_dropout, is_random
from attnlab.testing.checks.subject import Adapter, Subject
from attnlab.testing.checks.visibility import LARGE_INPUT, project

MAX_CUTS = 24  # a sequence of so many tokens is cut in two at every place
CHUNK_SIZES = (17, 1, 33, 64, 2, 65, 31, 128)  # around powers of two, at which parts may work in blocks
PADS = (3, 0, 5, 1)  # tokens of padding by row, repeated; the first is that of a batch of one
HOLE = (2, 5)  # tokens of padding between others


@torch.no_grad()
def check_cache(subject: Subject, batch: int, length: int) -> Measured:
    """Outputs with a cache equal those without: in chunks, split at any token, and token by token."""
    adapter = subject.build()
    if adapter.no_cache:
        raise CheckSkipped(adapter.no_cache)
    if not adapter.is_causal:
        raise CheckSkipped("declared non-causal")
    length = min(length, adapter.max_cached or length)
    x = subject.draw_input(adapter, batch, length)
    full = adapter.forward(x)
    deviation = Deviation(subject.tolerance)
    refusal = None
    is_refused = True
    for sizes in iter_splits(length):
        try:
            decoded = adapter.decode(x, sizes)
        except Unsupported as error:
            if not adapter.may_refuse(sizes):
                message = f"rejects the chunks {sizes}, although its mask allows them: {error}"
                raise CheckFailed(message) from None
            refusal = error
            continue
        is_refused = False
        deviation.compare(decoded, full, f"chunks {'+'.join(map(str, sizes))}")
    if is_refused and refusal is not None:
        raise refusal
    return deviation.report()


def iter_splits(length: int) -> Iterator[tuple[int, ...]]:
    """Yield ways to feed `length` tokens: in two chunks, in three or more, and one by one.

    A short sequence is cut in two at every place; a long one at few, into chunks around powers of two.
    """
    if length <= MAX_CUTS:
        yield from ((cut, length - cut) for cut in range(length - 1, 0, -1))
        if length > 3:
            yield (2, length - 3, 1)
            yield (1, 2, *([2] * ((length - 3) // 2)), *([1] * ((length - 3) % 2)))
    else:
        yield (length - 3, 1, 1, 1)
        ends = [*takewhile(lambda end: end < length, accumulate(cycle(CHUNK_SIZES))), length]
        yield tuple(end - begin for begin, end in pairwise([0, *ends]))
        yield tuple(end - begin for begin, end in pairwise([*range(0, length, 64), length]))
    yield (1,) * length


@torch.no_grad()
def check_left_padding(subject: Subject, batch: int, length: int) -> Measured:
    """A row with left padding has finite outputs and gradients, at tokens the outputs of the row without it,
    with a cache too.
    """

    def count_pads(row: int) -> int:
        return min(PADS[row % len(PADS)], length - 1)

    def decode(adapter: Adapter, x: Tensor, is_token: Tensor) -> Iterator[tuple[str, Tensor]]:
        if (
            length > (adapter.max_cached or length)
            or not adapter.pads_cache
            or adapter.no_cache is not None
            or not adapter.is_causal
        ):
            return
        prompt = max(map(count_pads, range(batch))) + 1  # tokens, so that every row has one
        with suppress(Unsupported):  # its mask, or this cache
            decoded = adapter.decode(x, (prompt, *[1] * (length - prompt)), is_token)
            yield ", decoded with a cache", decoded

    return _compare_padded_rows(subject, batch, length, lambda row: slice(count_pads(row), length), decode)


@torch.no_grad()
def check_right_padding(subject: Subject, batch: int, length: int) -> Measured:
    """A row with right padding has finite outputs and gradients, at tokens the outputs of the row without it;
    contents of padding on the right or between tokens change no output of a token.
    """

    def replace_padding(adapter: Adapter, x: Tensor, is_token: Tensor) -> Iterator[tuple[str, Tensor]]:
        other = LARGE_INPUT * subject.draw_input(adapter, batch, length, seed=1)
        yield (
            ", with other contents",
            adapter.forward(torch.where(is_token[..., None], x, other), is_token),
        )
        for has_hole in (is_token.clone(), torch.ones_like(is_token)):  # with padding on the right, and alone
            has_hole[:, slice(*HOLE)] = False
            try:
                y, changed = (
                    adapter.forward(torch.where(has_hole[..., None], x, contents), has_hole)
                    for contents in (x, other)
                )
            except Unsupported:
                return
            case = "contents of padding between tokens replaced"
            Deviation(subject.tolerance).compare(changed[has_hole], y[has_hole], case)

    return _compare_padded_rows(
        subject,
        batch,
        length,
        lambda row: slice(0, length - min(PADS[row % len(PADS)], length - 1)),
        replace_padding,
    )


def _compare_padded_rows(
    subject: Subject,
    batch: int,
    length: int,
    find_tokens: Callable[[int], slice],
    iter_others: Callable[[Adapter, Tensor, Tensor], Iterator[tuple[str, Tensor]]],
) -> Measured:
    """Compare rows with padding, computed in several ways, with each row alone."""
    adapter = subject.build()
    if adapter.no_padding:
        raise CheckSkipped(adapter.no_padding)
    x = subject.draw_input(adapter, batch, length)
    tokens = [find_tokens(row) for row in range(batch)]
    is_token = torch.zeros(batch, length, dtype=torch.bool, device=x.device)
    for row, part in enumerate(tokens):
        is_token[row, part] = True
    whole = adapter.forward(x)  # before the others: a memo of a shape may hold its mask
    try:
        outputs = [("", adapter.forward(x, is_token)), *iter_others(adapter, x, is_token)]
    except Exception as error:
        if adapter.guesses_padding and not isinstance(error, CheckFailed):
            text = " ".join(str(error).split())
            raise CheckSkipped(f"attention_mask [B, T] raises {type(error).__name__}: {text}") from error
        raise
    deviation = Deviation(subject.tolerance)
    for row, part in enumerate(tokens):
        alone = adapter.forward(x[row : row + 1, part].contiguous())
        for way, padded in outputs:
            case = f"{length - alone.shape[1]} of {length} tokens padding{way}"
            deviation.compare(padded[row : row + 1, part], alone, case, part.start, whole=whole)
    _require_finite_padding(subject, x, is_token)
    return deviation.report()


def _require_finite_padding(subject: Subject, x: Tensor, is_token: Tensor) -> None:
    """Require finite outputs at padding, and finite gradients of the outputs at tokens.

    They are computed in float32: some masks overflow in float64.
    """
    adapter = subject.build(torch.float32)
    x = x.float()
    is_finite = adapter.forward(x, is_token).isfinite().all(-1)
    if not is_finite.all():
        row, token = (~is_finite).nonzero()[0].tolist()
        raise CheckFailed(
            "NaN or infinity at padding in float32, which a second layer spreads to tokens: let padding see "
            "itself, or mask with the lowest finite number",
            f"row {row}, token {token}",
        )
    with torch.enable_grad():
        x = x.requires_grad_()
        try:
            y = adapter.forward(x, is_token)
        except (NotImplementedError, Unsupported):  # no backward kernel
            return
        if not y.requires_grad:
            return
        project(y[is_token]).backward()
    for name, tensor in {"x": x, **adapter.get_parameters()}.items():
        if tensor.grad is not None and not tensor.grad.isfinite().all():
            raise CheckFailed(f"the gradient of {name} is NaN or infinity with padding in float32")


@torch.no_grad()
def check_batch(subject: Subject, batch: int, length: int) -> Measured:
    """A row does not depend on the other rows, in evaluation and, without dropout, in training."""
    adapter = subject.build()
    x = subject.draw_input(adapter, batch, length)
    x[::2] *= 3
    deviation = Deviation(subject.tolerance)
    for is_training in (False, True):
        with disable_dropout():
            if is_training and is_random(adapter, x):
                continue
            y = adapter.copy(is_training=is_training).forward(x)
            alone = adapter.copy(is_training=is_training)
            mode = "training" if is_training else "evaluation"
            for row in range(batch if batch > 1 else 0):
                expected = alone.forward(x[row : row + 1])
                case = f"row {row} of {batch} alone, in {mode}"
                deviation.compare(y[row : row + 1], expected, case, whole=y)
    return deviation.report()
