"""Mutant epilogues: wrong mixing and wrong declarations."""

import torch
import torch.nn.functional as F
from torch import nn

from .builders import VariantFactory, make_attention_factory, make_object_node


class Sink(nn.Module):
    """A sink written out by hand."""

    needs, reweights, per_feature = ("lse",), True, False

    def __init__(self, n_heads):
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(n_heads))

    def compute_kept_share(self, lse):
        return torch.sigmoid(lse - self.logit[:, None])[..., None]

    def forward(self, out, lse, x):
        return out * self.compute_kept_share(lse).to(out.dtype)


class SinkThatAdds(Sink):
    def forward(self, out, lse, x):
        return out * (2 - self.compute_kept_share(lse))


class SinkWithoutLse(Sink):
    needs = ()

    def forward(self, out, lse, x):
        return out if lse is None else super().forward(out, lse, x)


class SinkAcrossRows(Sink):
    """Subtracts the largest lse of the whole batch."""

    def compute_kept_share(self, lse):
        return (lse - lse.amax().detach()).exp()[..., None] / (1 + self.logit.exp()[:, None, None])


class Gate(nn.Module):
    """A gate per head, written out by hand."""

    per_feature = False

    def __init__(self, dim, n_heads):
        super().__init__()
        self.gate = nn.Linear(dim, n_heads)

    def forward(self, out, lse, x):
        return out * self.gate(self.make_gate_input(x)).sigmoid().mT[..., None]

    def make_gate_input(self, x):
        return x


class GateOfTheNext(Gate):
    def make_gate_input(self, x):
        return torch.cat((x[:, 1:], torch.zeros_like(x[:, :1])), 1)


class GateOfTheLast(Gate):
    """Gates by the previous token, which a decoding step does not have."""

    def make_gate_input(self, x):
        return F.pad(x, (0, 0, 1, 0))[:, :-1]


class GateOfTheText(Gate):
    def make_gate_input(self, x):
        return x.mean(1, keepdim=True)


class GateInPlace(Gate):
    """Normalizes the layer's input in place."""

    def make_gate_input(self, x):
        return x.div_(x.norm(dim=-1, keepdim=True) + 1)


class CumulatedAhead(nn.Module):
    per_feature = False

    def forward(self, out, lse, x):
        return out + out.flip(2).cumsum(2).flip(2) / 100


class Cumulated(nn.Module):
    """Sums past outputs, which a decoding step does not have."""

    per_feature = False

    def forward(self, out, lse, x):
        return out + out.cumsum(2) / 10


class NormedOverTime(nn.Module):
    """Normalizes over one dimension too many."""

    def forward(self, out, lse, x):
        return F.layer_norm(out, out.shape[-2:])


class BatchNormed(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.norm = nn.BatchNorm2d(head_dim, affine=False)

    def forward(self, out, lse, x):
        return self.norm(out.transpose(1, 3)).transpose(1, 3)


class CenteredOverRows(nn.Module):
    per_feature = False

    def forward(self, out, lse, x):
        return out - out.mean(0, keepdim=True) / 2


class ByTheLength(nn.Module):
    per_feature = False

    def forward(self, out, lse, x):
        return out * x.shape[1] ** 0.5


class UnitLength(nn.Module):
    """Scales to length one, even the output of a query that saw nothing."""

    def forward(self, out, lse, x):
        return out / out.norm(dim=-1, keepdim=True)


class AlwaysDropout(nn.Module):
    per_feature = False

    def forward(self, out, lse, x):
        return F.dropout2d(out, 0.2)


class Momentum(nn.Module):
    """Adds a tenth of its previous output."""

    per_feature = False

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, out, lse, x):
        previous, self.last = self.last, out.detach()
        return out if previous is None or previous.shape != out.shape else out + previous / 10


class FeatureRamp(nn.Module):
    """Weights later features more, but declares that it treats features alike."""

    per_feature = False

    def forward(self, out, lse, x):
        return out * torch.linspace(0.5, 1.5, out.shape[-1], dtype=out.dtype)


class MisdeclaredCubic(nn.Module):
    """Declares that it scales weights as it does outputs, but applies a nonlinear function to both."""

    reweights, per_feature = True, False

    def forward(self, out, lse, x):
        return out + out**3


class UndeclaredSink(Sink):
    """Reports attention weights as if there were no sink."""

    reweights = False


def with_epilogue(epilogue, heads="mha", **options) -> VariantFactory:
    return make_attention_factory({"heads": heads}, epilogue=make_object_node(epilogue, **options))


MUTANTS: dict[str, VariantFactory] = {
    "a sink of one's own that adds": with_epilogue(SinkThatAdds, n_heads=6),
    "a sink that does not ask for lse": with_epilogue(SinkWithoutLse, n_heads=6),
    "a sink by the largest lse of the batch": with_epilogue(SinkAcrossRows, n_heads=6),
    "a gate by the next token": with_epilogue(GateOfTheNext, dim=48, n_heads=6),
    "a gate by the token before": with_epilogue(GateOfTheLast, dim=48, n_heads=6),
    "a gate by the mean of the text": with_epilogue(GateOfTheText, dim=48, n_heads=6),
    "a gate that changes its input": with_epilogue(GateInPlace, dim=48, n_heads=6),
    "outputs summed from the end": with_epilogue(CumulatedAhead, "mqa"),
    "outputs summed from the beginning": with_epilogue(Cumulated),
    "outputs normalized over the time": with_epilogue(NormedOverTime),
    "outputs normalized over the batch": with_epilogue(BatchNormed, head_dim=8),
    "outputs centered over the batch": with_epilogue(CenteredOverRows),
    "outputs by the length of the text": with_epilogue(ByTheLength),
    "outputs of length one, even of nothing": with_epilogue(UnitLength),
    "dropout that is always on, in the epilogue": with_epilogue(AlwaysDropout),
    "an epilogue that remembers": with_epilogue(Momentum),
    "features told apart behind latents": with_epilogue(FeatureRamp, "mla"),
    "an epilogue that bends what it calls shrinking": with_epilogue(MisdeclaredCubic),
    "a sink that leaves the shown weights whole": with_epilogue(UndeclaredSink, n_heads=6),
}
