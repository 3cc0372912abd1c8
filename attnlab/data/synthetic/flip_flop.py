"""Flip-flop language (Liu et al. 2023, 2306.00946): read the bit last written, past bits to ignore.

tokens    w 1 i 0 i 0 r 1 i 1 w 0 r 0 _ _
targets   . . . . . . 1 . . . . . 0 . . .        the bit after each read

The paper tests other proportions of ignored bits than it trains on; here, validation examples may be longer.
"""

import torch

from attnlab.data.synthetic.sequence_layout import LengthRange
from attnlab.data.synthetic_task import SyntheticTask
from attnlab.data.task import IGNORE, Batch

WORDS = ("0", "1", "w", "i", "r", "_")
WRITE, IGNORED, READ, PADDING = range(2, 6)  # indices into WORDS


class FlipFlop(SyntheticTask):
    """Examples of `shortest` to `longest` instructions of two tokens, in validation up to `val_longest`.

    The first instruction writes and the last reads, as in the paper. Each other one ignores its bit with
    probability `ignore`; otherwise it is as likely to write as to read. Results are reported by the number of
    instructions up to the read. Chance is 1/2. A guess of the window's more frequent bit is better than that,
    because reads repeat the written bit.
    """

    def __init__(
        self, length: int, ignore: float, shortest: int, longest: int, val_longest: int, val_windows: int
    ) -> None:
        if isinstance(ignore, bool) or not isinstance(ignore, int | float) or not 0 <= ignore < 1:
            raise ValueError(f"data.ignore must be a probability of at least 0 and below 1, got {ignore}")
        self._lengths = LengthRange(length, shortest, longest, val_longest, unit_tokens=2)
        if shortest < 2:
            raise ValueError(f"data.shortest must be at least 2, a write and a read, got {shortest}")
        self.ignore = ignore
        super().__init__(
            WORDS, self._lengths.conditions, length, val_windows, name="flip_flop", ignore=ignore,
            shortest=shortest, longest=longest, val_longest=val_longest,
        )  # fmt: skip

    def draw(self, count: int, random: torch.Generator, validation: bool) -> Batch:
        size = self._lengths.sample(count, random, validation)
        place = torch.arange((self.length + 1) // 2)
        shape = (count, len(place))
        is_ignored = torch.rand(shape, generator=random) < self.ignore
        instruction = torch.where(torch.rand(shape, generator=random) < 0.5, WRITE, READ)
        instruction = instruction.masked_fill(is_ignored, IGNORED)
        instruction[:, 0] = WRITE
        instruction = instruction.masked_fill(place == size - 1, READ)
        bit = torch.randint(2, shape, generator=random)
        last_write = torch.where(instruction == WRITE, place, 0).cummax(1).values
        stored = bit.gather(1, last_write)
        bit = torch.where(instruction == READ, stored, bit)
        tokens = torch.stack((instruction, bit), 2).masked_fill((place >= size)[..., None], PADDING)
        targets = torch.full_like(tokens, IGNORE)
        targets[..., 0] = stored.masked_fill((instruction != READ) | (place >= size), IGNORE)
        condition = self._lengths.classify(place + 1).repeat_interleave(2).repeat(count, 1)
        batch = {"tokens": tokens.flatten(1), "targets": targets.flatten(1), "condition": condition}
        return {key: value[:, : self.length].contiguous() for key, value in batch.items()}
