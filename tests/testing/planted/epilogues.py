"""Epilogues with a bug: what they mix, and what they declare."""

import torch
import torch.nn.functional as F
from torch import nn

from .making import Make, attention, made


class Sink(nn.Module):
    """A sink by hand; `share` is what stays."""

    needs, reweighs, per_feature = ("lse",), True, False

    def __init__(self, n_heads):
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(n_heads))

    def share(self, lse):
        return torch.sigmoid(lse - self.logit[:, None])[..., None]

    def forward(self, out, lse, x):
        return out * self.share(lse)


class SinkThatAdds(Sink):
    def forward(self, out, lse, x):
        return out * (2 - self.share(lse))


class SinkUnasked(Sink):
    needs = ()

    def forward(self, out, lse, x):
        return out if lse is None else super().forward(out, lse, x)


class SinkAcrossRows(Sink):
    """The largest lse of the whole batch, for stability."""

    def share(self, lse):
        return (lse - lse.amax().detach()).exp()[..., None] / (1 + self.logit.exp()[:, None, None])


class Gate(nn.Module):
    """A gate per head by hand."""

    per_feature = False

    def __init__(self, dim, n_heads):
        super().__init__()
        self.gate = nn.Linear(dim, n_heads)

    def forward(self, out, lse, x):
        return out * self.gate(self.seen(x)).sigmoid().mT[..., None]

    def seen(self, x):
        return x


class GateOfTheNext(Gate):
    def seen(self, x):
        return torch.cat((x[:, 1:], torch.zeros_like(x[:, :1])), 1)


class GateOfTheLast(Gate):
    """The token before, which a step does not have."""

    def seen(self, x):
        return F.pad(x, (0, 0, 1, 0))[:, :-1]


class GateOfTheText(Gate):
    def seen(self, x):
        return x.mean(1, keepdim=True)


class GateInPlace(Gate):
    """It normalises the layer's input where it stands."""

    def seen(self, x):
        return x.div_(x.norm(dim=-1, keepdim=True) + 1)


class CumulatedAhead(nn.Module):
    per_feature = False

    def forward(self, out, lse, x):
        return out + out.flip(2).cumsum(2).flip(2) / 100


class Cumulated(nn.Module):
    """Of the past only, but a step has none."""

    per_feature = False

    def forward(self, out, lse, x):
        return out + out.cumsum(2) / 10


class NormedOverTime(nn.Module):
    """One shape too many."""

    def forward(self, out, lse, x):
        return F.layer_norm(out, out.shape[-2:])


class BatchNormed(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.norm = nn.BatchNorm2d(head_dim, affine=False)

    def forward(self, out, lse, x):
        return self.norm(out.transpose(1, 3)).transpose(1, 3)


class CentredOverRows(nn.Module):
    per_feature = False

    def forward(self, out, lse, x):
        return out - out.mean(0, keepdim=True) / 2


class ByTheLength(nn.Module):
    per_feature = False

    def forward(self, out, lse, x):
        return out * x.shape[1] ** 0.5


class Unit(nn.Module):
    """A length of one, also for a query that saw nothing."""

    def forward(self, out, lse, x):
        return out / out.norm(dim=-1, keepdim=True)


class Dropped(nn.Module):
    per_feature = False

    def forward(self, out, lse, x):
        return F.dropout2d(out, 0.2)


class Momentum(nn.Module):
    """A tenth of what it gave last."""

    per_feature = False

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, out, lse, x):
        before, self.last = self.last, out.detach()
        return out if before is None or before.shape != out.shape else out + before / 10


class Ramp(nn.Module):
    """Later features count more: it tells them apart, and denies it."""

    per_feature = False

    def forward(self, out, lse, x):
        return out * torch.linspace(0.5, 1.5, out.shape[-1], dtype=out.dtype)


class Bounded(nn.Module):
    """It says that it shrinks weights as it does outputs; it bends both."""

    reweighs, per_feature = True, False

    def forward(self, out, lse, x):
        return out + out**3


class ShrinksUnsaid(Sink):
    """Weights are shown as though there were no sink."""

    reweighs = False


def ended(epilogue, heads="mha", **options) -> Make:
    return attention({"heads": heads}, epilogue=made(epilogue, **options))


PLANTED: dict[str, Make] = {
    "a sink of one's own that adds": ended(SinkThatAdds, n_heads=6),
    "a sink that does not ask for lse": ended(SinkUnasked, n_heads=6),
    "a sink by the largest lse of the batch": ended(SinkAcrossRows, n_heads=6),
    "a gate by the next token": ended(GateOfTheNext, dim=48, n_heads=6),
    "a gate by the token before": ended(GateOfTheLast, dim=48, n_heads=6),
    "a gate by the mean of the text": ended(GateOfTheText, dim=48, n_heads=6),
    "a gate that changes its input": ended(GateInPlace, dim=48, n_heads=6),
    "outputs summed from the end": ended(CumulatedAhead, "mqa"),
    "outputs summed from the beginning": ended(Cumulated),
    "outputs normalised over the time": ended(NormedOverTime),
    "outputs normalised over the batch": ended(BatchNormed, head_dim=8),
    "outputs centred over the batch": ended(CentredOverRows),
    "outputs by the length of the text": ended(ByTheLength),
    "outputs of length one, even of nothing": ended(Unit),
    "dropout that is always on, in the epilogue": ended(Dropped),
    "an epilogue that remembers": ended(Momentum),
    "features told apart behind latents": ended(Ramp, "mla"),
    "an epilogue that bends what it calls shrinking": ended(Bounded),
    "a sink that leaves the shown weights whole": ended(ShrinksUnsaid, n_heads=6),
}
