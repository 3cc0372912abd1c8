"""Laws of kernels and of their weights, judged by attention written out by hand: one batch row and one
query head at a time.
"""

import inspect
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnlab.attention.contracts import Attended, Heads, Normaliser, Unsupported, declared
from attnlab.attention.epilogue import Sinks
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data import padding
from attnlab.testing.laws.variant import LONGEST, Variant, same


class Call(NamedTuple):
    """What a layer asked of its kernel."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]

    def answered(self, kernel: Any, **changes: Any) -> Attended:
        """By this kernel, with some options replaced."""
        return kernel(self.q, self.k, self.v, **{**self.options, **changes})

    def rounding(self) -> float:
        """How far outputs may be off: 1e-12, or what is rounded off in the sum of the largest score, since
        weights take an error of scores as it is.
        """
        (H, G), scale = (self.q.shape[1], self.k.shape[1]), self.options["scale"]
        k = self.k.repeat_interleave(H // G, 1).abs()
        terms = (self.q.abs() @ k.transpose(-1, -2)).max().item() * abs(scale)
        return max(1e-12, terms * torch.finfo(self.q.dtype).eps)


def asked(layer: Any, x: Tensor, **context: Any) -> Call:
    """The call that the layer makes for this input."""
    calls = []

    def spy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Attended:
        calls.append(Call(q, k, v, {**options, "need": ()}))
        return eager(q, k, v, **options)

    layer.attend(x, kernel=spy, **context)
    return calls[0]


def by_hand(call: Call) -> Attended:
    """softmax over the visible keys of score(scale q·k), times v; query head h reads KV head h // (H //
    G).
    """
    (B, H, T, _), (G, S) = call.q.shape, call.k.shape[1:3]
    mask = call.options["mask"]
    normaliser = call.options.get("normaliser")
    outs = []
    lses = []
    maps = []
    for n in range(B):
        q_pos, kv_pos = (
            call.options[name][n if len(call.options[name]) > 1 else 0, 0] for name in ("q_pos", "kv_pos")
        )
        scores = []
        sighted = []
        for head in range(H):
            b = torch.tensor(n)
            h = torch.tensor(head)
            group = head // (H // G)
            score = call.q[n, head] @ call.k[n, group].T * call.options["scale"]
            for function in call.options["scores"]:
                score = function(score, b, h, q_pos, kv_pos)
            visible = torch.ones(T, S, dtype=torch.bool)
            if mask is not None:
                visible = mask(b, h, q_pos, kv_pos).expand(T, S)
            score = score.masked_fill(~visible, -torch.inf)
            top = score.detach().amax(-1, keepdim=True).clamp(min=-1e300)
            terms = torch.where(visible, (score.masked_fill(~visible, 0.0) - top).exp(), 0.0)
            total = terms.sum(-1, keepdim=True)
            maps.append(terms / total.masked_fill(total == 0, 1.0))
            lses.append((total.log() + top).squeeze(-1).masked_fill(total.squeeze(-1) == 0, -torch.inf))
            scores.append(score)
            sighted.append(visible.any(-1, keepdim=True))
        if normaliser is not None:
            weights = normaliser(torch.stack(scores)[None])[0]
            maps[-H:] = torch.where(torch.stack(sighted), weights, 0.0)
        outs += [maps[n * H + head] @ call.v[n, head // (H // G)] for head in range(H)]
    return Attended(*(torch.stack(parts).unflatten(0, (B, H)) for parts in (outs, lses, maps)))


def _calls(variant: Variant) -> dict[str, Call]:
    """The calls of a full pass, of the last queries alone (as in decoding), of a batch with a blind row, with
    scores of thousands, and of a text that is longer than a tile.
    """
    layer = variant.layer()
    x = variant.x()
    with torch.no_grad():
        full = asked(layer, x)
        lengths = torch.tensor([0, variant.length])[: variant.batch]
        blind = asked(layer, x, mask=padding(lengths))
        long = asked(layer, replace(variant, batch=1, length=LONGEST - 1).x())
        loud = full._replace(q=full.q * 1e4)  # exp of a score is infinite
    last = max(1, variant.length // 3)
    newest = {"q_pos": full.options["q_pos"][:, :, -last:], "aligned": False}
    tail = full._replace(q=full.q[:, :, -last:], options={**full.options, **newest})
    return {"full pass": full, "last queries": tail, "blind row": blind, "scores": loud, "long text": long}


def check_kernel_agrees(variant: Variant) -> None:
    """1. A kernel computes what attention by hand computes, gradients included where it has any."""
    kernel = variant.layer().kernel
    calls = _calls(variant)
    for name, call in calls.items():
        with torch.no_grad():
            same(call.answered(kernel).out, by_hand(call).out, f"{name}, outputs", call.rounding())
    for name in ("full pass", "last queries", "blind row"):
        call = calls[name]
        inputs = [part.detach().requires_grad_() for part in call[:3]]
        call = Call(inputs[0], inputs[1], inputs[2], call.options)
        try:
            out = call.answered(kernel).out
        except Unsupported:
            return  # this kernel trains nowhere here; the laws that need gradients say so
        probe = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        expected = torch.autograd.grad((by_hand(call).out * probe).sum(), inputs)
        for what, got, want in zip(
            "qkv", torch.autograd.grad((out * probe).sum(), inputs), expected, strict=True
        ):
            same(got, want, f"{name}, gradient of {what}")


def check_kernel_keeps_its_word(variant: Variant) -> None:
    """1. A kernel gives the lse and the weights that it is asked for, and the right ones, or refuses."""
    kernel = variant.layer().kernel
    call = _calls(variant)["full pass"]
    call.answered(kernel)
    for need in ("lse", "weights"):
        try:
            got = getattr(call.answered(kernel, need=(need,)), need)
        except Unsupported:
            continue
        assert got is not None, f"the kernel was asked for {need} and gave none: it should refuse"
        wanted = getattr(by_hand(call), need)
        assert torch.equal(got == -torch.inf, wanted == -torch.inf), f"{need} of queries that see no key"
        same(got.nan_to_num(neginf=0.0), wanted.nan_to_num(neginf=0.0), need)


@torch.no_grad()
def check_dropout_keeps_the_mean(variant: Variant) -> None:
    """23. A kernel that is asked for dropout drops attention weights, and the rest make up for it."""
    kernel = variant.layer().kernel
    call = asked(variant.layer(), variant.x())
    call = call._replace(v=torch.ones_like(call.v))
    whole = call.answered(eager).out[..., :1]  # one, where weights are a softmax's
    seeing = whole != 0  # all but queries that see no key
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            sums = torch.cat([call.answered(kernel, dropout=0.3).out[..., :1] for _ in range(48)])
        except Unsupported:
            return  # it says so; nobody trains with it
    size = whole[seeing].abs().mean()  # of a sum: one may be near 0, where weights are signed
    off = ((sums - whole.repeat(48, 1, 1, 1)) * whole.sign().repeat(48, 1, 1, 1))[seeing.repeat(48, 1, 1, 1)]
    assert off.std() > 0.05 * size, "with dropout of 0.3 no weight is dropped"
    got = 1 + off.mean() / size
    assert abs(got - 1) < 0.05, (
        f"weights sum to {got:.2g} of what they should on average, with dropout of 0.3"
    )


def check_weights_sum_to_one(variant: Variant) -> None:
    """4. Attention weights are not negative; a row sums to one, or to one minus the sink's share."""
    layer = variant.layer()
    if layer.normaliser is not None:
        _check_own_weights(layer, variant.x())
        return
    with torch.no_grad():
        attended = layer.attend(variant.x(), kernel=eager, need=("weights", "lse"))
    assert attended.weights.min() >= 0, "a weight is negative"
    share = torch.zeros_like(attended.lse)
    if isinstance(layer.epilogue, Sinks):
        logit = layer.epilogue.logit.detach()[:, None]
        share = logit.exp() / (logit.exp() + attended.lse.exp())
    total = attended.weights.sum(-1)
    blind = attended.lse == -torch.inf
    if layer.reweighs and not isinstance(layer.epilogue, Sinks):
        assert total.max() <= 1 + 1e-12, f"a row sums to {total.max():.6g}, which is more than one"
        return
    same(total, (1 - share).masked_fill(blind, 0.0), "sum of a row")


