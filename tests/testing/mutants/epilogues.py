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


class GateOfTheLast(Gate):
    """Gates by the previous token, which a decoding step does not have."""

    def make_gate_input(self, x):
        return F.pad(x, (0, 0, 1, 0))[:, :-1]


class GateInPlace(Gate):
    """Normalizes the layer's input in place."""

    def make_gate_input(self, x):
        return x.div_(x.norm(dim=-1, keepdim=True) + 1)


class UnitLength(nn.Module):
    """Scales to length one, even the output of a query that saw nothing."""

    def forward(self, out, lse, x):
        return out / out.norm(dim=-1, keepdim=True)


class FeatureRamp(nn.Module):
    """Weights later features more, but declares that it treats features alike."""

    per_feature = False

    def forward(self, out, lse, x):
        return out * torch.linspace(0.5, 1.5, out.shape[-1], dtype=out.dtype)


class UndeclaredSink(Sink):
    """Reports attention weights as if there were no sink."""

    reweights = False


def with_epilogue(epilogue, heads="mha", **options) -> VariantFactory:
    return make_attention_factory({"heads": heads}, epilogue=make_object_node(epilogue, **options))


MUTANTS: dict[str, VariantFactory] = {
    "a sink of one's own that adds": with_epilogue(SinkThatAdds, n_heads=6),
    "a sink that does not ask for lse": with_epilogue(SinkWithoutLse, n_heads=6),
    "a gate by the token before": with_epilogue(GateOfTheLast, dim=48, n_heads=6),
    "a gate that changes its input": with_epilogue(GateInPlace, dim=48, n_heads=6),
    "outputs of length one, even of nothing": with_epilogue(UnitLength),
    "features told apart behind latents": with_epilogue(FeatureRamp, "mla"),
    "a sink that leaves the shown weights whole": with_epilogue(UndeclaredSink, n_heads=6),
}
