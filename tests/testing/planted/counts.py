"""Heads that answer rightly and count wrongly: bytes cached, work done, numbers read."""

from torch import nn

from .heads import headed
from .making import Make
from .parts import OwnHeads


class KeysCountedOnly(OwnHeads):
    def state_size(self):
        return super().state_size() // 2


class CountedInFloats(OwnHeads):
    def state_size(self):
        return 2 * self.n_kv_heads * self.head_dim * 4


class ThirdPart(OwnHeads):
    """It caches a gate beside keys and values, and counts keys and values."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.gate = nn.Linear(dim, n_kv_heads, bias=False)

    def project(self, x, rotate):
        q, state = super().project(x, rotate)
        return q, (*state, self.gate(x).transpose(1, 2)[..., None])

    def expand(self, state):
        return state[0], state[1] * state[2].sigmoid()

    def flops(self, new, held, absorbed=False):
        return super().flops(new, held) + 2 * new * self.gate.weight.numel()


class Nameless(OwnHeads):
    """It does not say how many KV heads it has."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.groups = self.__dict__.pop("n_kv_heads")

    def state_size(self):
        return 2 * self.groups * self.head_dim * self.qkv.weight.element_size()


class ProjectsNothing(OwnHeads):
    projection = None


class OneHeadCounted(OwnHeads):
    def flops(self, new, held, absorbed=False):
        return super().flops(new, held) // self.n_heads


class ValuesUnread(OwnHeads):
    def read_width(self, absorbed=False):
        return super().read_width() // 2


PLANTED: dict[str, Make] = {
    "a state of which only keys are counted": headed(KeysCountedOnly, 6, 2),
    "a state counted at four bytes a number": headed(CountedInFloats),
    "a third part of the state that is not counted": headed(ThirdPart, 6, 2),
    "heads that do not name their KV heads": headed(Nameless),
    "heads whose projection is none": headed(ProjectsNothing),
    "heads that count the work of one": headed(OneHeadCounted),
    "heads that count no reading of values": headed(ValuesUnread),
}
