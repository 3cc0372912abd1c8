"""Laws of what may be seen: masks, padding and documents, through gradients that are exactly zero or
through what each row gets alone.
"""

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities
from attnlab.attention.masks.data import documents, padding, real
from attnlab.testing.laws.positions import drawn, long
from attnlab.testing.laws.variant import Variant, named_generator, same

PLACES = 6  # constants looked at in the long text
ROWS = 24  # outputs at most whose gradients are looked at


def _rows(length: int) -> Tensor:
    return torch.linspace(0, length - 1, min(length, ROWS)).round().long()


def _weigh(y_NTM: Tensor, rows: Tensor) -> Tensor:
    """A number that depends on output rows[n] alone in copy n of the batch."""
    picked = y_NTM[torch.arange(len(rows)), rows]
    return (picked * torch.linspace(0.5, 1.5, picked.shape[-1], dtype=picked.dtype)).sum()


def _no_leak(gradient_NTM: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    depends = (gradient_NTM != 0).any(-1)
    wrong = gradient_NTM.abs().amax(-1).masked_fill(allowed, 0.0)
    if (depends & ~allowed).any():
        n, key = divmod(int(wrong.argmax()), wrong.shape[1])
        raise Leak(int(rows[n]), key, wrong[n, key].item())
    return depends


class Leak(AssertionError):
    """An output that depends on a token which it may not see, by a gradient of this size."""

    def __init__(self, token: int, key: int, size: float, heads: str = "") -> None:
        self.token = token
        self.key = key
        self.size = size
        by = f" (a gradient of {size:.2g}{heads})"
        super().__init__(f"output {token} depends on token {key}, which it may not see{by}")


def _leaking_heads(variant: Variant, leak: Leak) -> str:
    """The heads through which it leaks."""
    x = variant.x(1).requires_grad_()
    out = variant.layer().attend(x).out[0, :, leak.token].square().sum(-1)
    sizes = [torch.autograd.grad(head, x, retain_graph=True)[0][0, leak.key].abs().max() for head in out]
    return " through head " + ", ".join(str(n) for n, size in enumerate(sizes) if size > 0)


def check_masked_keys_get_no_gradient(variant: Variant) -> None:
    """3. The gradient of every output of the layer is exactly zero at the tokens it may not see, and not
    zero at those it sees.
    """
    layer = variant.layer()
    rows = _rows(variant.length)
    T = variant.length
    x = variant.x(1).repeat(len(rows), 1, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(_weigh(layer(x), rows), x)
    own = torch.eye(T, dtype=torch.bool)[rows]
    visible = variant.visible(torch.arange(T))[rows]
    try:
        depends = _no_leak(gradient, rows, variant.reached(torch.arange(T))[rows] | own)
    except Leak as leak:
        heads = _leaking_heads(variant, leak) if variant.is_attention else ""
        raise Leak(leak.token, leak.key, leak.size, heads) from None
    if variant.is_attention and (layer.normaliser is not None or layer.selection is not None):
        return  # what is no softmax may give nothing to a key that it sees, and what chooses, to some
    if not variant.tells_its_mask:
        assert T < 4 or (depends & ~own).any(), "no output depends on any other token"
        return
    for n, key in (visible & ~depends).nonzero().tolist()[:1]:
        raise AssertionError(f"output {rows[n].item()} does not depend on token {key}, which it should see")


def check_model_does_not_leak(variant: Variant) -> None:
    """3. In a model of two layers an output depends on no token that it cannot see through two of their
    masks.
    """
    model = variant.model()
    rows = _rows(variant.length)
    T = variant.length
    embedded: list[Tensor] = []
    model.embedding.register_forward_hook(lambda module, given, out: embedded.append(out))
    y = model.hidden(variant.tokens()[:1].repeat(len(rows), 1))
    (gradient,) = torch.autograd.grad(_weigh(y, rows), embedded[0])
    once = (variant.reached(torch.arange(T)) | torch.eye(T, dtype=torch.bool)).float()
    _no_leak(gradient, rows, (once @ once > 0)[rows])


@torch.no_grad()
def check_long_texts_do_not_leak(variant: Variant) -> None:
    """3. In a text longer than the constants in the source of its parts, an output stays the same where
    tokens that it may not see are others, or are not there.
    """
    layer, (places, T) = variant.layer(), long(variant.attention)
    x, other = drawn(variant, 2, T).split(1)
    random = torch.randperm(T - 2, generator=named_generator(1, "cuts"))[:3] + 1
    visible = variant.reached(torch.arange(T))
    whole = layer(x)
    for cut in (T - 1, *random.tolist(), *(n + d for n in places[-PLACES:] for d in (0, 1))):
        blind = ~visible[:, cut:].any(-1)
        blind[cut:] = False
        changed = layer(torch.cat((x[:, :cut], other[:, cut:]), 1))
        same(changed[:, blind], whole[:, blind], f"tokens from {cut} on changed, of {T}")
        if cut >= T - 1 and keeps_its_past(variant):
            same(layer(x[:, :cut])[:, blind[:cut]], whole[:, blind], f"tokens from {cut} on gone, of {T}")


@torch.no_grad()
def check_right_padding(variant: Variant) -> None:
    """17. A batch padded on the right gives each sequence what it gets alone."""
    layer = variant.layer()
    x = variant.x()
    T = variant.length
    lengths = [max(1, T - 3), T][: variant.batch]
    y = layer(x, mask=padding(torch.tensor(lengths)))
    for row, length in enumerate(lengths):
        same(y[row : row + 1, :length], layer(x[row : row + 1, :length]), f"{length} of {T} tokens")


@torch.no_grad()
def check_left_padding(variant: Variant) -> None:
    """17. A batch padded on the left, at positions below zero, gives each sequence what it gets alone."""
    layer = variant.layer()
    x = variant.x()
    T = variant.length
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
    layer = variant.layer()
    x = variant.x()
    T = variant.length
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
    return not Capabilities.of(variant.specimen).changes_with_length
