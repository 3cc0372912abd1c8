"""Laws of kernels and of their weights, judged by attention written out by hand: one batch row and one
query head at a time.
"""

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.contracts import Attended, AttentionInputs, Capabilities, Unsupported
from attnlab.attention.epilogue import Sinks
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data import padding
from attnlab.testing.laws.variant import LONGEST, Variant, same


def rounding(inputs: AttentionInputs) -> float:
    """How far outputs may be off: 1e-12, or what is rounded off in the sum of the largest score, since
    weights take an error of scores as it is.
    """
    q, k = inputs[:2]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1).abs()
    terms = (q.abs() @ k.transpose(-1, -2)).max().item() * abs(inputs.scale)
    return max(1e-12, terms * torch.finfo(q.dtype).eps)


def asked(layer: Any, x: Tensor, **context: Any) -> AttentionInputs:
    """What the layer gives its kernel for this input; nothing is needed beside the output."""
    given = []

    def spy(inputs: AttentionInputs) -> Attended:
        given.append(inputs._replace(need=()))
        return eager(inputs)

    layer.attend(x, kernel=spy, **context)
    return given[0]


def by_hand(inputs: AttentionInputs) -> Attended:
    """softmax over the visible keys of score(scale q·k), times v; query head h reads KV head h // (H //
    G).
    """
    q, k, v = inputs[:3]
    (B, H, T, _), (G, S) = q.shape, k.shape[1:3]
    outs = []
    lses = []
    maps = []
    for n in range(B):
        q_pos, kv_pos = (at[n if len(at) > 1 else 0, 0] for at in (inputs.q_pos, inputs.kv_pos))
        scores = []
        sighted = []
        for head in range(H):
            b = torch.tensor(n)
            h = torch.tensor(head)
            group = head // (H // G)
            score = q[n, head] @ k[n, group].T * inputs.scale
            for function in inputs.scores:
                score = function(score, b, h, q_pos, kv_pos)
            visible = torch.ones(T, S, dtype=torch.bool)
            if inputs.mask is not None:
                visible = inputs.mask(b, h, q_pos, kv_pos).expand(T, S)
            score = score.masked_fill(~visible, -torch.inf)
            top = score.detach().amax(-1, keepdim=True).clamp(min=-1e300)
            terms = torch.where(visible, (score.masked_fill(~visible, 0.0) - top).exp(), 0.0)
            total = terms.sum(-1, keepdim=True)
            maps.append(terms / total.masked_fill(total == 0, 1.0))
            lses.append((total.log() + top).squeeze(-1).masked_fill(total.squeeze(-1) == 0, -torch.inf))
            scores.append(score)
            sighted.append(visible.any(-1, keepdim=True))
        if inputs.normalizer is not None:
            weights = inputs.normalizer(torch.stack(scores)[None])[0]
            maps[-H:] = torch.where(torch.stack(sighted), weights, 0.0)
        outs += [maps[n * H + head] @ v[n, head // (H // G)] for head in range(H)]
    return Attended(*(torch.stack(parts).unflatten(0, (B, H)) for parts in (outs, lses, maps)))


def _calls(variant: Variant) -> dict[str, AttentionInputs]:
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
    tail = full._replace(q=full.q[:, :, -last:], q_pos=full.q_pos[:, :, -last:], aligned=False)
    return {"full pass": full, "last queries": tail, "blind row": blind, "scores": loud, "long text": long}


def check_kernel_agrees(variant: Variant) -> None:
    """1. A kernel computes what attention by hand computes, gradients included where it has any."""
    kernel = variant.layer().kernel
    calls = _calls(variant)
    for name, inputs in calls.items():
        with torch.no_grad():
            same(kernel(inputs).out, by_hand(inputs).out, f"{name}, outputs", rounding(inputs))
    for name in ("full pass", "last queries", "blind row"):
        q, k, v = (part.detach().requires_grad_() for part in calls[name][:3])
        inputs = calls[name]._replace(q=q, k=k, v=v)
        try:
            out = kernel(inputs).out
        except Unsupported:
            return  # this kernel trains nowhere here; the laws that need gradients say so
        probe = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        expected = torch.autograd.grad((by_hand(inputs).out * probe).sum(), (q, k, v))
        for what, got, want in zip(
            "qkv", torch.autograd.grad((out * probe).sum(), (q, k, v)), expected, strict=True
        ):
            same(got, want, f"{name}, gradient of {what}")


def check_kernel_keeps_its_word(variant: Variant) -> None:
    """1. A kernel gives the lse and the weights that it is asked for, and the right ones, or refuses."""
    kernel = variant.layer().kernel
    inputs = _calls(variant)["full pass"]
    kernel(inputs)
    for need in ("lse", "weights"):
        try:
            got = getattr(kernel(inputs._replace(need=(need,))), need)
        except Unsupported:
            continue
        assert got is not None, f"the kernel was asked for {need} and gave none: it should refuse"
        wanted = getattr(by_hand(inputs), need)
        assert torch.equal(got == -torch.inf, wanted == -torch.inf), f"{need} of queries that see no key"
        same(got.nan_to_num(neginf=0.0), wanted.nan_to_num(neginf=0.0), need)


@torch.no_grad()
def check_dropout_keeps_the_mean(variant: Variant) -> None:
    """23. A kernel that is asked for dropout drops attention weights, and the rest make up for it."""
    kernel = variant.layer().kernel
    inputs = asked(variant.layer(), variant.x())
    inputs = inputs._replace(v=torch.ones_like(inputs.v))
    whole = eager(inputs).out[..., :1]  # one, where weights are a softmax's
    seeing = whole != 0  # all but queries that see no key
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            dropping = inputs._replace(dropout=0.3)
            sums = torch.cat([kernel(dropping).out[..., :1] for _ in range(48)])
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
    declared = Capabilities.of(layer.normaliser)
    assert declared.signed or weights.min() >= 0, "a weight is negative"
    if declared.sums_to_one:
        total = weights.sum(-1)
        same(total, (total > 0).to(total.dtype), "sum of a row")


def check_blind_rows_are_zero(variant: Variant) -> None:
    """5. A query that sees no key gets exactly zero, and gradients stay finite."""
    layer = variant.layer()
    x = variant.x()
    mask = padding(torch.tensor([0, variant.length])[: variant.batch])
    with torch.no_grad():
        out = layer.kernel(asked(layer, x, mask=mask)).out
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
    absorbs = Capabilities.of(variant.specimen.heads).can_absorb
    expanded = variant.but(heads__absorbed=False) if absorbs else variant
    expanded = expanded.but(forgetting=None)  # whose features are no part of a head
    with torch.no_grad():
        inputs = asked(variant.layer(), variant.x())
        width = asked(expanded.layer(), variant.x()).k.shape[-1]
        scaled = eager(inputs).out
        larger = inputs.q * multiplier * float(width) ** exponent
        unscaled = eager(inputs._replace(q=larger, scale=1.0)).out
    same(unscaled, scaled, f"scale of a width of {width}")
