"""Depo: who is k steps further along the chain (Physics of Language Models 4.1, Allen-Zhu 2025, 2512.17351).

    tokens    n4 n1  n9 n4  n1 n9 | q2 n4 n9  q1 n9 n4 ...      n4 leads to n1, n1 to n9, n9 to n4
    targets    .  .   .  .   .  . |  . n9  .   . n4  .

Surprising: the chain closes, so every query has an answer, and no node is first. In the paper a node's name
has several tokens; here it is one.
"""

import torch

from attnlab.data.drawn import Drawn, whole
from attnlab.data.synthetic.pieces import orders
from attnlab.data.task import IGNORE, Batch

LEAST = 3  # nodes of a chain


class Depo(Drawn):
    """The steps of a chain of at most `nodes` in any order, then for up to `queries` of them, none twice, the
    node that is 1 to `hops` steps further. Training draws the chain's size from 3 on, as the paper does, with
    weights 1 / (size + sqrt(nodes)); in validation all have `nodes`. Reported by hops."""

    def __init__(
        self, length: int, vocabulary: int, nodes: int, hops: int, queries: int, val_windows: int
    ) -> None:
        whole(1, hops=hops, queries=queries, vocabulary=vocabulary)
        whole(LEAST, nodes=nodes)
        if vocabulary < nodes:
            raise ValueError(
                f"data.vocabulary={vocabulary}: a chain of data.nodes={nodes} takes as many names"
            )
        self.queries = min(queries, nodes)
        least = 2 * nodes + 3 * self.queries
        if type(length) is not int or length < least:
            raise ValueError(
                f"data.length={length}: a chain of {nodes} and {self.queries} queries take {least} tokens;"
                " lower data.nodes or data.queries"
            )
        self.names = vocabulary
        self.nodes = nodes
        self.hops = hops
        sizes = torch.arange(LEAST, nodes + 1, dtype=torch.float64)
        self._chances = 1 / (sizes + nodes**0.5)
        super().__init__(
            [*(f"n{i}" for i in range(vocabulary)), *(f"q{k + 1}" for k in range(hops)), "_"],
            [f"hops/{k + 1}" for k in range(hops)], length, val_windows,
            name="depo", vocabulary=vocabulary, nodes=nodes, hops=hops, queries=queries,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        size = torch.multinomial(self._chances, count, replacement=True, generator=random)[:, None] + LEAST
        if validation:
            size = torch.full_like(size, self.nodes)
        names = orders(count, self.names, random)[:, : self.nodes]
        first = self._of_chain(size, count, random)
        steps = torch.stack((names.gather(1, first), names.gather(1, (first + 1) % size)), 2).flatten(1)
        asked = self._of_chain(size, count, random)[:, : self.queries]
        hops = torch.randint(1, self.hops + 1, asked.shape, generator=random)
        answer = names.gather(1, (asked + hops) % size)
        queries = torch.stack((self.names + hops - 1, names.gather(1, asked), answer), 2).flatten(1)

        where = torch.arange(self.length).expand(count, -1)
        into = where - 2 * size  # the queries
        here = (into >= 0) & (into < 3 * size.clamp(max=self.queries))
        into = into.clamp(0, queries.shape[1] - 1)
        step = steps.gather(1, where.clamp(max=steps.shape[1] - 1))
        blank = torch.full_like(step, self.vocab_size - 1)
        tokens = torch.where(here, queries.gather(1, into), torch.where(where < 2 * size, step, blank))
        scored = here & (into % 3 == 1)
        targets = answer.gather(1, into // 3).masked_fill(~scored, IGNORE)
        condition = (hops - 1).gather(1, into // 3)
        return {"tokens": tokens, "targets": targets, "condition": condition}

    def _of_chain(self, size: torch.Tensor, count: int, random: torch.Generator) -> torch.Tensor:
        """The nodes of each chain in any order; [count, nodes], of which the first `size` are meant."""
        draw = torch.rand(count, self.nodes, generator=random)
        return draw.masked_fill(torch.arange(self.nodes) >= size, 2).argsort(1)
