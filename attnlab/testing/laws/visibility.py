"""Laws of what may be seen: masks, padding and documents, through gradients that are exactly zero or
through what each row gets alone.
"""

import torch
from torch import Tensor

from attnlab.attention.contracts import Mixer, declared
from attnlab.attention.masks.data import documents, padding, real
from attnlab.testing.laws.variant import Variant, same

ROWS = 24  # outputs at most whose gradients are looked at


def _rows(length: int) -> Tensor:
    return torch.linspace(0, length - 1, min(length, ROWS)).round().long()


def _weigh(y_NTM: Tensor, rows: Tensor) -> Tensor:
    """A number that depends on output rows[n] alone in copy n of the batch."""
    picked = y_NTM[torch.arange(len(rows)), rows]
    return (picked * torch.linspace(0.5, 1.5, picked.shape[-1], dtype=picked.dtype)).sum()


def _no_leak(gradient_NTM: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    depends = (gradient_NTM != 0).any(-1)
    for n, key in (depends & ~allowed).nonzero().tolist()[:1]:
        raise AssertionError(f"output {rows[n].item()} depends on token {key}, which it may not see")
    return depends


def check_masked_keys_get_no_gradient(variant: Variant) -> None:
    """3. The gradient of every output of the layer is exactly zero at the tokens it may not see, and not
    zero at those it sees.
    """
    layer, rows, T = variant.layer(), _rows(variant.length), variant.length
    x = variant.x(1).repeat(len(rows), 1, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(_weigh(layer(x), rows), x)
    allowed = (variant.visible(torch.arange(T)) | torch.eye(T, dtype=torch.bool))[rows]
    depends = _no_leak(gradient, rows, allowed)
    for n, key in (allowed & ~depends).nonzero().tolist()[:1]:
        raise AssertionError(f"output {rows[n].item()} does not depend on token {key}, which it should see")


def check_model_does_not_leak(variant: Variant) -> None:
    """3. In a model of two layers an output depends on no token that it cannot see through two of their
    masks.
    """
    model, rows, T = variant.model(), _rows(variant.length), variant.length
    embedded: list[Tensor] = []
    model.embedding.register_forward_hook(lambda module, given, out: embedded.append(out))
    y = model.hidden(variant.tokens()[:1].repeat(len(rows), 1))
    (gradient,) = torch.autograd.grad(_weigh(y, rows), embedded[0])
    once = (variant.visible(torch.arange(T)) | torch.eye(T, dtype=torch.bool)).float()
    _no_leak(gradient, rows, (once @ once > 0)[rows])


@torch.no_grad()
def check_right_padding(variant: Variant) -> None:
    """17. A batch padded on the right gives each sequence what it gets alone."""
    layer, x, T = variant.layer(), variant.x(), variant.length
    lengths = [max(1, T - 3), T][: variant.batch]
    y = layer(x, mask=padding(torch.tensor(lengths)))
    for row, length in enumerate(lengths):
        same(y[row : row + 1, :length], layer(x[row : row + 1, :length]), f"{length} of {T} tokens")


@torch.no_grad()
def check_left_padding(variant: Variant) -> None:
    """17. A batch padded on the left, at positions below zero, gives each sequence what it gets alone."""
    layer, x, T = variant.layer(), variant.x(), variant.length
    pads = [min(3, T - 1), 0][: variant.batch]
    positions = torch.arange(T)[None] - torch.tensor(pads)[:, None]
    y = layer(x, positions=positions, mask=real)
    for row, pad in enumerate(pads):
        same(y[row : row + 1, pad:], layer(x[row : row + 1, pad:]), f"{pad} tokens of padding")


@torch.no_grad()
def check_documents(variant: Variant) -> None:
    """17. Documents packed into one row do not see each other: each gets what it gets alone at its
    positions.
    """
    layer, x, T = variant.layer(), variant.x(), variant.length
    cuts = [T // 2, T // 3][: variant.batch]
    ids = (torch.arange(T)[None] >= torch.tensor(cuts)[:, None]).long()
    y = layer(x, mask=documents(ids))
    for row, cut in enumerate(cuts):
        for begin, end in ((0, cut), (cut, T)):
            if begin < end:
                where = torch.arange(begin, end)[None]
                alone = layer(x[row : row + 1, begin:end], positions=where)
                same(y[row : row + 1, begin:end], alone, f"tokens {begin} to {end - 1}")


def keeps_its_past(variant: Variant) -> bool:
    """Whether a token's representation is the same in a longer sequence: not where a rotation stretches
    with the length.
    """
    return not declared(variant.specimen, Mixer, "changes_with_length")
