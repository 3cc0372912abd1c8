"""Invariants of token visibility: masks, padding and packed documents.

Checks use gradients that must be exactly zero, or compare a row with the same row alone.
"""

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities
from attnlab.attention.masks.data_masks import make_document_mask, make_padding_mask, non_padding
from attnlab.testing.invariants.masks_and_scores import choose_long_length, draw_long_input
from attnlab.testing.invariants.variant import LARGE_INPUT, Variant, assert_close, make_named_generator

MAX_CONSTANTS = 6  # constants around which a long sequence is cut
MAX_ROWS = 24  # outputs whose gradients are checked


def _choose_rows(length: int) -> Tensor:
    return torch.linspace(0, length - 1, min(length, MAX_ROWS)).round().long()


def _sum_selected_rows(y_NTM: Tensor, rows: Tensor) -> Tensor:
    """Compute a scalar that depends on output rows[n] alone in copy n of the batch."""
    selected = y_NTM[torch.arange(len(rows)), rows]
    return (selected * torch.linspace(0.5, 1.5, selected.shape[-1], dtype=selected.dtype)).sum()


def _require_no_leak(gradient_NTM: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    depends = (gradient_NTM != 0).any(-1)
    leak_sizes = gradient_NTM.abs().amax(-1).masked_fill(allowed, 0.0)
    if (depends & ~allowed).any():
        n, key = divmod(int(leak_sizes.argmax()), leak_sizes.shape[1])
        raise LeakError(int(rows[n]), key, leak_sizes[n, key].item())
    return depends


class LeakError(AssertionError):
    """An output depends on a token that it may not see; `size` is that of the gradient."""

    def __init__(self, token: int, key: int, size: float, heads: str = "") -> None:
        self.token = token
        self.key = key
        self.size = size
        suffix = f" (a gradient of {size:.2g}{heads})"
        super().__init__(f"output {token} depends on token {key}, which the mask hides{suffix}")


def _describe_leaking_heads(variant: Variant, leak: LeakError) -> str:
    """Name the heads through which the gradient leaks."""
    x = variant.make_input(1).requires_grad_()
    out = variant.make_layer().attend(x).out[0, :, leak.token].square().sum(-1)
    sizes = [
        torch.autograd.grad(head_out, x, retain_graph=True)[0][0, leak.key].abs().max() for head_out in out
    ]
    return " through head " + ", ".join(str(n) for n, size in enumerate(sizes) if size > 0)


def check_masked_keys_get_no_gradient(variant: Variant) -> None:
    """3. The gradient of every output of the layer is exactly zero at tokens it may not see, and nonzero at
    those it sees.
    """
    layer = variant.make_layer()
    rows = _choose_rows(variant.length)
    T = variant.length
    x = variant.make_input(1).repeat(len(rows), 1, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(_sum_selected_rows(layer(x), rows), x)
    itself = torch.eye(T, dtype=torch.bool)[rows]
    visible = variant.compute_visibility(torch.arange(T))[rows]
    try:
        depends = _require_no_leak(
            gradient, rows, variant.compute_reachability(torch.arange(T))[rows] | itself
        )
    except LeakError as leak:
        heads = _describe_leaking_heads(variant, leak) if variant.is_attention else ""
        raise LeakError(leak.token, leak.key, leak.size, heads) from None
    if variant.is_attention and (layer.normalizer is not None or layer.selection is not None):
        return  # other normalizers and selections may give visible keys a weight of exactly zero
    if not variant.has_declared_mask:
        assert T < 4 or (depends & ~itself).any(), "no output depends on any other token"
        return
    for n, key in (visible & ~depends).nonzero().tolist()[:1]:
        raise AssertionError(f"output {rows[n].item()} does not depend on token {key}, which the mask shows")


def check_model_does_not_leak(variant: Variant) -> None:
    """3. In a two-layer model an output depends on no token that it cannot see through two of its masks."""
    model = variant.make_model()
    rows = _choose_rows(variant.length)
    T = variant.length
    embedded: list[Tensor] = []
    model.embedding.register_forward_hook(lambda module, args, out: embedded.append(out))
    y = model.compute_hidden(variant.make_tokens()[:1].repeat(len(rows), 1))
    (gradient,) = torch.autograd.grad(_sum_selected_rows(y, rows), embedded[0])
    one_layer = (variant.compute_reachability(torch.arange(T)) | torch.eye(T, dtype=torch.bool)).float()
    _require_no_leak(gradient, rows, (one_layer @ one_layer > 0)[rows])


@torch.no_grad()
def check_long_sequences_do_not_leak(variant: Variant) -> None:
    """3. In a sequence longer than the constants in the source of its parts, an output stays the same if
    tokens that it may not see are replaced, also by large ones, or removed.
    """
    layer, (constants, T) = variant.make_layer(), choose_long_length(variant.attention)
    x, other = draw_long_input(variant, 2, T).split(1)
    random_cuts = torch.randperm(T - 2, generator=make_named_generator(1, "cuts"))[:3] + 1
    visible = variant.compute_reachability(torch.arange(T))
    expected = layer(x)
    for n, cut in enumerate(
        (
            T - 1,
            *random_cuts.tolist(),
            *(constant + offset for constant in constants[-MAX_CONSTANTS:] for offset in (0, 1)),
        )
    ):
        unaffected = ~visible[:, cut:].any(-1)
        unaffected[cut:] = False
        size = LARGE_INPUT if n % 2 else 1.0
        changed = layer(torch.cat((x[:, :cut], size * other[:, cut:]), 1))
        assert_close(
            changed[:, unaffected], expected[:, unaffected], f"{T} tokens, changed from token {cut} on"
        )
        if cut >= T - 1 and is_length_independent(variant):
            assert_close(
                layer(x[:, :cut])[:, unaffected[:cut]],
                expected[:, unaffected],
                f"{T} tokens, truncated at token {cut}",
            )


@torch.no_grad()
def check_right_padding(variant: Variant) -> None:
    """17. In a batch padded on the right, each sequence gets the outputs it gets alone."""
    layer = variant.make_layer()
    x = variant.make_input()
    T = variant.length
    lengths = [max(1, T - 3), T][: variant.batch]
    y = layer(x, mask=make_padding_mask(torch.tensor(lengths)))
    for row, length in enumerate(lengths):
        assert_close(y[row : row + 1, :length], layer(x[row : row + 1, :length]), f"{length} of {T} tokens")


@torch.no_grad()
def check_left_padding(variant: Variant) -> None:
    """17. In a batch padded on the left, at positions below zero, each sequence gets the outputs it gets
    alone.
    """
    layer = variant.make_layer()
    x = variant.make_input()
    T = variant.length
    pads = [min(3, T - 1), 0][: variant.batch]
    positions = torch.arange(T)[None] - torch.tensor(pads)[:, None]
    y = layer(x, positions=positions, mask=non_padding)
    for row, pad in enumerate(pads):
        assert_close(y[row : row + 1, pad:], layer(x[row : row + 1, pad:]), f"{pad} tokens of padding")


@torch.no_grad()
def check_packed_documents(variant: Variant) -> None:
    """17. Documents packed into one row do not see each other: each gets the outputs it gets alone at its
    positions.
    """
    layer = variant.make_layer()
    x = variant.make_input()
    T = variant.length
    cuts = [T // 2, T // 3][: variant.batch]
    ids = (torch.arange(T)[None] >= torch.tensor(cuts)[:, None]).long()
    y = layer(x, mask=make_document_mask(ids))
    for row, cut in enumerate(cuts):
        for begin, end in ((0, cut), (cut, T)):
            if begin < end:
                document_positions = torch.arange(begin, end)[None]
                expected = layer(x[row : row + 1, begin:end], positions=document_positions)
                assert_close(y[row : row + 1, begin:end], expected, f"tokens {begin} to {end - 1}")


def is_length_independent(variant: Variant) -> bool:
    """Whether a token's representation is the same in a longer sequence.

    It is not if the RoPE frequencies scale with the length.
    """
    return not Capabilities.from_part(variant.prototype).changes_with_length
