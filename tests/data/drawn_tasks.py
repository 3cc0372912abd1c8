"""Small drawn tasks of every kind, and what the tests read of them."""

import torch

from attnlab.data.copying import Copying
from attnlab.data.induction import Induction
from attnlab.data.needle import Needle
from attnlab.data.recall import Recall
from attnlab.data.synthetic.compositional import Compositional
from attnlab.data.synthetic.compression import Compression
from attnlab.data.synthetic.depo import Depo
from attnlab.data.synthetic.forgetting import Forgetting
from attnlab.data.synthetic.in_context import InContextRecall
from attnlab.data.synthetic.mano import Mano
from attnlab.data.synthetic.memorization import Memorization
from attnlab.data.synthetic.selective import SelectiveCopying

IGNORE = -100
MAKE = {
    "recall": lambda **more: Recall(
        **{"length": 23, "vocabulary": 14, "pairs": 5, "power": 0.01, "val_windows": 31} | more
    ),
    "induction": lambda **more: Induction(
        **{"length": 17, "vocabulary": 11, "shortest": 3, "longest": 7, "val_windows": 31} | more
    ),
    "copy": lambda **more: Copying(
        **{"length": 19, "symbols": 5, "longest": 4, "val_longest": 9, "backwards": False, "val_windows": 31}
        | more
    ),
    "reverse": lambda **more: MAKE["copy"](backwards=True, **more),
    "needle": lambda **more: Needle(
        **{"length": 19, "values": 5, "distances": [2, 7, 11], "earliest": 3, "val_windows": 31} | more
    ),
    "forgetting": lambda **more: Forgetting(
        **{"length": 31, "vocabulary": 14, "pairs": 5, "updates": 2, "power": 0.01, "val_windows": 31} | more
    ),
    "compositional": lambda **more: Compositional(
        **{"length": 41, "vocabulary": 24, "firsts": 3, "seconds": 2, "power": 0.01, "val_windows": 31} | more
    ),
    "noisy_recall": lambda **more: InContextRecall(
        **{"length": 33, "symbols": 6, "pairs": 4, "noise": 0.3, "key_tokens": 1, "value_tokens": 1}
        | {"val_windows": 31} | more
    ),
    "fuzzy_recall": lambda **more: InContextRecall(
        **{"length": 41, "symbols": 4, "pairs": 4, "noise": 0, "key_tokens": 3, "value_tokens": 2}
        | {"val_windows": 31} | more
    ),
    "selective_copying": lambda **more: SelectiveCopying(
        **{"length": 19, "symbols": 5, "copied": 4, "val_windows": 31} | more
    ),
    "compression": lambda **more: Compression(
        **{"length": 19, "symbols": 3, "digits": 3, "val_windows": 31} | more
    ),
    "memorization": lambda **more: Memorization(
        **{"length": 19, "facts": 11, "values": 5, "power": 1, "val_windows": 31} | more
    ),
    "depo": lambda **more: Depo(
        **{"length": 29, "vocabulary": 9, "nodes": 6, "hops": 3, "queries": 4, "val_windows": 31} | more
    ),
    "mano": lambda **more: Mano(**{"length": 33, "modulus": 7, "operations": 3, "val_windows": 31} | more),
}  # fmt: skip


def rows(task, count=200):
    """Examples as lists of words, with the words of their targets, None where nothing is scored."""
    batch = task.train_batch(0, 0, count)
    for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
        yield task.decode(tokens), [None if t == IGNORE else task.words[t] for t in targets]


def validation(task):
    return {key: torch.cat([batch[key] for batch in task.val_batches(7)]) for key in task.val_batches(7)[0]}
