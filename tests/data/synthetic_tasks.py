"""Small synthetic tasks of every kind, and helpers to read their batches."""

import torch

from attnlab.data.copying import Copying
from attnlab.data.induction import Induction
from attnlab.data.needle import Needle
from attnlab.data.recall import AssociativeRecall
from attnlab.data.synthetic.compositional_recall import CompositionalRecall
from attnlab.data.synthetic.compression import Compression
from attnlab.data.synthetic.depo import Depo
from attnlab.data.synthetic.dyck import Dyck
from attnlab.data.synthetic.flip_flop import FlipFlop
from attnlab.data.synthetic.forgetting_recall import ForgettingRecall
from attnlab.data.synthetic.in_context_recall import InContextRecall
from attnlab.data.synthetic.mano import Mano
from attnlab.data.synthetic.memorization import Memorization
from attnlab.data.synthetic.modular_addition import ModularAddition
from attnlab.data.synthetic.needle_keys import NeedleKeys
from attnlab.data.synthetic.selective_copying import SelectiveCopying
from attnlab.data.synthetic.variable_binding import VariableBinding
from attnlab.data.synthetic.word_problem import PermutationProduct

IGNORE = -100
SIZES = {"shortest": 3, "longest": 7, "val_longest": 17, "val_windows": 31}
TASK_FACTORIES = {
    "recall": lambda **changes: AssociativeRecall(
        **{"length": 23, "vocabulary": 14, "pairs": 5, "power": 0.01, "val_windows": 31} | changes
    ),
    "induction": lambda **changes: Induction(
        **{"length": 17, "vocabulary": 11, "shortest": 3, "longest": 7, "val_windows": 31} | changes
    ),
    "copy": lambda **changes: Copying(
        **{"length": 19, "symbols": 5, "longest": 4, "val_longest": 9, "backwards": False, "val_windows": 31}
        | changes
    ),
    "reverse": lambda **changes: TASK_FACTORIES["copy"](backwards=True, **changes),
    "needle": lambda **changes: Needle(
        **{"length": 19, "values": 5, "distances": [2, 7, 11], "earliest": 3, "val_windows": 31} | changes
    ),
    "forgetting": lambda **changes: ForgettingRecall(
        **{"length": 31, "vocabulary": 14, "pairs": 5, "updates": 2, "power": 0.01}
        | {"val_windows": 31} | changes
    ),
    "compositional": lambda **changes: CompositionalRecall(
        **{"length": 41, "vocabulary": 24, "firsts": 3, "seconds": 2, "power": 0.01}
        | {"val_windows": 31} | changes
    ),
    "noisy_recall": lambda **changes: InContextRecall(
        **{"length": 33, "symbols": 6, "pairs": 4, "noise": 0.3, "key_tokens": 1, "value_tokens": 1}
        | {"val_windows": 31} | changes
    ),
    "fuzzy_recall": lambda **changes: InContextRecall(
        **{"length": 41, "symbols": 4, "pairs": 4, "noise": 0, "key_tokens": 3, "value_tokens": 2}
        | {"val_windows": 31} | changes
    ),
    "selective_copying": lambda **changes: SelectiveCopying(
        **{"length": 19, "symbols": 5, "copied": 4, "val_windows": 31} | changes
    ),
    "compression": lambda **changes: Compression(
        **{"length": 19, "symbols": 3, "digits": 3, "val_windows": 31} | changes
    ),
    "memorization": lambda **changes: Memorization(
        **{"length": 19, "facts": 11, "values": 5, "power": 1, "val_windows": 31} | changes
    ),
    "depo": lambda **changes: Depo(
        **{"length": 29, "vocabulary": 9, "nodes": 6, "hops": 3, "queries": 4, "val_windows": 31} | changes
    ),
    "mano": lambda **changes: Mano(
        **{"length": 33, "modulus": 7, "operations": 3, "val_windows": 31} | changes
    ),
    "parity": lambda **changes: TASK_FACTORIES["modular_addition"](**{"modulus": 2} | changes),
    "modular_addition": lambda **changes: ModularAddition(
        **{"length": 19, "modulus": 5, "last_only": False} | SIZES | changes
    ),
    "s3": lambda **changes: PermutationProduct(
        **{"length": 19, "degree": 3, "moved": 3, "last_only": False} | SIZES | changes
    ),
    "s5": lambda **changes: TASK_FACTORIES["s3"](**{"degree": 5, "moved": 5} | changes),
    "flip_flop": lambda **changes: FlipFlop(**{"length": 37, "ignore": 0.5} | SIZES | changes),
    "dyck": lambda **changes: Dyck(
        **{"length": 19, "kinds": 2, "depth": 3, "val_windows": 31} | changes
    ),
    "needle_keys": lambda **changes: NeedleKeys(
        **{"length": 19, "symbols": 5, "needles": [1, 3], "val_windows": 31} | changes
    ),
    "variable_binding": lambda **changes: VariableBinding(
        **{"length": 31, "variables": 3, "values": 7, "overwrites": 5, "val_windows": 31} | changes
    ),
}  # fmt: skip


def iterate_examples(task, n_examples=200):
    """Yield examples as lists of words, with the words of their targets, None at unscored positions."""
    batch = task.train_batch(0, 0, n_examples)
    for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
        yield task.decode(tokens), [None if t == IGNORE else task.words[t] for t in targets]


def collect_validation(task):
    """Return all validation batches as one."""
    return {key: torch.cat([batch[key] for batch in task.val_batches(7)]) for key in task.val_batches(7)[0]}
