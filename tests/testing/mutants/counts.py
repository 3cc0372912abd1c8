"""Mutant heads with correct outputs and wrong counts: cached bytes, FLOPs, numbers read."""

from torch import nn

from .builders import VariantFactory
from .heads import with_heads
from .parts import CustomHeads


class KeysCountedOnly(CustomHeads):
    def state_size(self):
        return super().state_size() // 2


class CountedInFloats(CustomHeads):
    def state_size(self):
        return 2 * self.n_kv_heads * self.head_dim * 4


class ThirdPart(CustomHeads):
    """Caches a gate with keys and values, and counts only keys and values."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.gate = nn.Linear(dim, n_kv_heads, bias=False)

    def project(self, x, rotate):
        q, state = super().project(x, rotate)
        return q, (*state, self.gate(x).transpose(1, 2)[..., None])

    def expand(self, state):
        return state[0], state[1] * state[2].sigmoid()

    def flops(self, n_queries, n_keys, absorbed=False):
        return super().flops(n_queries, n_keys) + 2 * n_queries * self.gate.weight.numel()


class MissingKvHeadCount(CustomHeads):
    """Has no `n_kv_heads`."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.groups = self.__dict__.pop("n_kv_heads")

    def state_size(self):
        return 2 * self.groups * self.head_dim * self.qkv.weight.element_size()


class ProjectsNothing(CustomHeads):
    projection = None


class OneHeadCounted(CustomHeads):
    def flops(self, n_queries, n_keys, absorbed=False):
        return super().flops(n_queries, n_keys) // self.n_heads


class ValuesUnread(CustomHeads):
    def read_width(self, absorbed=False):
        return super().read_width() // 2


MUTANTS: dict[str, VariantFactory] = {
    "a state of which only keys are counted": with_heads(KeysCountedOnly, 6, 2),
    "a state counted at four bytes a number": with_heads(CountedInFloats),
    "a third part of the state that is not counted": with_heads(ThirdPart, 6, 2),
    "heads that do not name their KV heads": with_heads(MissingKvHeadCount),
    "heads whose projection is none": with_heads(ProjectsNothing),
    "heads that count the work of one": with_heads(OneHeadCounted),
    "heads that count no reading of values": with_heads(ValuesUnread),
}
