"""Depo: the node k steps along a chain (Physics of Language Models 4.1, Allen-Zhu 2025, 2512.17351).

    tokens    n4 n1  n9 n4  n1 n9 | q2 n4 n9  q1 n9 n4 ...      n4 leads to n1, n1 to n9, n9 to n4
    targets    .  .   .  .   .  . |  . n9  .   . n4  .

The chain is a cycle, so every query has an answer and no node is first. In the paper a node's name has
several tokens; here it is one.
"""

import torch

from attnlab.data.synthetic.sequence_layout import sample_permutations
from attnlab.data.synthetic_task import SyntheticTask, check_whole_numbers
from attnlab.data.task import IGNORE, Batch

MIN_NODES = 3  # smallest chain


class Depo(SyntheticTask):
    """The steps of a chain of at most `nodes` nodes in random order, then queries 1 to `hops` steps ahead.

    Up to `queries` nodes are queried, none twice. Training samples the chain's size from 3 on, as the paper
    does, with weights 1 / (size + sqrt(nodes)); all validation chains have `nodes` nodes. Results are
    reported by hops.
    """

    def __init__(
        self, length: int, vocabulary: int, nodes: int, hops: int, queries: int, val_windows: int
    ) -> None:
        check_whole_numbers(1, hops=hops, queries=queries, vocabulary=vocabulary)
        check_whole_numbers(MIN_NODES, nodes=nodes)
        if vocabulary < nodes:
            raise ValueError(
                f"data.vocabulary={vocabulary} is too small: a chain of data.nodes={nodes} takes as "
                "many names"
            )
        self.queries = min(queries, nodes)
        min_length = 2 * nodes + 3 * self.queries
        if type(length) is not int or length < min_length:
            raise ValueError(
                f"data.length={length} is too short: a chain of {nodes} and {self.queries} queries take"
                f" {min_length} tokens; raise data.length, or lower data.nodes or data.queries"
            )
        self.n_names = vocabulary
        self.nodes = nodes
        self.hops = hops
        sizes = torch.arange(MIN_NODES, nodes + 1, dtype=torch.float64)
        self._size_weights = 1 / (sizes + nodes**0.5)
        super().__init__(
            [*(f"n{i}" for i in range(vocabulary)), *(f"q{k + 1}" for k in range(hops)), "_"],
            [f"hops/{k + 1}" for k in range(hops)], length, val_windows,
            name="depo", vocabulary=vocabulary, nodes=nodes, hops=hops, queries=queries,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        size = (
            torch.multinomial(self._size_weights, count, replacement=True, generator=random)[:, None]
            + MIN_NODES
        )
        if validation:
            size = torch.full_like(size, self.nodes)
        names = sample_permutations(count, self.n_names, random)[:, : self.nodes]
        first = self._sample_chain_nodes(size, count, random)
        steps = torch.stack((names.gather(1, first), names.gather(1, (first + 1) % size)), 2).flatten(1)
        queried = self._sample_chain_nodes(size, count, random)[:, : self.queries]
        hops = torch.randint(1, self.hops + 1, queried.shape, generator=random)
        answer = names.gather(1, (queried + hops) % size)
        queries = torch.stack((self.n_names + hops - 1, names.gather(1, queried), answer), 2).flatten(1)

        positions = torch.arange(self.length).expand(count, -1)
        query_offset = positions - 2 * size  # offset into the queries
        is_query = (query_offset >= 0) & (query_offset < 3 * size.clamp(max=self.queries))
        query_offset = query_offset.clamp(0, queries.shape[1] - 1)
        step = steps.gather(1, positions.clamp(max=steps.shape[1] - 1))
        blank = torch.full_like(step, self.vocab_size - 1)
        tokens = torch.where(
            is_query, queries.gather(1, query_offset), torch.where(positions < 2 * size, step, blank)
        )
        scored = is_query & (query_offset % 3 == 1)
        targets = answer.gather(1, query_offset // 3).masked_fill(~scored, IGNORE)
        condition = (hops - 1).gather(1, query_offset // 3)
        return {"tokens": tokens, "targets": targets, "condition": condition}

    def _sample_chain_nodes(self, size: torch.Tensor, count: int, random: torch.Generator) -> torch.Tensor:
        """Return the nodes of each chain in random order [count, nodes]; only the first `size` are valid."""
        draw = torch.rand(count, self.nodes, generator=random)
        return draw.masked_fill(torch.arange(self.nodes) >= size, 2).argsort(1)