@torch.no_grad()
def _check_own_weights(layer: Any, x: Tensor) -> None:
    weights = layer.attend(x, kernel=eager, need=("weights",)).weights
    signed = declared(layer.normaliser, Normaliser, "signed")
    assert signed or weights.min() >= 0, "a weight is negative"
    if declared(layer.normaliser, Normaliser, "sums_to_one"):
        total = weights.sum(-1)
        same(total, (total > 0).to(total.dtype), "sum of a row")


def check_blind_rows_are_zero(variant: Variant) -> None:
    """5. A query that sees no key gets exactly zero, and gradients stay finite."""
    layer = variant.layer()
    x = variant.x()
    mask = padding(torch.tensor([0, variant.length])[: variant.batch])
    with torch.no_grad():
        out = asked(layer, x, mask=mask).answered(layer.kernel).out
    assert out.isfinite().all(), "not finite"
    assert (out[0] == 0).all(), "a query without keys gets something"
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(layer.attend(x, mask=mask).out.square().sum(), x)
    assert gradient.isfinite().all(), "a gradient is not finite"


def check_scale(variant: Variant) -> None:
    """10. Scores are q·k D^exponent, times a multiplier: the same as unscaled scores of q so much larger."""
    exponent = variant.attention.get(
        "scale_exponent", inspect.signature(Attention).parameters["scale_exponent"].default
    )
    multiplier = variant.attention.get("multiplier", 1.0)
    absorbs = declared(variant.specimen.heads, Heads, "can_absorb")
    expanded = variant.but(heads__absorbed=False) if absorbs else variant
    expanded = expanded.but(forgetting=None)  # whose features are no part of a head
    with torch.no_grad():
        call = asked(variant.layer(), variant.x())
        width = asked(expanded.layer(), variant.x()).k.shape[-1]
        scaled = call.answered(eager).out
        unscaled = (
            call._replace(q=call.q * multiplier * float(width) ** exponent).answered(eager, scale=1.0).out
        )
    same(unscaled, scaled, f"scale of a width of {width}")
