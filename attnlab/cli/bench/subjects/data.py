"""How fast batches come from a text: from the mapped tokens beside a loop over a tensor in memory, which is
what people write by hand, and how soon a text is there once its tokens are kept.

The loop takes the same windows of the same tokens. `M` and `L` are the sizes' windows and batches.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attnlab.cli.bench import Bench
from attnlab.cli.bench.rows import rows
from attnlab.cli.bench.setup import conditions, here, is_debug
from attnlab.data.module import Steps
from attnlab.data.task import Batch, generator
from attnlab.data.text import Text
from attnlab.model.build import make

OVERRIDES = ["data=code", "data/tokenizer=byte", "logger=none"]
ROUNDS = 5
SHAPES = {"M": (64, 512), "L": (64, 1024)}  # rows of a batch, and tokens of a window
BATCHES = 200
DEBUG_BATCHES = 2  # in a sample


def prepare(overrides: Sequence[str], threads: int | None) -> dict[str, Any]:
    """The config; at size=debug the text is pydocs, which is read within seconds."""
    defaults = ["data=pydocs", *OVERRIDES[1:]] if "size=debug" in overrides else OVERRIDES
    return here(defaults, overrides, threads)


def measure(config: Mapping[str, Any], bench: Bench, say: Callable[[str], None], rounds: int) -> None:
    """Tokens a second, and seconds until the data module is there."""
    bench.conditions |= conditions(config)
    say("preparing the text")
    kept = make(config["data"]).task
    facts = {"once cached": {"tokens": kept.train_tokens + kept.val_tokens}}
    samples: dict[str, list[float]] = {"once cached": []}
    try:
        for turn in range(2 * rounds):
            say(f"start {turn + 1} of {2 * rounds}")
            samples["once cached"].append(_seconds(lambda: make(config["data"])))
    finally:
        bench.rows += rows("start of the data", samples, "s", facts=facts)
    small = (config["data"]["batch_size"], config["data"]["length"])
    batches = DEBUG_BATCHES if is_debug(config) else BATCHES
    for name, (batch_size, length) in ({"debug": small} if is_debug(config) else SHAPES).items():
        task = make({**config["data"], "length": length, "batch_size": batch_size}).task
        assert isinstance(task, Text), "a text is asked for"
        works = _works(task, batch_size, batches)
        speeds: dict[str, list[float]] = {work: [] for work in works}
        try:
            for turn in range(rounds):
                say(f"{name}: round {turn + 1} of {rounds}")
                for order in (1, -1):
                    for work in list(works)[::order]:
                        seconds = _seconds(works[work])
                        speeds[work].append(batches * batch_size * length / seconds)
        finally:
            bench.rows += rows(f"batches of {batch_size} x {length} ({name})", speeds, "tokens/s")


def _works(task: Text, batch_size: int, batches: int) -> dict[str, Callable[[], None]]:
    """What makes so many batches, in each way."""
    held = torch.from_numpy(task.training.astype(np.int64))

    def loop(n: int) -> Batch:
        last = task.train_tokens - task.length
        starts = torch.randint(last, (batch_size,), generator=generator(0, n)).tolist()
        return {
            "tokens": torch.stack([held[start : start + task.length] for start in starts]),
            "targets": torch.stack([held[start + 1 : start + 1 + task.length] for start in starts]),
        }

    def mapped(n: int) -> Batch:
        return task.train_batch(0, n, batch_size)

    def memory(n: int) -> Batch:
        last = task.train_tokens - task.length
        starts = torch.randint(last, (batch_size,), generator=generator(0, n))
        return task.windows(held.numpy(), starts.numpy())

    assert all(torch.equal(loop(3)[key], batch) for key, batch in mapped(3).items()), "not the same windows"
    return {
        "a loop over a tensor in memory": lambda: _drained(map(loop, range(batches))),
        "the same as below, in memory": lambda: _drained(map(memory, range(batches))),
        "mapped tokens": lambda: _drained(map(mapped, range(batches))),
        "mapped tokens, the loader": lambda: _drained(
            Steps(lambda n: [mapped(n)], lambda: 0, batches, workers=0)
        ),
    }


def _drained(batches: Any) -> None:
    for _ in batches:
        pass


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
